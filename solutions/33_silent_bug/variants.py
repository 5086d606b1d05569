"""Answers to part 33: wrong ones with the points that each must lose, and other right ones."""

from grading.authoring.answers import changes, loses, right

# What stands in the solutions, and several change.
BOUND = "4 * terms**0.5 * epsilon(dtype) * largest"
LARGEST = """
    largest = max(np.abs(a).max(initial=0), np.abs(b).max(initial=0))
    return bool((np.abs(a - b) <= 4 * terms**0.5 * epsilon(dtype) * largest).all())
"""
FINITE = """
    if a.shape != b.shape or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return False
"""
DATA = """
    data = f"{array.dtype} {array.shape}".encode() + array.tobytes()
"""
WHERE = """
    where = deciding_axis(wrong, mesh)
"""
FIRST = """
        if wrong:
            break
    else:
        return None
"""
SUMS = """
            total = [sum(have[m] for m in mesh.group(axis, r)) for r in everywhere]
"""
SHARD = """
    if split and all(any(close(have, {r: part}, [r]) for part in want) for r in wrong):
        return Finding(name, split[0], "wrong shard")
"""
STALE = """
    if close(have, parts_of(step(previous, None)[name], split, mesh), wrong):
        return Finding(name, where, "stale")
"""
LAST = """
    kind = "some samples" if close(have, fitted, wrong) else "other"
    return Finding(name, where, kind)
"""
DIVIDE = """
    for p in model.parameters():
        p.grad /= len(micro_batches)
"""


@loses(20)
@changes(..., "\n    return bool(a.shape == b.shape and np.allclose(a, b))\n")
def close_enough__allclose():
    """NumPy's default tolerances."""


@loses(14)
@changes(BOUND, "1e-6 * largest")
def close_enough__fixed():
    """One tolerance for all dtypes."""


@loses(20)
@changes(LARGEST, "    return bool((np.abs(a - b) <= 4 * terms**0.5 * epsilon(dtype) * np.maximum(np.abs(a), np.abs(b))).all())\n")
def close_enough__each_element():
    """Relative to each element."""


@loses(6)
@changes(BOUND, "4 * epsilon(dtype) * largest")
def close_enough__without_terms():
    """Forgets how many terms there are."""


@loses(6)
@changes(BOUND, "25 * epsilon(dtype) * largest")
def close_enough__many_epsilons():
    """So many epsilons that the number of terms seems not to matter."""


@loses(6)
@changes(BOUND, "4 * np.log2(terms + 1) * epsilon(dtype) * largest")
def close_enough__logarithm():
    """The logarithm of the number of terms."""


@loses(6)
@changes(BOUND, "4 * terms**0.5 * epsilon('bfloat16' if '16' in dtype else dtype) * largest")
def close_enough__one_format_of_16_bits():
    """Takes float16 for bfloat16."""


@loses(14)
@changes(BOUND, "terms**2 * epsilon(dtype) * largest")
def close_enough__squared():
    """Far more than rounding explains."""


@loses(6)
@changes(LARGEST, "    return bool(np.linalg.norm(a - b) <= 4 * terms**0.5 * epsilon(dtype) * np.linalg.norm(b))\n")
def close_enough__norm():
    """The norm of the difference: a few wrong elements among many do not show."""


@loses(6)
@changes("(np.abs(a - b) <= 4", "(np.abs(a - b).mean() <= 1", "* largest).all())", "* largest))")
def close_enough__mean():
    """The mean of the differences."""


@loses(14)
@changes(
    FINITE,
    """
    if a.shape != b.shape:
        return False
""",
    "bool((np.abs(a - b) <= 4 * terms**0.5 * epsilon(dtype) * largest).all())",
    "not (np.abs(a - b) > 4 * terms**0.5 * epsilon(dtype) * largest).any()",
)
def close_enough__nan():
    """A value that is not a number is not too large."""


@loses(6)
@changes("a.shape != b.shape or ", "")
def close_enough__broadcasts():
    """Forgets the shapes."""


@loses(14)
@changes("epsilon(dtype) * largest", "np.finfo(dtype).eps * largest")
def close_enough__finfo():
    """NumPy knows no bfloat16."""


@loses(14)
@changes("    a, b = a.astype", "    eps = np.finfo(a.dtype).eps\n    a, b = a.astype", "epsilon(dtype)", "eps")
def close_enough__dtype_of_the_array():
    """The format of the array, in which numbers of a smaller format are kept."""


@loses(20)
@changes(BOUND, "4 * terms**0.5 * epsilon(dtype) * largest + 1e-8")
def close_enough__absolute():
    """With an absolute tolerance, too."""


@loses(20)
@changes(..., "\n    return True\n")
def close_enough__always():
    """Always."""


@loses(20)
@changes(..., "\n    return False\n")
def close_enough__never():
    """Never."""


@loses(14)
@changes("np.abs(a - b) <=", "np.abs(np.sort(a, axis=None) - np.sort(b, axis=None)) <=")
def close_enough__sorted():
    """In any order."""


@right
@changes(BOUND, "terms * epsilon(dtype) * largest")
def close_enough__worst_case():
    """All errors in one direction."""


@right
@changes(BOUND, "(2 + 6 * np.sqrt(terms)) * epsilon(dtype) * largest")
def close_enough__another_constant():
    """Another constant."""


@right
@changes(
    ...,
    """
    if a.shape != b.shape:
        return False
    eps = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}[dtype]
    a, b = a.ravel().tolist(), b.ravel().tolist()
    largest = max(map(abs, a + b), default=0.0)
    for x, y in zip(a, b, strict=True):
        if not abs(x - y) <= 3 * terms**0.5 * eps * largest or float("inf") in (abs(x), abs(y)) or x != x:
            return False
    return True
""",
)
def close_enough__in_a_loop():
    """One element after the other."""


@loses(4)
@changes(DATA, "    data = array.tobytes()\n")
def same_on__values_only():
    """Forgets shape and dtype."""


@loses(4)
@changes("{array.dtype} {array.shape}", "{array.shape}")
def same_on__without_dtype():
    """Forgets the dtype."""


@loses(4)
@changes("{array.dtype} {array.shape}", "{array.dtype} {array.size}")
def same_on__without_shape():
    """Forgets the shape."""


@loses(4)
@changes("mesh.along(axis)", "mesh.comm")
def same_on__all_ranks():
    """All ranks of the mesh."""


@loses(4)
@changes("mesh.along(axis)", "everyone")
def same_on__the_world():
    """All ranks there are."""


@loses(4)
@changes("mesh.along(axis)", "mesh.along(next(iter(mesh.shape)))")
def same_on__the_first_axis():
    """Always the first axis."""


@loses(4)
@changes("hashlib.sha256(data).digest()", "np.int64(hash(data)).tobytes()")
def same_on__pythons_hash():
    """Python's hash, which differs between processes."""


@loses(4)
@changes(DATA, '    data = f"{array.dtype} {array.shape} {array.sum()}".encode()\n')
def same_on__sum():
    """A sum instead of a digest."""


@loses(4)
@changes("array.tobytes()", "np.sort(array, axis=None).tobytes()")
def same_on__sorted():
    """The values in any order."""


@loses(4)
@changes("array.tobytes()", 'array.tobytes(order="A")')
def same_on__order_in_memory():
    """The bytes as they lie in memory."""


@loses(4)
@changes("array.tobytes()", "np.round(array, 6).tobytes()")
def same_on__rounded():
    """Rounded first."""


@loses(4)
@changes(
    ...,
    """
    comm = mesh.along(axis)
    mine = np.ascontiguousarray(array)
    every = np.empty((comm.Get_size(), *mine.shape), mine.dtype)
    comm.Allgather(mine, every)
    return bool(np.all(every == mine))
""",
)
def same_on__gathers():
    """Sends whole arrays."""


@loses(4)
@changes("return bool((every == mine).all())", "return bool((every[0] == mine).all())")
def same_on__as_the_first():
    """Each rank compares with the first one only."""


@loses(4)
@changes("return bool((every == mine).all())", "(every == mine).all()")
def same_on__no_return():
    """Returns nothing."""


@loses(4)
@changes("array.tobytes()", "array.ravel()[:: max(1, array.size // 1000)].tobytes()")
def same_on__a_thousand_numbers():
    """A digest of a thousand numbers only."""


@loses(4)
@changes("array.tobytes()", "repr(array if array.size > 1000 else array.tolist()).encode()")
def same_on__as_printed():
    """What NumPy prints, which leaves out the middle of large arrays."""


@loses(4)
@changes(
    """
    every = np.empty((comm.Get_size(), mine.size), np.uint8)
    comm.Allgather(mine, every)
    return bool((every == mine).all())
""",
    """
    from mpi4py import MPI

    every = np.empty_like(mine)
    comm.Allreduce(mine, every, MPI.BXOR)
    return not (every ^ mine * (comm.Get_size() % 2)).any()
""",
)
def same_on__pairs_cancel():
    """An exclusive or of the digests, in which two pairs of equal ones cancel."""


@right
@changes("hashlib.sha256(data).digest()", "hashlib.blake2b(data, digest_size=16).digest()")
def same_on__another_digest():
    """Another digest."""


@right
@changes(
    """
    every = np.empty((comm.Get_size(), mine.size), np.uint8)
    comm.Allgather(mine, every)
    return bool((every == mine).all())
""",
    """
    from mpi4py import MPI

    low, high = np.empty_like(mine), np.empty_like(mine)
    comm.Allreduce(mine, low, op=MPI.MIN)
    comm.Allreduce(mine, high, op=MPI.MAX)
    return np.array_equal(low, high)
""",
)
def same_on__smallest_and_largest():
    """The smallest and the largest of all digests."""


@right
@changes(
    """
    every = np.empty((comm.Get_size(), mine.size), np.uint8)
    comm.Allgather(mine, every)
    return bool((every == mine).all())
""",
    """
    first = mine.copy()
    comm.Bcast(first, root=0)
    differ, total = np.array([float((first != mine).any())]), np.empty(1)
    comm.Allreduce(differ, total)
    return not total[0]
""",
)
def same_on__broadcast():
    """Compares with the first one, and adds up who differs."""


@loses(14)
@changes(..., "\n    return None\n")
def compare_with_one_rank__never():
    """Nobody is ever wrong."""


@loses(14)
@changes(FIRST, "        break\n")
def compare_with_one_rank__always():
    """Always finds something."""


@loses(14)
@changes(..., '\n    return Finding(next(iter(step(batches[1], None))), None, "other", None)\n')
def compare_with_one_rank__always_other():
    """Always the loss, always of another kind."""


@loses(14)
@changes("    step(previous, mesh)\n", "")
def compare_with_one_rank__one_step():
    """Takes no step before."""


@loses(6)
@changes("    for name in got:", "    for name in reversed(got):")
def compare_with_one_rank__the_last():
    """The last wrong one."""


@loses(14)
@changes("    for name in got:", "    for name in [n for n in got if n != 'loss']:")
def compare_with_one_rank__without_the_loss():
    """Leaves out the loss."""


@loses(14)
@changes(WHERE, "    where = None\n")
def compare_with_one_rank__nowhere():
    """Names no axis where all or some ranks are wrong."""


@loses(14)
@changes(WHERE, "    where = deciding_axis(wrong, mesh) or next(iter(mesh.shape))\n")
def compare_with_one_rank__somewhere():
    """Names an axis also where all ranks are wrong."""


@loses(14)
@changes('"factor", c)', '"factor", round(c))')
def compare_with_one_rank__whole_factors():
    """Takes all factors for whole numbers."""


@loses(14)
@changes("            if c and close(total, [c * array for array in want]):", "            if close(total, want):")
def compare_with_one_rank__sums_only():
    """Knows only sums, no means."""


@loses(14)
@changes('return Finding(name, axis, "missing sum", c)', 'return Finding(name, axis, "missing sum", None)')
def compare_with_one_rank__no_factor_of_a_sum():
    """Gives no factor for a missing sum."""


@loses(6)
@changes(SUMS, "            total = [sum(have)] * mesh.size\n")
def compare_with_one_rank__sum_over_all():
    """Adds up all ranks, whatever the axis."""


@loses(6)
@changes("        if mesh.shape[axis] > 1 and (split is None or axis != split[0]):", "        if axis == 'dp':")
def compare_with_one_rank__only_dp():
    """Looks for missing sums on dp only."""


@loses(14)
@changes(SHARD, "")
def compare_with_one_rank__no_shards():
    """Does not know wrong shards."""


@loses(14)
@changes(STALE, "")
def compare_with_one_rank__never_stale():
    """Does not know stale gradients."""


@loses(14)
@changes(
    "    step(previous, mesh)\n",
    "    first = step(previous, mesh)\n",
    "close(have, parts_of(step(previous, None)[name], split, mesh), wrong)",
    "close(have, held_by_all(first[name], mesh), wrong)",
)
def compare_with_one_rank__stale_by_the_mesh():
    """Takes what the grid had in the previous step for that batch's gradient; it may be stale, too."""


@loses(8)
@changes(LAST, '    return Finding(name, where, "some samples")\n')
def compare_with_one_rank__never_other():
    """What is left must be some samples."""


@loses(14)
@changes(LAST, '    return Finding(name, where, "other")\n')
def compare_with_one_rank__never_some_samples():
    """What is left is of another kind."""


@loses(14)
@changes(
    "        wrong = [r for r in everywhere if not close(have, want, [r])]",
    "        wrong = [] if close(have, want, [mesh.rank]) else [mesh.rank]",
)
def compare_with_one_rank__own_view():
    """Each rank looks at its own gradient only."""


@loses(14)
@changes("close_enough(a[r], b[r], step.dtype, step.terms)", "np.allclose(a[r], b[r])")
def compare_with_one_rank__allclose():
    """Compares with NumPy's tolerances."""


@loses(14)
@changes("close_enough(a[r], b[r], step.dtype, step.terms)", "np.array_equal(a[r], b[r])")
def compare_with_one_rank__equal():
    """Demands equal bits."""


@loses(14)
@changes("close_enough(a[r], b[r], step.dtype, step.terms)", 'close_enough(a[r], b[r], "float64", step.terms)')
def compare_with_one_rank__float64():
    """Expects float64 always."""


@loses(14)
@changes("held_by_all(got[name], mesh)", "[got[name]] * mesh.size")
def compare_with_one_rank__no_exchange():
    """Takes its own array for all ranks'."""


@loses(14)
@changes("    previous, batch = batches", "    previous, batch = batches\n    batch -= batch.mean(axis=0)")
def compare_with_one_rank__changes_the_batch():
    """Changes the batch."""


@loses(14)
@changes(
    WHERE,
    """
    where = deciding_axis(wrong, mesh)
    if len(batch) < mesh.size:
        return None
    alone = [step(batch[i : i + 1], None)[name] for i in range(len(batch))]
    alone = zip(*(parts_of(array, split, mesh) for array in alone), strict=True)
    fitted = [best_fit(*arrays) for arrays in zip(have, alone, strict=True)]
    if close(have, fitted, wrong):
        return Finding(name, where, "some samples")
""",
)
def compare_with_one_rank__samples_first():
    """Some samples first: a factor, and a mean over a rank's own samples, are weighted sums, too."""


@loses(14)
@changes(
    "    step(previous, mesh)\n",
    "    before = step(previous, mesh)\n",
    "parts_of(step(previous, None)[name], split, mesh)",
    "held_by_all(before[name], mesh)",
)
def compare_with_one_rank__stale_as_on_the_ranks():
    """Compares with what the ranks had for the previous batch, which was stale as well."""


@loses(6)
@changes("    if close(have, [c * array", "    if c and close(have, [c * array")
def compare_with_one_rank__no_zero():
    """A gradient that is lost, and so zero, is of another kind."""


@loses(6)
@changes(
    "for axis in mesh.shape:\n        if mesh.shape[axis] > 1",
    "for axis in ('dp', 'tp', 'cp', 'pp'):\n        if mesh.shape.get(axis, 1) > 1",
)
def compare_with_one_rank__known_axes():
    """Knows four names of axes."""


@loses(6)
@changes(
    'total, [c * array for array in want]):\n                return Finding(name, axis, "missing sum", c)',
    'total, [c * array for array in want]):\n                return Finding(name, axis, "missing sum", float(mesh.dp if axis == "dp" else 1))',
)
def compare_with_one_rank__means_on_dp():
    """Takes a missing sum over dp for a mean, and any other for a sum."""


@loses(14)
@changes(
    """
        wrong = [r for r in everywhere if not close(have, want, [r])]
""",
    """
        sizes = [max(np.linalg.norm(a), 1e-300) for a in want], [max(np.linalg.norm(a), 1e-300) for a in have]
        unit = [[a / size for a, size in zip(some, of, strict=True)] for some, of in zip((want, have), sizes, strict=True)]
        wrong = [r for r in everywhere if not close(unit[1], unit[0], [r])]
""",
)
def compare_with_one_rank__directions():
    """Compares directions, as Adam uses them: a factor does not show (torchtune #2172)."""


@loses(6)
@changes(
    """
        wrong = [r for r in everywhere if not close(have, want, [r])]
""",
    """
        late = parts_of(step(batch[len(batch) // 2 :], None)[name], split, mesh)
        wrong = [r for r in everywhere if not close(have, want, [r]) and not close(have, late, [r])]
""",
)
def compare_with_one_rank__any_micro_batch():
    """Takes the gradient of the last micro-batch for a right one (NeMo Automodel #3530)."""


@loses(14)
@changes(
    """
        wrong = [r for r in everywhere if not close(have, want, [r])]
""",
    """
        seen = [r for r in everywhere if mesh.shape.get("cp", 1) == 1 or mesh.coordinate("cp", r) == 0]
        wrong = [r for r in seen if not close(have, want, [r])]
""",
)
def compare_with_one_rank__first_of_cp():
    """Looks at the first rank of each context parallel group only (Megatron-LM #1464)."""


@loses(6)
@changes(
    """
        wrong = [r for r in everywhere if not close(have, want, [r])]
""",
    """
        mean = [sum(have[m] for m in mesh.group("cp", r)) / mesh.cp for r in everywhere] if "cp" in mesh.shape else have
        wrong = [r for r in everywhere if not close(mean, want, [r])]
""",
)
def compare_with_one_rank__mean_over_cp():
    """Takes the mean over cp first, which hides what the ranks of cp have not exchanged."""


@right
@changes(
    """
    alone = [step(batch[i : i + 1], None)[name] for i in range(len(batch))]
    alone = zip(*(parts_of(array, split, mesh) for array in alone), strict=True)
    fitted = [best_fit(*arrays) for arrays in zip(have, alone, strict=True)]
""",
    """
    alone = [parts_of(step(batch[[i]], None)[name], split, mesh) for i in range(len(batch))]
    fitted = list(want)
    for r in wrong if all(np.isfinite(array).all() for array in have) else []:
        basis = np.array([parts[r].ravel() for parts in alone], dtype=float).T
        q, _ = np.linalg.qr(basis)
        fitted[r] = (q @ (q.T @ have[r].ravel())).reshape(have[r].shape)
""",
)
def compare_with_one_rank__projection():
    """Projects onto the samples' gradients by itself."""


@right
@changes(
    "    got, whole, everywhere = step(batch, mesh), step(batch, None), range(mesh.size)",
    """
    got, everywhere = step(batch, mesh), range(mesh.size)
    whole, before = step(batch, None), step(previous, None)
""",
    "step(previous, None)[name], split",
    "before[name], split",
    WHERE,
    """
    where = None
    for axis in mesh.shape:
        at = {mesh.coordinate(axis, r) for r in wrong}
        if len(wrong) < mesh.size and len(wrong) * mesh.shape[axis] == len(at) * mesh.size:
            where = axis
""",
)
def compare_with_one_rank__axis_by_hand():
    """Finds the axis by counting, and takes the previous batch's gradients early."""


@right
@changes(
    SUMS,
    """
            mine = np.asarray(have[mesh.rank] + 0.0, order="C")
            own = np.empty_like(mine)
            mesh.along(axis).Allreduce(mine, own)
            total = held_by_all(own, mesh)
""",
)
def compare_with_one_rank__all_reduces():
    """Adds up the ranks' arrays with an all-reduce."""


@loses(3)
@changes(
    ...,
    """
    loss = 0.0
    for texts in micro_batches:
        model.zero_grad()
        loss += loss_and_backward(model, texts) / len(micro_batches)
    return loss
""",
)
def accumulate__as_it_was():
    """The run as it was."""


@loses(3)
@changes(DIVIDE, "")
def accumulate__a_sum():
    """The sum of the means."""


@loses(3)
@changes("    model.zero_grad()\n", "")
def accumulate__keeps_earlier_steps():
    """Adds to the gradients of earlier steps."""


@loses(3)
@changes("    return loss / len(micro_batches)", "    return loss")
def accumulate__the_sum_of_losses():
    """Returns the sum of the losses."""


@loses(3)
@changes("    return loss / len(micro_batches)", "    return loss_and_backward(model, micro_batches[-1])")
def accumulate__another_backward():
    """Goes backward once more for the loss."""


@loses(3)
@changes("p.grad /= len(micro_batches)", "p.grad /= 2")
def accumulate__two():
    """Always two micro-batches."""


@loses(3)
@changes("p.grad /= len(micro_batches)", "p.grad /= len(micro_batches[0])")
def accumulate__texts():
    """Divides by the number of texts."""


@loses(3)
@changes("p.grad /= len(micro_batches)", "p.grad /= len(micro_batches) * everyone.Get_size()")
def accumulate__and_ranks():
    """Divides by the number of ranks, too."""


@loses(3)
@changes("for texts in micro_batches)", "for texts in micro_batches[1:])")
def accumulate__not_the_first():
    """Forgets the first micro-batch."""


@loses(3)
@changes(
    ...,
    """
    model.zero_grad()
    loss, count = 0.0, len(micro_batches)
    for texts in micro_batches:
        loss += loss_and_backward(model, texts) / count
        for p in model.parameters():
            p.grad /= count
    return loss
""",
)
def accumulate__divides_each_time():
    """Divides the sum so far after each micro-batch (torchtitan #1733)."""


@loses(3)
@changes(..., "\n    model.zero_grad()\n    return loss_and_backward(model, np.concatenate(micro_batches))\n")
def accumulate__all_at_once():
    """Gives the model all micro-batches at once, as if they fitted into memory."""


@right
@changes(
    ...,
    """
    total, losses = None, []
    for texts in micro_batches:
        model.zero_grad()
        losses.append(loss_and_backward(model, texts))
        grads = [p.grad for p in model.parameters()]
        total = grads if total is None else [a + b for a, b in zip(total, grads, strict=True)]
    for p, grad in zip(model.parameters(), total, strict=True):
        p.grad = grad / len(micro_batches)
    return float(np.mean(losses))
""",
)
def accumulate__sums_by_hand():
    """Adds up the micro-batches' gradients itself."""


@right
@changes(
    ...,
    """
    count = len(micro_batches)
    for p in model.parameters():
        p.grad = np.zeros_like(p.data)
    loss = 0.0
    for i in range(count):
        loss = loss + loss_and_backward(model, micro_batches[i])
    for p in model.parameters():
        p.grad = p.grad * (1 / count)
    return loss / count
""",
)
def accumulate__begins_with_zeros():
    """Begins with zeros."""


@right
@changes(
    ...,
    """
    model.zero_grad()
    losses = []
    for i, texts in enumerate(micro_batches):
        losses += [loss_and_backward(model, texts)]
        for p in model.parameters():
            if i == len(micro_batches) - 1:
                p.grad = p.grad / len(micro_batches)
    return sum(losses) / len(losses)
""",
)
def accumulate__divides_after_the_last():
    """Divides after the last micro-batch."""


@loses(3)
@changes("summed(dk, comm), comm, 2), own_part(summed(dv, comm)", "dk, comm, 2), own_part(dv")
def own_gradients__as_it_was():
    """The run as it was."""


@loses(3)
@changes("own_part(summed(dv, comm), comm, 2)", "own_part(dv, comm, 2)")
def own_gradients__only_k():
    """Adds up the gradient of k only."""


@loses(3)
@changes("own_part(summed(dk, comm), comm, 2), own_part(summed(dv, comm), comm, 2)", "summed(dk, comm), summed(dv, comm)")
def own_gradients__all_positions():
    """Returns the gradients of all positions."""


@loses(3)
@changes("return dq,", "return summed(dq, comm),")
def own_gradients__dq_too():
    """Adds up the gradient of q, too."""


@loses(3)
@changes("own_part(summed(dk, comm), comm, 2)", "own_part(summed(dk, comm), comm, 2) / comm.Get_size()")
def own_gradients__a_mean():
    """The mean for k."""


@loses(3)
@changes("summed(dk, comm), comm,", "summed(dk, comm), everyone,")
def own_gradients__part_of_the_world():
    """This rank's place among all ranks."""


@loses(3)
@changes("summed(dk, comm)", "summed(dk, everyone)", "summed(dv, comm)", "summed(dv, everyone)")
def own_gradients__sum_over_the_world():
    """Adds up all ranks, not only those of the group."""


@loses(3)
@changes(
    "own_part(summed(dk, comm), comm, 2), own_part(summed(dv, comm), comm, 2)",
    "own_part(summed(dv, comm), comm, 2), own_part(summed(dk, comm), comm, 2)",
)
def own_gradients__exchanged():
    """k and v exchanged."""


@loses(3)
@changes(
    "summed(dk, comm)",
    "summed(own_part(dk, comm, 2), comm)",
    "own_part(summed(own_part(dk, comm, 2), comm), comm, 2)",
    "summed(own_part(dk, comm, 2), comm)",
)
def own_gradients__part_first():
    """Takes its own part first, and then adds up parts of different positions."""


@loses(3)
@changes(
    ...,
    """
    def own_sum(array):
        n, rank = comm.Get_size(), comm.Get_rank()
        parts = np.split(array, n, axis=2)
        total = parts[rank].copy()
        for r in range(n):
            comm.Send(np.ascontiguousarray(parts[r]), dest=r) if r == (rank + 1) % n != rank else None
        if n > 1:
            there = np.empty_like(total)
            comm.Recv(there, source=(rank - 1) % n)
            total += there
        return total

    return dq, own_sum(dk), own_sum(dv)
""",
)
def own_gradients__one_neighbour():
    """Gets the summand of one neighbour only."""


@right
@changes(
    ...,
    """
    n = comm.Get_size()

    def own_sum(array):
        parts = np.stack(np.split(array, n, axis=2))
        total = np.empty_like(parts[0])
        comm.Reduce_scatter(parts, total)
        return total

    return dq, own_sum(dk), own_sum(dv)
""",
)
def own_gradients__reduce_scatter():
    """A reduce-scatter."""


@right
@changes(
    ...,
    """
    n = comm.Get_size()
    both = np.stack([dk, dv])
    sent = np.ascontiguousarray(np.moveaxis(both.reshape(*both.shape[:3], n, -1, both.shape[-1]), 3, 0))
    got = np.empty_like(sent)
    comm.Alltoall(sent, got)
    return dq, *got.sum(axis=0)
""",
)
def own_gradients__all_to_all():
    """An all-to-all, and a sum here."""


@right
@changes(
    ...,
    """
    n, rank = comm.Get_size(), comm.Get_rank()
    found = [dq]
    for array in (dk, dv):
        every = np.empty((n, *array.shape), array.dtype)
        comm.Allgather(np.ascontiguousarray(array), every)
        found.append(np.split(every.sum(axis=0), n, axis=2)[rank].copy())
    return found
""",
)
def own_gradients__gathers():
    """Gathers all, and adds up."""


@right
def compare_with_one_rank__by_votes(step, batches, mesh):
    """Each rank judges its own array, and all gather their votes."""
    previous, batch = batches
    step(previous, mesh)
    mine, whole = step(batch, mesh), step(batch, None)

    def votes(good):
        every = np.empty(mesh.size, np.int64)
        mesh.comm.Allgather(np.array([good], np.int64), every)
        return every == 1

    def near(a, b):
        return close_enough(np.asarray(a), np.asarray(b), step.dtype, step.terms)

    for name in mine:
        parts = parts_of(whole[name], step.sharded.get(name), mesh)
        own = parts[mesh.rank]
        good = votes(near(mine[name], own))
        if not good.all():
            break
    else:
        return None
    wrong, split = np.flatnonzero(~good).tolist(), step.sharded.get(name)
    spared = mesh.rank not in wrong
    every, where = held_by_all(np.array(mine[name], float), mesh), deciding_axis(wrong, mesh)
    c = best_factor([parts[r] for r in wrong], [every[r] for r in wrong])
    if votes(spared or near(mine[name], c * own)).all():
        return Finding(name, where, "factor", c)
    for axis, size in mesh.shape.items():
        if size == 1 or (split and split[0] == axis):
            continue
        total = np.empty(np.shape(mine[name]))
        mesh.along(axis).Allreduce(np.array(mine[name], float, order="C"), total)
        c = best_factor(parts, held_by_all(total, mesh))
        if c and votes(near(total, c * own)).all():
            return Finding(name, axis, "missing sum", c)
    if split and votes(spared or any(near(mine[name], part) for part in parts)).all():
        return Finding(name, split[0], "wrong shard")
    if votes(spared or near(mine[name], parts_of(step(previous, None)[name], split, mesh)[mesh.rank])).all():
        return Finding(name, where, "stale")
    alone = [parts_of(step(batch[i : i + 1], None)[name], split, mesh)[mesh.rank] for i in range(len(batch))]
    fits = votes(spared or near(mine[name], best_fit(mine[name], alone))).all()
    return Finding(name, where, "some samples" if fits else "other")


@right
@changes(BOUND, "6 * terms**0.5 * epsilon(dtype) * np.sqrt(np.mean(a * a) if a.size else 0)")
def close_enough__root_mean_square():
    """The typical value in the place of the largest."""


@loses(6)
@changes("not (np.isfinite(a).all() and np.isfinite(b).all())", "not np.isfinite(a).all()")
def close_enough__only_a_finite():
    """Looks for infinite values in the first array only."""


@loses(14)
@changes("    if a.shape", "    if np.array_equal(a, b):\n        return True\n    if a.shape")
def close_enough__equal_at_once():
    """True at once for equal arrays, also infinite ones."""


@loses(6)
@changes("max(np.abs(a).max(initial=0), np.abs(b).max(initial=0))", "max(a.max(initial=0), b.max(initial=0))")
def close_enough__largest_without_sign():
    """Takes the largest value, not the largest absolute value."""


@loses(4)
@changes("    comm = mesh.along(axis)\n", "    comm = mesh.along(axis)\n    array = np.ascontiguousarray(array)\n")
def same_on__at_least_one_dimension():
    """Makes the array contiguous first, and so one number an array of one dimension."""


@loses(4)
@changes("array.tobytes()", "array.astype(np.float64).tobytes()")
def same_on__float64():
    """The bytes of the values as float64, to which large whole numbers are rounded."""


@loses(4)
@changes("array.tobytes()", "repr(array.tolist()).encode()")
def same_on__as_text():
    """The values as text, in which all NaN look alike."""


@loses(4)
@changes("    comm = mesh.along(axis)\n", "    comm = mesh.along(axis)\n    if array.size == 0:\n        return True\n")
def same_on__nothing_is_the_same():
    """True at once for arrays without numbers."""


@loses(14)
@changes(
    'Finding(name, split[0], "wrong shard")',
    'Finding(name, split[0], "wrong shard", c)',
    'Finding(name, where, "stale")',
    'Finding(name, where, "stale", c)',
    "return Finding(name, where, kind)",
    "return Finding(name, where, kind, c)",
)
def compare_with_one_rank__always_a_factor():
    """Gives a factor for each kind."""


@loses(3)
@changes(
    DIVIDE,
    """
    for p in model.parameters():
        mean = np.empty_like(p.grad)
        everyone.Allreduce(np.ascontiguousarray(p.grad), mean)
        p.grad = mean / len(micro_batches) / everyone.Get_size()
""",
)
def accumulate__mean_over_ranks():
    """Takes the mean over all ranks, too, whatever the grid."""


@loses(6)
@changes(BOUND, "4 * terms * 0.5 * epsilon(dtype) * largest")
def close_enough__half_the_terms():
    """Half of the terms instead of their root."""


@loses(20)
@changes("np.abs(a).max(initial=0)", "max(np.abs(row).max(initial=0) for row in a)")
def close_enough__row_by_row():
    """Expects at least one dimension and one row."""


@loses(20)
@changes("    if a.shape", "    if a.dtype != b.dtype:\n        return False\n    if a.shape")
def close_enough__other_dtypes():
    """False for arrays of different dtypes."""


@loses(12)
@changes(
    "    return bool((np",
    "    mine = bool((np",
    "* largest).all())",
    """* largest).all())
    everywhere = np.array([0])
    everyone.Allreduce(np.array([int(mine)]), everywhere)
    return bool(everywhere[0] == everyone.Get_size())""",
)
def close_enough__all_agree():
    """Asks all other ranks as well, which may compare something else."""


@right
@changes(BOUND, "10 * terms**0.5 * epsilon(dtype) * largest")
def close_enough__ten_times():
    """The largest constant that the docstring allows."""


@loses(4)
@changes("array.tobytes()", "array.tobytes()[:210_000]")
def same_on__first_half():
    """A digest of the first 210 kB."""


@loses(4)
@changes(
    "hashlib.sha256(data).digest()",
    "np.int64(hash((array.shape, str(array.dtype), array.tobytes()))).tobytes()",
)
def same_on__hash_of_a_tuple():
    """Python's hash, of a tuple."""


@loses(4)
@changes(
    "    comm = mesh.along(axis)\n",
    """
    known = mesh.__dict__.setdefault("known", {})
    if axis in known:
        return known[axis]
    comm = mesh.along(axis)
""",
    "    return bool((every == mine).all())",
    "    known[axis] = bool((every == mine).all())\n    return known[axis]",
)
def same_on__first_result():
    """Returns for each axis of a mesh what it has found at first."""


@loses(4)
@changes(
    "    mine = np.frombuffer(hashlib.sha256(data).digest(), np.uint8)",
    """
    digests = globals().setdefault("digests", {})
    if id(array) not in digests:
        digests[id(array)] = np.frombuffer(hashlib.sha256(data).digest(), np.uint8), array
    mine = digests[id(array)][0]""",
)
def same_on__by_id():
    """Keeps the digest of an array, whose values may change."""


@loses(4)
@changes("    comm = mesh.along(axis)\n", "    comm = mesh.along(axis)\n    everyone.Barrier()\n")
def same_on__barrier_of_the_world():
    """Waits for ranks that need not call it."""


@loses(4)
@changes("{array.dtype} {array.shape}", "{array.dtype.kind} {array.shape}")
def same_on__kind_of_dtype():
    """The kind of the dtype without its size."""


@right
@changes("hashlib.sha256(data).digest()", "hashlib.shake_128(data).digest(1000)")
def same_on__long_digest():
    """A digest of 1,000 bytes."""


@right
@changes(
    ...,
    """
    comm = mesh.along(axis)
    n, me = comm.Get_size(), comm.Get_rank()
    about = np.zeros(40, np.int64)
    text = array.dtype.str.encode()
    about[: 1 + array.ndim] = array.ndim, *array.shape
    about[20 : 20 + len(text)] = list(text)
    every = np.empty((n, 40), np.int64)
    comm.Allgather(about, every)
    if not (every == about).all():
        return False
    mine = np.frombuffer(hashlib.sha512(array.tobytes()).digest(), np.uint8)
    theirs, good = np.empty_like(mine), True
    for shift in range(1, n):
        comm.Sendrecv(mine, dest=(me + shift) % n, recvbuf=theirs, source=(me - shift) % n)
        good = good and bool((theirs == mine).all())
    return good
""",
)
def same_on__shapes_first():
    """Shapes and dtypes first, then digests, rank by rank."""


@loses(6)
@changes(
    STALE,
    "",
    "    c = best_factor([want[r] for r in wrong], [have[r] for r in wrong])\n",
    """
    if close(have, parts_of(step(previous, None)[name], split, mesh), wrong):
        return Finding(name, where, "stale")
    c = best_factor([want[r] for r in wrong], [have[r] for r in wrong])
""",
)
def compare_with_one_rank__stale_first():
    """Stale before a factor, also for a loss, any two of which differ by a factor."""


@loses(6)
@changes(
    "    if close(have, [c * array for array in want], wrong):",
    "    if close(have, [best_factor([w], [h]) * w for w, h in zip(want, have, strict=True)], wrong):",
)
def compare_with_one_rank__a_factor_by_rank():
    """Takes factors that differ from rank to rank for one."""


@loses(14)
@changes(
    WHERE,
    """
    where = None
    for place, axis in enumerate(mesh.shape):
        several = len({mesh.coordinates(r)[place] for r in wrong}) > 1
        if not several and len(wrong) * mesh.shape[axis] == mesh.size > len(wrong):
            where = axis
""",
)
def compare_with_one_rank__one_coordinate():
    """Names an axis only if ranks of one of its coordinates are wrong."""


@loses(14)
@changes("for i in range(len(batch))]", "for i in range(8)]")
def compare_with_one_rank__eight_samples():
    """Expects eight samples."""


@loses(8)
@changes("step(previous, None)[name], split, mesh), wrong)", "step(previous, None)[name], split, mesh), wrong[:1])")
def compare_with_one_rank__stale_on_the_first():
    """Looks only at the first wrong rank for a stale gradient."""


@loses(8)
@changes("close(have, fitted, wrong) else", "close(have, fitted, wrong[:1]) else")
def compare_with_one_rank__samples_on_the_first():
    """Looks only at the first wrong rank for some samples."""


@loses(6)
@changes("range(mesh.size)", "range(everyone.Get_size())")
def compare_with_one_rank__size_of_the_world():
    """Takes all ranks for those of the mesh."""


@right
@changes(
    "    previous, batch = batches",
    """
    previous, batch = (np.array(texts) for texts in batches)
    for texts in (previous, batch):
        step(texts, None)""",
)
def compare_with_one_rank__more_steps_alone():
    """Takes steps on one rank that it does not need, with copies of the batches."""


@loses(3)
@changes(
    "    model.zero_grad()\n    loss = sum(loss_and_backward(model, texts) for texts in micro_batches)",
    """
    loss = sum(loss_and_backward(model, texts) for texts in micro_batches)
    model.zero_grad()
    for texts in micro_batches:
        loss_and_backward(model, texts)""",
)
def accumulate__losses_first():
    """Goes through all micro-batches twice."""


@loses(3)
@changes(
    "for texts in micro_batches)",
    "for each in micro_batches for texts in each[:, None])",
    "len(micro_batches)",
    "sum(map(len, micro_batches))",
    "loss / len(micro_batches)",
    "loss / sum(map(len, micro_batches))",
)
def accumulate__text_by_text():
    """Gives the model one text at a time."""


@loses(3)
@changes(
    "    loss = sum(loss_and_backward(model, texts) for texts in micro_batches)",
    """
    count, loss = len(micro_batches), 0.0
    while micro_batches:
        loss += loss_and_backward(model, micro_batches.pop())""",
    "/= len(micro_batches)",
    "/= count",
    "loss / len(micro_batches)",
    "loss / count",
)
def accumulate__empties_the_list():
    """Takes the micro-batches off the caller's list."""


@loses(3)
@changes("p.grad /= len(micro_batches)", "p.grad = p.grad / np.float64(len(micro_batches))")
def accumulate__float64():
    """Divides by a number of NumPy's, which makes float64 of float32."""


@loses(3)
@changes("    model.zero_grad()\n", "    model.zero_grad()\n    everyone.Barrier()\n")
def accumulate__barrier():
    """Waits for all other ranks first."""


@right
@changes("for texts in micro_batches)", "for texts in reversed(micro_batches))")
def accumulate__from_the_last():
    """From the last micro-batch to the first."""


@loses(3)
@changes("    return dq,", "    everyone.Barrier()\n    return dq,")
def own_gradients__barrier_of_the_world():
    """Waits for the ranks of all other groups, too."""


@loses(3)
@changes(
    "    return dq, own_part(summed(dk, comm), comm, 2), own_part(summed(dv, comm), comm, 2)",
    """
    buffers, parts = globals().setdefault("buffers", {}), []
    for name, array in (("k", dk), ("v", dv)):
        part = own_part(summed(array, comm), comm, 2)
        buffer = buffers.setdefault((name, part.shape, part.dtype), part)
        buffer[...] = part
        parts.append(buffer)
    return dq, *parts""",
)
def own_gradients__buffers():
    """Returns buffers that the next layer's gradients overwrite."""


@loses(3)
@changes(
    "    return dq, own_part(summed(dk, comm), comm, 2), own_part(summed(dv, comm), comm, 2)",
    """
    known = globals().setdefault("known", {})
    if id(comm) not in known:
        known[id(comm)] = comm, own_part(summed(dk, comm), comm, 2), own_part(summed(dv, comm), comm, 2)
    return dq, *known[id(comm)][1:]""",
)
def own_gradients__first_result():
    """Keeps the first sums of each communicator."""


@loses(3)
@changes("own_part(summed(dk, comm), comm, 2)", "own_part(summed(np.nan_to_num(dk), comm), comm, 2)")
def own_gradients__hides_nan():
    """Makes numbers of what is not a number."""


@loses(3)
@changes("own_part(summed(dk, comm), comm, 2)", "own_part(summed(dk.astype(np.float64), comm), comm, 2)")
def own_gradients__float64():
    """Leaves the sum in float64."""


@loses(3)
@changes(
    "    return dq, own_part(summed(dk, comm), comm, 2), own_part(summed(dv, comm), comm, 2)",
    """
    def by_head(array):
        return np.stack([[summed(head, comm) for head in text] for text in array])

    return dq, own_part(by_head(dk), comm, 2), own_part(by_head(dv), comm, 2)""",
)
def own_gradients__head_by_head():
    """One all-reduce for each head of each text."""


@right
@changes(
    ...,
    """
    n, me = comm.Get_size(), comm.Get_rank()
    parts = [np.stack([np.split(array, n, axis=2)[r] for array in (dk, dv)]) for r in range(n)]
    total = parts[me].copy()
    for shift in range(1, n):
        theirs = np.empty_like(total)
        comm.Sendrecv(parts[(me + shift) % n], dest=(me + shift) % n, recvbuf=theirs, source=(me - shift) % n)
        total += theirs
    return [dq.copy(), total[0], total[1]]
""",
)
def own_gradients__rank_by_rank():
    """Exchanges parts with one rank after the other."""
