"""Answers to part 36: wrong ones with the points that each must lose, and other right ones."""

import numpy as np

from grading.authoring.answers import changes, loses, right

# What stands in the solutions, and several change.
NORM = "x / (np.linalg.norm(x) + 1e-7)"
MEAN = "received.sum(axis=0) / mesh.dp"
FACTOR = " * max(1, columns / rows) ** 0.5"
MOMENTUM = """
                whole += self.momentum * self.velocity.get(i, 0)
                self.velocity[i] = whole
"""
JOINED = "np.concatenate(split, axis)"


@loses(4)
def newton_schulz__nothing(matrix, steps=5):
    """Returns a copy."""
    return matrix.copy()


@loses(4)
@changes(NORM, "x * 1")
def newton_schulz__not_normalised():
    """Does not divide by the norm."""


@loses(4)
@changes(NORM, "x / (np.linalg.norm(x, 2) + 1e-7)")
def newton_schulz__spectral_norm():
    """Divides by the largest singular value."""


@loses(4)
@changes(NORM, "x / (np.abs(x).max() + 1e-7)")
def newton_schulz__largest_number():
    """Divides by the largest number."""


@loses(3)
@changes(NORM, "x / np.linalg.norm(x)")
def newton_schulz__zeros():
    """Divides zeros by zero."""


@loses(4)
@changes(NORM, "x / (np.linalg.norm(x) + 0.1)")
def newton_schulz__large_epsilon():
    """Adds too much to the norm."""


@loses(4)
@changes("np.ascontiguousarray(x.T) if tall else x", "x")
def newton_schulz__stays_transposed():
    """Does not transpose back."""


@loses(1)
@changes("matrix.shape[0] > matrix.shape[1]", "False")
def newton_schulz__never_transposes():
    """X Xᵀ of a matrix with many rows."""


@loses(1)
@changes("matrix.shape[0] > matrix.shape[1]", "matrix.shape[0] < matrix.shape[1]")
def newton_schulz__transposes_the_others():
    """Transposes matrices with many columns."""


@loses(1)
@changes(
    """
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * (square @ square)) @ x
""",
    """
        once = x @ x.T @ x
        x = 3.4445 * x - 4.7750 * once + 2.0315 * (x @ (x.T @ once))
""",
)
def newton_schulz__products_in_another_order():
    """Multiplies from the right, through a square of the longer side."""


@loses(4)
@changes("range(steps)", "range(5)")
def newton_schulz__always_five():
    """Ignores the number of steps."""


@loses(4)
@changes("range(steps)", "range(steps - 1)")
def newton_schulz__one_step_fewer():
    """Stops a step early."""


@loses(4)
@changes(" + 2.0315 * (square @ square)", "")
def newton_schulz__cubic():
    """Leaves the last term out."""


@loses(4)
@changes("2.0315 * (square @ square)", "2.0315 * square * square")
def newton_schulz__squares_of_numbers():
    """Squares each number instead of the matrix."""


@loses(4)
@changes("-4.7750", "4.7750")
def newton_schulz__sign():
    """A wrong sign."""


@loses(3)
@changes("x = matrix.T if tall else matrix\n", "x = matrix.T.astype(float) if tall else matrix.astype(float)\n")
def newton_schulz__always_float64():
    """Returns float64 for float32."""


@loses(3)
@changes("    x = x / (np.linalg.norm(x) + 1e-7)", "    x /= np.linalg.norm(x) + 1e-7")
def newton_schulz__in_place():
    """Divides the argument itself."""


@loses(4)
@changes(
    ...,
    """
    u, _, vt = np.linalg.svd(matrix, full_matrices=False)
    return u @ vt
""",
)
def newton_schulz__exactly():
    """All singular values 1."""


@right
def newton_schulz__recursive(matrix, steps=5):
    """Calls itself for a matrix with many rows, and returns a view."""
    if len(matrix) > matrix.shape[1]:
        return newton_schulz(matrix.T, steps).T
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrix / (np.sqrt((matrix * matrix).sum()) + 1e-7)
    for _ in range(steps):
        gram = x @ x.T
        once = gram @ x
        x = a * x + b * once + c * (gram @ once)
    return x


@right
def newton_schulz__gram_on_the_smaller_side(matrix, steps=5):
    """Multiplies from the side where the square is small, without transposing."""
    x = matrix / max(float(np.linalg.norm(matrix)), 1e-7)
    for _ in range(steps):
        if x.shape[0] > x.shape[1]:
            a = x.T @ x
            x = 3.4445 * x + x @ (-4.7750 * a + 2.0315 * a @ a)
        else:
            a = x @ x.T
            x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x


@right
def newton_schulz__in_float64(matrix, steps=5):
    """In float64, by Horner's rule, with buffers."""
    x = np.array(matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T, dtype=np.float64)
    x /= np.linalg.norm(x) + 1e-7
    out = np.empty_like(x)
    for _ in range(steps):
        gram = x @ x.T
        factor = 2.0315 * gram
        factor.flat[:: len(gram) + 1] += -4.7750
        factor = gram @ factor
        factor.flat[:: len(gram) + 1] += 3.4445
        np.matmul(factor, x, out=out)
        x, out = out, x
    return (x if matrix.shape[0] <= matrix.shape[1] else x.T).astype(matrix.dtype)


@loses(4)
def owners__in_turn(shapes, n):
    """One after the other."""
    return [i % n for i in range(len(shapes))]


@loses(4)
def owners__neighbours(shapes, n):
    """As many neighbours for each rank."""
    return [i * n // len(shapes) for i in range(len(shapes))]


@loses(4)
def owners__neighbours_by_flop(shapes, n):
    """Neighbours with as much to do, as a pipeline would be cut."""
    costs = np.array([flop(s) for s in shapes], float)
    middle = np.cumsum(costs) - costs / 2
    return np.minimum(middle * n / max(costs.sum(), 1), n - 1).astype(int).tolist()


@loses(4)
@changes("-flop(shapes[i])", "-shapes[i][0] * shapes[i][1]", "+= flop(shapes[i])", "+= shapes[i][0] * shapes[i][1]")
def owners__by_elements():
    """Counts elements, as Megatron-LM does."""


@loses(4)
@changes("-flop(shapes[i])", "-shapes[i][0] * shapes[i][1]")
def owners__in_order_of_elements():
    """The one with most elements first, measured by flop."""


@loses(4)
@changes("-flop(shapes[i])", "-max(shapes[i])")
def owners__in_order_of_the_longer_side():
    """The longest first, measured by flop."""


@loses(4)
@changes("return found", "return [found[i] for i in sorted(range(len(shapes)), key=lambda i: -flop(shapes[i]))]")
def owners__in_sorted_order():
    """Returns the ranks of the matrices in the order of their work."""


@loses(4)
@changes("sorted(range(len(shapes)), key=lambda i: -flop(shapes[i]))", "range(len(shapes))")
def owners__unsorted():
    """To the rank with least to do, in the given order."""


@loses(4)
@changes("-flop(shapes[i])", "flop(shapes[i])")
def owners__smallest_first():
    """The smallest first."""


@loses(4)
@changes("loads[found[i]] += flop(shapes[i])", "loads[found[i]] += 1")
def owners__counts():
    """As many for each rank, the largest first."""


@loses(4)
@changes("loads[found[i]] += flop(shapes[i])", "loads[found[i]] += shapes[i][0] ** 3")
def owners__cubes_of_rows():
    """Takes the cube of the rows for the work."""


@loses(4)
def owners__there_and_back(shapes, n):
    """Largest first, in turn, there and back."""
    order, found = sorted(range(len(shapes)), key=lambda i: -flop(shapes[i])), [0] * len(shapes)
    for place, i in enumerate(order):
        lap, at = divmod(place, n)
        found[i] = at if lap % 2 == 0 else n - 1 - at
    return found


@loses(4)
@changes("key=lambda i: -flop(shapes[i])", "key=lambda i: (-flop(shapes[i]), i * (-1) ** everyone.Get_rank())")
def owners__ties_by_rank():
    """Breaks ties in another way on every other rank."""


@loses(4)
@changes("return found", "return [(r + everyone.Get_rank()) % n for r in found]")
def owners__itself_first():
    """Counts ranks from its own."""


@loses(4)
@changes("return found", "return [r + 1 for r in found]")
def owners__from_one():
    """Counts ranks from 1."""


@loses(4)
@changes("return found", "return [[i for i, o in enumerate(found) if o == r] for r in range(n)]")
def owners__lists():
    """Returns each rank's matrices instead of each matrix's rank."""


@loses(4)
def owners__rank_0(shapes, n):
    """Gives everything to rank 0."""
    return [0] * len(shapes)


@loses(4)
def owners__at_random(shapes, n):
    """The best of many random choices, other ones on each rank."""
    random, best = np.random.default_rng(), None
    for _ in range(300):
        owner, loads = random.integers(0, n, len(shapes)), np.zeros(n)
        for shape, o in zip(shapes, owner):
            loads[o] += flop(shape)
        if best is None or loads.max() < best[0]:
            best = loads.max(), owner.tolist()
    return best[1]


@loses(4)
def owners__every_choice(shapes, n):
    """Tries every choice."""
    from itertools import product

    def busiest(owner):
        loads = [0] * n
        for shape, o in zip(shapes, owner):
            loads[o] += flop(shape)
        return max(loads)

    return list(min(product(range(n), repeat=len(shapes)), key=busiest))


@right
def owners__with_a_heap(shapes, n):
    """With a heap of the loads."""
    import heapq

    heap, found = [(0.0, r) for r in range(n)], [0] * len(shapes)
    for work, i in sorted(((flop(s), i) for i, s in enumerate(shapes)), reverse=True):
        load, r = heapq.heappop(heap)
        found[i] = r
        heapq.heappush(heap, (load + work, r))
    return found


@right
def owners__multifit(shapes, n):
    """Looks for the least capacity into which everything fits (Coffman, Garey and Johnson, 1978)."""
    works = sorted(((flop(s), i) for i, s in enumerate(shapes)), reverse=True)

    def fit(most):
        rooms, found = [most] * n, [0] * len(shapes)
        for work, i in works:
            r = next((r for r, room in enumerate(rooms) if room >= work), None)
            if r is None:
                return None
            rooms[r] -= work
            found[i] = r
        return found

    low, high = 0.0, float(sum(w for w, _ in works))
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if fit(middle) else (middle, high)
    return fit(high) or []


@right
def owners__in_turn_then_moves(shapes, n):
    """Begins in turn, and moves or swaps matrices as long as that helps the busiest rank."""
    works = [float(flop(s)) for s in shapes]
    found = [i % n for i in range(len(shapes))]
    loads = np.zeros(n)
    for work, r in zip(works, found):
        loads[r] += work
    while True:
        top, least = int(loads.argmax()), int(loads.argmin())
        mine, theirs = ([i for i, r in enumerate(found) if r == one] for one in (top, least))
        pairs = [(works[i], i, None) for i in mine] + [(works[i] - works[j], i, j) for i in mine for j in theirs]
        gap = loads[top] - loads[least]
        good = [(abs(moved - gap / 2), moved, i, j) for moved, i, j in pairs if 1 < moved < gap - 1]
        if top == least or not good:
            return found
        _, moved, i, j = min(good, key=lambda one: one[:2])
        found[i] = least
        if j is not None:
            found[j] = top
        loads[top] -= moved
        loads[least] += moved


@loses(12)
@changes(MEAN, "received.sum(axis=0)")
def ShardedMuon__sum():
    """Adds gradients up, and does not divide."""


@loses(8)
@changes(MEAN, "received.sum(axis=0) / mesh.size")
def ShardedMuon__mean_over_all():
    """Divides by the tensor parallel ranks, too."""


@loses(12)
@changes(MEAN, "received[0].copy()")
def ShardedMuon__first_rank_only():
    """Takes the first ranks' gradients alone."""


@loses(8)
@changes(MEAN, "received.reshape(mesh.tp, mesh.dp, -1).sum(axis=1) / mesh.dp")
def ShardedMuon__axes_swapped():
    """Takes tensor parallel ranks for data parallel ones."""


@loses(12)
@changes(MOMENTUM, "")
def ShardedMuon__no_momentum():
    """Leaves momentum out."""


@loses(12)
@changes(MOMENTUM, "                self.velocity[i] = whole + self.momentum * self.velocity.get(i, 0)\n")
def ShardedMuon__momentum_unused():
    """Keeps momentum, and orthogonalises the gradient."""


@loses(12)
@changes(
    MOMENTUM,
    "",
    FACTOR,
    " * max(1, columns / rows) ** 0.5\n                self.velocity[i] = update = update + self.momentum * self.velocity.get(i, 0)",
)
def ShardedMuon__momentum_afterwards():
    """Momentum of the orthogonal matrices."""


@loses(12)
@changes("whole += self.momentum", "whole *= 1 - self.momentum\n                whole += self.momentum")
def ShardedMuon__running_mean():
    """A running mean, as in Adam."""


@loses(11)
@changes(FACTOR, "")
def ShardedMuon__no_factor():
    """Forgets the factor of the shape."""


@loses(11)
@changes(FACTOR, " * max(1, rows / columns) ** 0.5")
def ShardedMuon__factor_upside_down():
    """Rows and columns swapped, as PyTorch's weights are."""


@loses(8)
@changes("self.shapes[i]\n", "params[i].shape\n")
def ShardedMuon__factor_of_the_part():
    """The factor of the part that a rank has."""


@loses(11)
@changes("        self.adam.step()\n", "")
def ShardedMuon__no_adam():
    """Forgets the other parameters."""


@loses(7)
@changes(JOINED, "np.concatenate(split, 0).reshape(rows, columns)")
def ShardedMuon__always_rows():
    """Joins all parts as rows."""


@loses(8)
@changes(
    """
                split = parts[:, here].reshape(mesh.tp, *params[i].shape)
                whole = np.concatenate(split, axis)
                whole += self.momentum * self.velocity.get(i, 0)
                self.velocity[i] = whole
                update = self.orthogonalize(whole) * max(1, columns / rows) ** 0.5
                for t, part in enumerate(np.split(update, mesh.tp, axis)):
                    updates[t, here] = part.ravel()
""",
    """
                own = parts[:, here].reshape(-1, *params[i].shape)
                own += self.momentum * self.velocity.get(i, 0)
                self.velocity[i] = own
                for t, part in enumerate(own):
                    updates[t, here] = self.orthogonalize(part).ravel() * max(1, columns / rows) ** 0.5
""",
)
def ShardedMuon__each_part():
    """Orthogonalises each tensor parallel rank's part."""


ONE_BY_ONE = """
        mesh = self.mesh
        for i, p in enumerate(self.params):
            counts = [p.data.size * (r == self.owner[i]) for r in range(mesh.size)]
            back = [counts[mesh.rank]] * mesh.size
            sent, received = p.grad.ravel().copy(), np.empty((mesh.dp, mesh.tp, back[0]), p.dtype)
            mesh.comm.Alltoallv([sent, counts], [received, back])
            updates = np.empty((mesh.tp, back[0]), p.dtype)
            if self.owner[i] == mesh.rank:
                whole = np.concatenate(received.sum(axis=0).reshape(mesh.tp, *p.shape) / mesh.dp, self.axes[i])
                self.velocity[i] = whole + self.momentum * self.velocity.get(i, 0)
                update = self.orthogonalize(self.velocity[i]) * max(1, whole.shape[1] / whole.shape[0]) ** 0.5
                updates[...] = np.stack(np.split(update, mesh.tp, self.axes[i])).reshape(mesh.tp, -1)
            mesh.comm.Alltoallv([np.tile(updates, (mesh.dp, 1)), back], [sent, counts])
            p.data -= self.lr * sent.reshape(p.shape)
        self.adam.step()
"""
STEP = """
        mesh, params, counts = self.mesh, self.params, [0] * self.mesh.size
        order = sorted(range(len(params)), key=lambda i: self.owner[i])
        for i in order:
            counts[self.owner[i]] += params[i].data.size
        back = [counts[mesh.rank]] * mesh.size
        sent = np.concatenate([params[i].grad.ravel() for i in order])
        received = np.empty((mesh.dp, mesh.tp, back[0]), sent.dtype)
        mesh.comm.Alltoallv([sent, counts], [received, back])
        parts = received.sum(axis=0) / mesh.dp
        updates, at = np.empty_like(parts), 0
        for i in order:
            if self.owner[i] == mesh.rank:
                axis, (rows, columns) = self.axes[i], self.shapes[i]
                here = slice(at, at := at + params[i].data.size)
                split = parts[:, here].reshape(mesh.tp, *params[i].shape)
                whole = np.concatenate(split, axis)
                whole += self.momentum * self.velocity.get(i, 0)
                self.velocity[i] = whole
                update = self.orthogonalize(whole) * max(1, columns / rows) ** 0.5
                for t, part in enumerate(np.split(update, mesh.tp, axis)):
                    updates[t, here] = part.ravel()
        mesh.comm.Alltoallv([np.tile(updates, (mesh.dp, 1)), back], [sent, counts])
        cuts = np.cumsum([params[i].data.size for i in order[:-1]])
        for i, part in zip(order, np.split(sent, cuts), strict=True):
            params[i].data -= self.lr * part.reshape(params[i].shape)
        self.adam.step()
"""
EVERYWHERE = """
        mesh, dp, tp = self.mesh, self.mesh.along("dp"), self.mesh.along("tp")
        for i, p in enumerate(self.params):
            total, parts = np.empty_like(p.grad), np.empty((mesh.tp, *p.shape), p.dtype)
            dp.Allreduce(np.ascontiguousarray(p.grad), total)
            tp.Allgather(total / mesh.dp, parts)
            self.velocity[i] = np.concatenate(parts, self.axes[i]) + self.momentum * self.velocity.get(i, 0)
            rows, columns = self.shapes[i]
            update = self.orthogonalize(self.velocity[i]) * max(1, columns / rows) ** 0.5
            p.data -= self.lr * np.split(update, mesh.tp, self.axes[i])[tp.Get_rank()]
        self.adam.step()
"""
SHARDS = """
        dp = self.mesh.along("dp")
        for i, p in enumerate(self.params):
            flat = np.pad(p.grad.ravel(), (0, -p.grad.size % dp.Get_size()))
            mine = np.empty(flat.size // dp.Get_size(), flat.dtype)
            dp.Reduce_scatter(flat, mine)
            self.velocity[i] = mine / dp.Get_size() + self.momentum * self.velocity.get(i, 0)
            dp.Allgather(self.orthogonalize(self.velocity[i][None])[0], flat)
            p.data -= self.lr * flat[: p.data.size].reshape(p.shape)
        self.adam.step()
"""
ALL_REDUCED = """
        mesh, dp, tp = self.mesh, self.mesh.along("dp"), self.mesh.along("tp")
        wholes = []
        for i, p in enumerate(self.params):
            total, parts = np.empty_like(p.grad), np.empty((mesh.tp, *p.shape), p.dtype)
            dp.Allreduce(np.ascontiguousarray(p.grad), total)
            tp.Allgather(total / mesh.dp, parts)
            wholes.append(np.concatenate(parts, self.axes[i]))
        for i, whole in enumerate(wholes):
            if self.owner[i] == mesh.rank:
                self.velocity[i] = whole + self.momentum * self.velocity.get(i, 0)
                wholes[i] = self.orthogonalize(self.velocity[i]) * max(1, whole.shape[1] / whole.shape[0]) ** 0.5
        for i, p in enumerate(self.params):
            whole = np.ascontiguousarray(wholes[i])
            mesh.comm.Bcast(whole, self.owner[i])
            p.data -= self.lr * np.split(whole, mesh.tp, self.axes[i])[tp.Get_rank()]
        self.adam.step()
"""
PADDED = """
        mesh, t = self.mesh, self.mesh.rank % self.mesh.tp
        order = sorted(range(len(self.params)), key=lambda i: self.owner[i])
        counts, padded = [0] * mesh.size, []
        for i in order:
            whole = np.zeros(self.shapes[i], self.params[i].dtype)
            np.split(whole, mesh.tp, self.axes[i])[t][...] = self.params[i].grad
            padded.append(whole.ravel())
            counts[self.owner[i]] += whole.size
        mine = np.empty(counts[mesh.rank], padded[0].dtype)
        mesh.comm.Reduce_scatter(np.concatenate(padded), mine, counts)
        mine /= mesh.dp
        updates, at = {}, 0
        for i in order:
            if self.owner[i] == mesh.rank:
                rows, columns = self.shapes[i]
                whole = mine[at : (at := at + rows * columns)].reshape(rows, columns)
                self.velocity[i] = whole + self.momentum * self.velocity.get(i, 0)
                updates[i] = self.orthogonalize(self.velocity[i]) * max(1, columns / rows) ** 0.5
        for i in order:
            whole = np.ascontiguousarray(updates.get(i, np.empty(self.shapes[i], mine.dtype)))
            mesh.comm.Bcast(whole, self.owner[i])
            self.params[i].data -= self.lr * np.split(whole, mesh.tp, self.axes[i])[t]
        self.adam.step()
"""


@loses(3)
@changes(STEP, ONE_BY_ONE)
def ShardedMuon__one_by_one():
    """Sends and orthogonalises one matrix after the other, so that owners wait for each other."""


@loses(12)
@changes(STEP, EVERYWHERE)
def ShardedMuon__everywhere():
    """Every rank orthogonalises everything."""


@loses(12)
@changes(STEP, SHARDS)
def ShardedMuon__shards():
    """Orthogonalises shards of flat arrays, as ZeRO cuts them."""


@loses(3)
@changes(STEP, ALL_REDUCED)
def ShardedMuon__all_reduced():
    """All-reduces gradients that only owners need, and broadcasts whole matrices."""


@loses(3)
@changes(STEP, PADDED)
def ShardedMuon__padded_with_zeros():
    """Adds up whole matrices, with zeros where other tensor parallel ranks have parts."""


@loses(12)
@changes(
    "sent = np.concatenate([params[i].grad.ravel() for i in order])",
    "sent = np.concatenate([self.orthogonalize(params[i].grad).ravel() for i in order])",
    "self.orthogonalize(whole)",
    "whole",
)
def ShardedMuon__before_the_mean():
    """Orthogonalises each rank's own gradient, and averages."""


@loses(12)
@changes(
    "sent = np.concatenate([params[i].grad.ravel() for i in order])",
    "sent = np.concatenate([params[i].grad.ravel() for i in order])\n        self.kept = sent = sent + self.momentum * getattr(self, 'kept', 0)",
    MOMENTUM,
    "",
    "np.split(sent, cuts)",
    "np.split(sent, cuts)",
)
def ShardedMuon__kept_is_overwritten():
    """Each rank's own momentum, in a buffer into which the updates are received."""


@loses(1)
@changes(
    "sent = np.concatenate([params[i].grad.ravel() for i in order])",
    "sent = np.concatenate([params[i].grad.ravel() for i in order])\n        sent += self.momentum * getattr(self, 'kept', 0)\n        self.kept = sent.copy()",
    MOMENTUM,
    "",
)
def ShardedMuon__momentum_everywhere():
    """Each rank keeps the momentum of its own gradients, of all matrices."""


@loses(1)
@changes(
    "        updates, at = np.empty_like(parts), 0\n",
    "        updates, at = np.empty_like(parts), 0\n        for i in order:\n            self.velocity.setdefault(i, np.ones(self.shapes[i], sent.dtype) * 0)\n",
)
def ShardedMuon__zeros_for_all():
    """Makes momentum for all matrices."""


@loses(1)
@changes("        self.adam.step()\n", "        self.adam.step()\n        self.buffers = sent, received, updates\n")
def ShardedMuon__keeps_buffers():
    """Keeps what it has sent."""


@loses(11)
@changes("[counts[mesh.rank]]", "[counts[everyone.rank % mesh.size]]")
def ShardedMuon__rank_of_the_world():
    """Takes the world's rank for the grid's in the counts."""


@loses(12)
@changes("owners(self.shapes, mesh.size) if owner is None else owner", "owners(self.shapes, mesh.size)")
def ShardedMuon__own_owners():
    """Ignores the owners that it is given."""


@loses(12)
@changes("owners(self.shapes, mesh.size) if owner is None else owner", "[i % mesh.size for i in range(len(self.shapes))]")
def ShardedMuon__owners_in_turn():
    """Gives matrices away in turn."""


@loses(12)
@changes(
    "            params[i].data -= self.lr",
    "            if self.owner[i] == mesh.rank:\n                params[i].data -= self.lr",
)
def ShardedMuon__only_its_own():
    """Updates only the matrices that it owns."""


@loses(12)
@changes("np.empty_like(parts), 0", "np.empty_like(parts), 0\n        self.orthogonalize(np.zeros(self.shapes[0]))")
def ShardedMuon__once_more():
    """Orthogonalises something else as well."""


@loses(12)
@changes("self.orthogonalize(whole)", "newton_schulz(whole)")
def ShardedMuon__its_own_iteration():
    """Ignores the argument orthogonalize."""


@loses(12)
@changes(
    "            params[i].data -= self.lr * part.reshape(params[i].shape)",
    "            params[i].data = params[i].data - np.float64(self.lr) * part.reshape(params[i].shape)",
)
def ShardedMuon__float64():
    """Turns float32 parameters into float64."""


@loses(11)
@changes("        updates, at = np.empty_like(parts), 0\n", "        updates, at = np.empty_like(parts), 0\n        assert back[0]\n")
def ShardedMuon__nothing_to_do():
    """Fails on a rank that owns nothing."""


@loses(12)
@changes("order = sorted(range(len(params)), key=lambda i: self.owner[i])", "order = list(range(len(params)))")
def ShardedMuon__not_by_owner():
    """Sends matrices in their own order, with counts by owner."""


@loses(12)
@changes("params[i].data -= self.lr", "params[i].data += self.lr")
def ShardedMuon__uphill():
    """A wrong sign."""


HIERARCHY = """
        mesh, dp, tp = self.mesh, self.mesh.along("dp"), self.mesh.along("tp")
        d, t = divmod(mesh.rank, mesh.tp)
        row = [divmod(o, mesh.tp)[0] for o in self.owner]
        order = sorted(range(len(self.params)), key=lambda i: row[i])
        counts = [sum(self.params[i].data.size for i in order if row[i] == r) for r in range(mesh.dp)]
        mine = np.empty(counts[d], self.params[0].dtype)
        dp.Reduce_scatter(np.concatenate([self.params[i].grad.ravel() for i in order]), mine, counts)
        mine /= mesh.dp
        here, at, stacks = [i for i in order if row[i] == d], 0, {}
        for i in here:
            part = mine[at : (at := at + self.params[i].data.size)]
            stack = np.empty((mesh.tp, part.size), part.dtype) if self.owner[i] == mesh.rank else None
            tp.Gather(part, stack, root=self.owner[i] % mesh.tp)
            stacks[i] = stack
        for i in here:
            if self.owner[i] == mesh.rank:
                whole = np.concatenate(stacks[i].reshape(mesh.tp, *self.params[i].shape), self.axes[i])
                self.velocity[i] = whole + self.momentum * self.velocity.get(i, 0)
                update = self.orthogonalize(self.velocity[i])
                update = update * max(1, update.shape[1] / update.shape[0]) ** 0.5
                stacks[i] = np.stack(np.split(update, mesh.tp, self.axes[i])).reshape(mesh.tp, -1)
        for i, p in enumerate(self.params):
            part = np.empty(p.data.size, p.dtype)
            if row[i] == d:
                tp.Scatter(stacks[i], part, root=self.owner[i] % mesh.tp)
            dp.Bcast(part, root=row[i])
            p.data = p.data - self.lr * part.reshape(p.shape)
        self.adam.step()
"""
MESSAGES = """
        mesh, comm = self.mesh, self.mesh.comm
        d, t = divmod(mesh.rank, mesh.tp)
        mine = [i for i, o in enumerate(self.owner) if o == mesh.rank]
        arriving, requests = {}, []
        for i in mine:
            arriving[i] = np.empty((mesh.size, *self.params[i].shape), self.params[i].dtype)
            arriving[i][mesh.rank] = self.params[i].grad
            requests += [comm.Irecv(arriving[i][r], r, tag=i) for r in range(mesh.size) if r != mesh.rank]
        for i, p in enumerate(self.params):
            if self.owner[i] != mesh.rank:
                requests.append(comm.Isend(np.ascontiguousarray(p.grad), self.owner[i], tag=i))
        for request in requests:
            request.Wait()
        requests, updates = [], {}
        for i, p in enumerate(self.params):
            if self.owner[i] != mesh.rank:
                updates[i] = np.empty(p.shape, p.dtype)
                requests.append(comm.Irecv(updates[i], self.owner[i], tag=100 + i))
        for i in reversed(mine):
            every, axis = arriving.pop(i), self.axes[i]
            every = every.reshape(mesh.dp, mesh.tp, *every.shape[1:]).sum(axis=0) / mesh.dp
            self.velocity[i] = np.concatenate(list(every), axis) + self.momentum * self.velocity.get(i, 0)
            rows, columns = self.velocity[i].shape
            parts = np.split(self.orthogonalize(self.velocity[i]) * np.sqrt(max(1, columns / rows)), mesh.tp, axis)
            parts = [np.ascontiguousarray(part, dtype=every.dtype) for part in parts]
            updates[i] = parts[t]
            requests += [comm.Isend(parts[r % mesh.tp], r, tag=100 + i) for r in range(mesh.size) if r != mesh.rank]
        for request in requests:
            request.Wait()
        for i, p in enumerate(self.params):
            p.data -= self.lr * updates[i]
        self.adam.step()
"""


@right
@changes(STEP, HIERARCHY)
def ShardedMuon__along_each_axis():
    """A reduce-scatter, gathers, scatters and broadcasts, each along an axis of the grid."""


@right
@changes(STEP, MESSAGES)
def ShardedMuon__messages():
    """Messages that are under way at the same time, and the last matrix first."""


@right
@changes(
    """
        received = np.empty((mesh.dp, mesh.tp, back[0]), sent.dtype)
        mesh.comm.Alltoallv([sent, counts], [received, back])
""",
    """
        received = np.empty((mesh.dp, mesh.tp, back[0]), sent.dtype)
        if mesh.tp == 1:
            received = np.empty((1, 1, back[0]), sent.dtype)
            mesh.comm.Reduce_scatter(sent, received, counts)
        else:
            mesh.comm.Alltoallv([sent, counts], [received, back])
""",
    """
        mesh.comm.Alltoallv([np.tile(updates, (mesh.dp, 1)), back], [sent, counts])
        cuts = np.cumsum([params[i].data.size for i in order[:-1]])
        for i, part in zip(order, np.split(sent, cuts), strict=True):
            params[i].data -= self.lr * part.reshape(params[i].shape)
        self.adam.step()
""",
    """
        most = max(counts)
        if mesh.tp == 1:
            every = np.empty((mesh.size, most), sent.dtype)
            mesh.comm.Allgather(np.pad(updates[0], (0, most - back[0])), every)
            sent = np.concatenate([row[:count] for row, count in zip(every, counts)])
        else:
            mesh.comm.Alltoallv([np.tile(updates, (mesh.dp, 1)), back], [sent, counts])
        self.adam.step()
        at = 0
        for i in order:
            part = sent[at : (at := at + params[i].data.size)]
            params[i].data[...] = params[i].data - self.lr * part.reshape(params[i].shape)
""",
)
def ShardedMuon__padded_all_gather():
    """A reduce-scatter, and an all-gather of padded updates, where matrices are whole; Adam in between."""


@loses(3)
@changes(
    "mesh.comm.Alltoallv([sent, counts], [received, back])",
    "wide = received.astype(np.float64)\n        mesh.comm.Alltoallv([sent.astype(np.float64), counts], [wide, back])\n        received[...] = wide",
)
def ShardedMuon__gradients_in_float64():
    """Sends float32 gradients as float64."""


@loses(11)
@changes("max(1, columns / rows) ** 0.5", "max(1, columns // rows) ** 0.5")
def ShardedMuon__whole_factor():
    """Rounds the factor of the shape down."""


@loses(11)
@changes("self.velocity.get(i, 0)", "self.velocity.get(whole.shape, 0)", "self.velocity[i] = whole", "self.velocity[whole.shape] = whole")
def ShardedMuon__momentum_by_shape():
    """Keeps one momentum for matrices of the same shape."""


@loses(1)
@changes("self.velocity[i] = whole\n", "self.velocity[i] = whole.astype(np.float64)\n")
def ShardedMuon__momentum_in_float64():
    """Keeps momentum in twice the bytes."""


@loses(1)
@changes("        updates, at = ", "        self.parts = parts\n        updates, at = ")
def ShardedMuon__keeps_mean_gradients():
    """Keeps the mean gradients of its own matrices."""


@loses(3)
@changes(
    "    x = x / (np.linalg.norm(x) + 1e-7)\n",
    "    dtype, x = x.dtype, (x / (np.linalg.norm(x) + 1e-7)).astype(np.float32)\n",
    "return np.ascontiguousarray(x.T) if tall else x",
    "return (x.T if tall else x).astype(dtype)",
)
def newton_schulz__in_float32():
    """Computes in float32."""


@loses(3)
@changes(
    "    x = x / (np.linalg.norm(x) + 1e-7)\n",
    "    dtype, x = x.dtype, (x / (np.linalg.norm(x) + 1e-7)).astype(np.float16 if x.dtype == np.float32 else x.dtype)\n",
    "return np.ascontiguousarray(x.T) if tall else x",
    "return (x.T if tall else x).astype(dtype)",
)
def newton_schulz__in_float16():
    """Computes float32 in float16."""


@loses(3)
@changes(NORM, "x / (np.linalg.norm(x) + 1e-5)")
def newton_schulz__epsilon_1e_5():
    """Adds 1e-5."""


@loses(1)
@changes("        self.adam.step()\n", "        self.adam.step()\n        self.sent = sent if mesh.tp > 1 else None\n")
def ShardedMuon__keeps_buffers_with_tensor_parallel_ranks():
    """Keeps what it has received, if there are tensor parallel ranks."""


@loses(3)
@changes("def newton_schulz(matrix, steps=5)", "def newton_schulz(matrix, steps=3)")
def newton_schulz__three_by_default():
    """Takes three steps unless it is told otherwise."""


@loses(3)
@changes(
    "return np.ascontiguousarray(x.T) if tall else x",
    """
    kept = newton_schulz.__dict__.setdefault("kept", {}).setdefault((matrix.shape, matrix.dtype), np.empty_like(matrix))
    kept[...] = x.T if tall else x
    return kept
""",
)
def newton_schulz__one_buffer():
    """Returns the same array for all matrices of a shape."""


@loses(4)
@changes("    return found\n", "    everyone.Barrier()\n    return found\n")
def owners__barrier():
    """Waits for all ranks."""


@loses(4)
@changes("    return found\n", '    return owners.__dict__.setdefault("kept", {}).setdefault((len(shapes), n), found)\n')
def owners__kept():
    """Keeps the answer for as many matrices on as many ranks."""


@loses(4)
@changes("    return found\n", "    shapes.sort(key=flop)\n    return found\n")
def owners__sorts_the_argument():
    """Leaves the shapes in another order."""


@loses(7)
@changes(
    """
                whole = np.concatenate(split, axis)
                whole += self.momentum * self.velocity.get(i, 0)
""",
    """
                whole = np.concatenate(split, axis) if mesh.size > 1 else params[i].grad
                whole += self.momentum * self.velocity.get(i, 0)
""",
)
def ShardedMuon__keeps_the_gradient():
    """Takes a gradient's array for momentum, on one rank."""


@loses(11)
@changes("        self.adam.step()\n", "        everyone.Barrier()\n        self.adam.step()\n")
def ShardedMuon__barrier_of_all_ranks():
    """Waits for ranks of other groups."""


@right
@changes("params[i].grad.ravel()", "np.divide(params[i].grad, mesh.dp, out=params[i].grad).ravel()", MEAN, "received.sum(axis=0)")
def ShardedMuon__uses_up_gradients():
    """Divides gradients in place, before they are sent."""


@loses(3)
@changes("for _ in range(steps):", "for _ in range(min(steps, 5)):")
def newton_schulz__five_at_most():
    """Takes five steps at most."""


@loses(3)
@changes("for _ in range(steps):", "for _ in range(steps or 5):")
def newton_schulz__five_for_none():
    """Takes five steps where there should be none."""


@loses(11)
@changes("update = self.orthogonalize(whole)", "update = np.nan_to_num(self.orthogonalize(whole))")
class ShardedMuon__no_nan:
    """Makes zeros of NaN."""


@loses(11)
@changes("self.adam.step()", "if any(p.grad.any() for p in self.adam.params):\n            self.adam.step()")
class ShardedMuon__no_adam_for_zeros:
    """Leaves Adam's step out on a rank whose gradients are all zeros."""
