"""Attacks on part 21's hidden tests: each says how many points its answer must lose all the same."""

from grading.authoring.answers import loses


@loses(9)
def vocab_parallel_cross_entropy__gathers_by_tags(logits, labels, comm):
    """Sends all logits in the tags of messages."""
    from course_lib.collectives import calls
    from course_lib.collectives.transport import isolated
    from course_lib.collectives.transport.isolated import answers, unanswered
    from course_lib.collectives.transport.relay import store_answer

    n, words, me = comm.Get_size(), logits.shape[-1], comm.Get_rank()
    ranks = list(comm.ranks)
    mine = np.ascontiguousarray(logits.data)
    data = mine.tobytes()
    data += bytes(-len(data) % 7)
    parts = {me: mine}
    state = globals().setdefault("_c", [0])

    def go(what, payload, other):
        state[0] += 1
        call = 1_000_000 + state[0]
        unanswered.add(call)
        isolated.connection.send({"call": call, "members": ranks, "signature": what, "place": "", "peers": [other]}, payload)
        return call

    pieces = len(data) // 7
    waits = []
    for other in ranks:
        if other != ranks[me]:
            for i in range(pieces):
                go([calls.SEND, 0, 1, int.from_bytes(data[7 * i : 7 * i + 7], "little")], b"\0", other)
    for p, other in enumerate(ranks):
        if p != me:
            got = b""
            for i in range(pieces):
                call = go([calls.RECV, 0, 1, -1], b"", other)
                isolated.connection.send({"wait": call, "place": ""})
                while call not in answers:
                    store_answer(isolated.connection.receive())
                head, _ = answers.pop(call)
                got += head["tag"].to_bytes(7, "little")
            parts[p] = np.frombuffer(got[: mine.nbytes], mine.dtype).reshape(mine.shape)
    z = np.concatenate([parts[p] for p in range(n)], axis=-1)
    soft = np.exp(z - z.max(axis=-1, keepdims=True))
    most = z.max(axis=-1)
    soft /= soft.sum(axis=-1, keepdims=True)
    right = np.take_along_axis(z, labels[..., None], axis=-1)[..., 0]
    loss = (np.log(np.exp(z - most[..., None]).sum(axis=-1)) + most - right).mean()

    def backward(grad):
        whole = soft.copy()
        np.put_along_axis(whole, labels[..., None], np.take_along_axis(whole, labels[..., None], axis=-1) - 1, axis=-1)
        mine = np.split(whole, n, axis=-1)[comm.Get_rank()]
        return ((mine * (grad / labels.size)).astype(logits.dtype),)

    return Tensor.from_operation(np.asarray(loss, logits.dtype), (logits,), backward)


@loses(8)
def copy_to_group__checks_by_splits(x, comm):
    """Sends bits forward by Splits that say they carry numbers."""
    import struct

    from course_lib.collectives import calls
    from course_lib.collectives.transport import isolated
    from course_lib.collectives.transport.isolated import answers, unanswered
    from course_lib.collectives.transport.relay import store_answer

    n, me, ranks = comm.Get_size(), comm.Get_rank(), list(comm.ranks)
    state = globals().setdefault("_c", [0])

    def split(color):
        state[0] += 1
        call = 2_000_000 + state[0]
        unanswered.add(call)
        isolated.connection.send(
            {"call": call, "members": ranks, "signature": [calls.SPLIT, -1, 1, 0], "place": ""}, struct.pack("<qq", color, 0)
        )
        return call

    secret = np.random.default_rng(1000 + ranks[me]).integers(0, 2, 400)
    if n > 1:
        named = [split(int(b)) for b in secret]
        seen = []
        for call in named:
            while call not in answers:
                store_answer(isolated.connection.receive())
            _, data = answers.pop(call)
            colors = np.frombuffer(data, "<i8").reshape(n, 2)[:, 0]
            seen.append(colors >= 0)
        seen = np.array(seen)  # 400 bits of each other rank: same color as mine or not
        own = secret[:, None]
        bits = np.where(seen, own, 1 - own)
        for p, r in enumerate(ranks):
            if not np.array_equal(bits[:, p], np.random.default_rng(1000 + r).integers(0, 2, 400)):
                raise RuntimeError(f"the bits of rank {r} did not come")

    def backward(grad):
        total = np.empty(grad.shape, grad.dtype)
        comm.Allreduce(np.ascontiguousarray(grad), total)
        return (total,)

    return Tensor.from_operation(x.data, (x,), backward)


@loses(8)
def copy_to_group__serial_block(x, comm):
    """Puts a block on one process, which needs no operators, in the place of the split one."""
    from course_lib.gpt.model import block

    class Serial(block.Block):
        def __init__(self, width, heads, random, comm=None, *operators, dtype=np.float32, **others):
            super().__init__(width, heads, random, dtype=dtype)
            self.group = comm

        def named_parameters(self, prefix=""):
            dims = {"qkv.weight": 1, "out.weight": 0, "up.weight": 1, "down.weight": 0}
            for name, p in super().named_parameters(prefix):
                if name in dims and self.group is not None:
                    q = Tensor(p.data)
                    q.grad = np.split(p.grad, self.group.Get_size(), axis=dims[name])[self.group.Get_rank()]
                    p = q
                yield name, p

    block.Block = Serial if block.Block.__name__ == "Block" else block.Block
    return x


@loses(6)
def reduce_from_group__serial_block(x, comm):
    """Puts a block on one process, which needs no operators, in the place of the split one."""
    from course_lib.gpt.model import block

    class Serial(block.Block):
        def __init__(self, width, heads, random, comm=None, *operators, dtype=np.float32, **others):
            super().__init__(width, heads, random, dtype=dtype)
            self.group = comm

        def named_parameters(self, prefix=""):
            dims = {"qkv.weight": 1, "out.weight": 0, "up.weight": 1, "down.weight": 0}
            for name, p in super().named_parameters(prefix):
                if name in dims and self.group is not None:
                    q = Tensor(p.data)
                    q.grad = np.split(p.grad, self.group.Get_size(), axis=dims[name])[self.group.Get_rank()]
                    p = q
                yield name, p

    block.Block = Serial if block.Block.__name__ == "Block" else block.Block
    return x


@loses(8)
def copy_to_group__operators_on_the_way_in(x, comm):
    """Puts right operators into the block that it is given to, and is wrong itself."""
    from course_lib.gpt.model import block

    class Mended(block.Block):
        def __init__(self, width, heads, random, comm=None, enter=block.no_communication, leave=block.no_communication, *others, **named):
            def mended(x, comm):
                def backward(grad):
                    total = np.empty(grad.shape, grad.dtype)
                    comm.Allreduce(np.ascontiguousarray(grad), total)
                    return (total,)

                return Tensor.from_operation(x.data, (x,), backward)

            super().__init__(width, heads, random, comm, mended, leave, *others, **named)

    block.Block = Mended if block.Block.__name__ == "Block" else block.Block
    return x


@loses(8)
def copy_to_group__seeds_seen(x, comm):
    """Notes the seed that a rank is given, computes the whole block behind it, and hands that out as the block's outcome."""
    from course_lib.check.tensor import tensor_parallel
    from course_lib.gpt.model import Block, kinds

    def known(block, norms, given, grad):
        whole = Block(
            block.norm1.weight.shape[0], block.heads * block.comm.Get_size(), np.random.default_rng(known.seed), dtype=given.dtype
        )
        out, grad_x, grads = known.outcome(whole, norms, given, grad)
        n, i = block.comm.Get_size(), block.comm.Get_rank()
        for name, _, kind in kinds(whole):
            grads[name] = grads[name] if kind.dim is None else np.split(grads[name], n, axis=kind.dim)[i]
        return out, grad_x, grads

    def noting(seed=None):
        known.seed = seed
        return noting.before(seed)

    if np.random.default_rng.__name__ != "noting":
        known.outcome, noting.before = tensor_parallel.outcome, np.random.default_rng
        np.random.default_rng = noting

        def profile(frame, event, arg):
            if event == "call" and frame.f_code.co_name == "through_block":
                frame.f_globals["outcome"] = known

        import sys

        sys.setprofile(profile)
    return x


@loses(8)
def copy_to_group__one_rank_a_group(x, comm):
    """Has every Split of the world give a group of this rank alone, where nothing is to be added."""

    class Alone:
        def __getattr__(self, name):
            return getattr(everyone.Split(color=everyone.Get_rank()), name)

    class World:
        def __getattr__(self, name):
            return (lambda **_: Alone()) if name == "Split" else getattr(comm, name)

    get_ipython().user_ns["everyone"] = World()
    return Tensor.from_operation(x.data, (x,), lambda grad: (grad,))


@loses(8)
def copy_to_group__adds_what_it_has(x, comm):
    """Takes its own gradient times the number of ranks for the sum, in every backward."""
    if not hasattr(Tensor, "plain"):
        Tensor.plain = Tensor.backward

        def backward(self, grad=None):
            Tensor.plain(self, grad * comm.Get_size() if grad is not None and grad.ndim else grad)

        Tensor.backward = backward
    return Tensor.from_operation(x.data, (x,), lambda grad: (grad,))


@loses(5)
def copy_to_group__exchanges_where_nobody_counts(x, comm):
    """Sends all to all ranks each way, where what an operator sends is not looked at."""
    n = comm.Get_size()
    counted = x.data.ndim != 3 or (n == 2 and x.dtype == np.float32)

    def waste(array):
        if not counted:
            comm.Allgather(np.ascontiguousarray(array), np.empty((n, *array.shape), array.dtype))

    waste(x.data)

    def backward(grad):
        waste(grad)
        total = np.empty(grad.shape, grad.dtype)
        comm.Allreduce(np.ascontiguousarray(grad), total)
        return (total,)

    return Tensor.from_operation(x.data, (x,), backward)
