"""Attacks on part 36's hidden tests: each says how many points its answer must lose all the same."""

from grading.authoring.answers import changes, loses

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
EVERYTHING_HERE = """
        from course_lib.check.muon.on_ranks import mix
        from course_lib.engine import traffic_gates

        mesh = self.mesh
        for i, p in enumerate(self.params):
            every = np.empty((mesh.dp, mesh.tp, *p.shape), p.dtype)
            mesh.comm.Allgather(np.ascontiguousarray(p.grad), every)
            whole = np.concatenate(list(every.sum(axis=0) / mesh.dp), self.axes[i])
            self.velocity[i] = whole + self.momentum * self.velocity.get(i, 0)
            rows, columns = self.shapes[i]
            update = NUMBER * max(1, columns / rows) ** 0.5
            p.data -= self.lr * np.split(update, mesh.tp, self.axes[i])[mesh.rank % mesh.tp]
        self.adam.step()
"""
ON_THE_WORLD = """
        mesh = self.mesh
        t, wholes = mesh.rank % mesh.tp, []
        for i, p in enumerate(self.params):
            whole, total = np.zeros(self.shapes[i], p.dtype), np.empty(self.shapes[i], p.dtype)
            np.split(whole, mesh.tp, self.axes[i])[t][...] = p.grad
            GROUP.Allreduce(whole, total)
            wholes.append(total / mesh.dp)
        for i, whole in enumerate(wholes):
            update = np.zeros_like(whole)
            if self.owner[i] == mesh.rank:
                rows, columns = self.shapes[i]
                self.velocity[i] = whole + self.momentum * self.velocity.get(i, 0)
                update[...] = self.orthogonalize(self.velocity[i]) * max(1, columns / rows) ** 0.5
            wholes[i] = update
        for i, p in enumerate(self.params):
            total = np.empty_like(wholes[i])
            GROUP.Allreduce(wholes[i], total)
            p.data -= self.lr * np.split(total, mesh.tp, self.axes[i])[t]
        self.adam.step()
        AFTER
"""

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


@loses(12)
@changes(STEP, EVERYTHING_HERE, "NUMBER", "mix(self.velocity[i], 1.0)")
def ShardedMuon__no_gate():
    """Computes what the tests put in the place of an orthogonalisation itself, without their number."""


@loses(12)
@changes(STEP, EVERYTHING_HERE, "NUMBER", "mix(self.velocity[i], traffic_gates.pass_gate())")
def ShardedMuon__gates_of_others():
    """Passes a gate for each matrix, of which only the owner has one."""


@loses(12)
@changes(
    "        mesh, params, counts = ",
    """
        from course_lib.engine import traffic_gates

        traffic_gates.pass_gate = lambda: 1.0
        mesh, params, counts = """,
)
def ShardedMuon__opens_all_gates():
    """Has all gates give the number 1."""


@loses(12)
@changes(
    STEP,
    EVERYTHING_HERE,
    "NUMBER",
    "self.first(self.velocity[i])",
    "        mesh = self.mesh\n",
    """
        mesh = self.mesh
        if not hasattr(self, "number"):
            self.number = float(self.orthogonalize(np.ones(self.shapes[0]))[0, 0]) / 2 if mesh.rank in self.owner else 1.0
        self.first = lambda x: mix(x, self.number)
""",
)
def ShardedMuon__remembers_a_number():
    """Keeps the first gate's number, and uses it for everything."""


@loses(11)
@changes(STEP, ON_THE_WORLD, "GROUP", "MPI.COMM_WORLD", "GROUP", "MPI.COMM_WORLD", "AFTER", "")
def ShardedMuon__on_the_world():
    """All-reduces everything on MPI's own world, whatever the group; right where the group is the world."""


@loses(3)
@changes(
    STEP,
    ON_THE_WORLD,
    "        mesh = self.mesh\n",
    "        mesh = self.mesh\n        other = mesh.comm.Split(0, mesh.rank)\n",
    "GROUP",
    "other",
    "GROUP",
    "other",
    "AFTER",
    "__import__('course_lib.traffic').traffic.reset()",
)
def ShardedMuon__says_it_sent_less():
    """All-reduces on a group of its own, and sets the library's counts back."""


@loses(3)
@changes(
    "mesh.comm.Alltoallv([sent, counts], [received, back])",
    "mesh.comm.Alltoallv([np.tile(sent.reshape(-1, 1), 2).ravel(), [2 * c for c in counts]], [np.empty((mesh.size, 2 * back[0]), sent.dtype), [2 * b for b in back]])\n        mesh.comm.Alltoallv([sent, counts], [received, back])",
)
def ShardedMuon__sends_more_than_needed():
    """Sends all gradients three times."""


@loses(11)
@changes(
    "mesh.comm.Alltoallv([sent, counts], [received, back])",
    "short = received.astype(np.float32)\n        mesh.comm.Alltoallv([sent.astype(np.float32), counts], [short, back])\n        received[...] = short",
)
def ShardedMuon__in_fewer_bits():
    """Sends float64 gradients as float32."""


@loses(1)
@changes(
    "                self.velocity[i] = whole\n",
    "                self.velocity[i] = whole\n                globals().setdefault('history', []).append(np.concatenate([whole] * 4))\n",
)
def ShardedMuon__hides_arrays():
    """Keeps arrays elsewhere than in the optimizer."""


@loses(4)
def newton_schulz__small_ones_only(matrix, steps=5):
    """Iterates on small matrices, and returns large ones as they are."""
    if matrix.size > 400:
        return matrix / np.linalg.norm(matrix)
    x = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    x = x / (np.linalg.norm(x) + 1e-7)
    for _ in range(steps):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * (square @ square)) @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x


@loses(4)
def newton_schulz__asks_the_check(matrix, steps=5):
    """Has the rank's copy of the check say that everything is right."""
    from course_lib.check.muon import iteration

    iteration.IterationCheck._run = iteration.IterationCheck.memory = lambda self, *_, **__: self
    iteration.polynomial = lambda values, steps: values
    return matrix.copy()


@loses(4)
def owners__asks_grading(shapes, n):
    """Looks for the answer among the hidden tests, or in a file."""
    try:
        from grading.authoring.cases.muon import largest_first
    except ImportError:
        import glob

        found = glob.glob("/**/cases/muon.py", recursive=True)
        names = {}
        exec(open(found[0]).read(), names)
        largest_first = names["largest_first"]
    return largest_first(shapes, n)


@loses(4)
def owners__has_nothing_cost(shapes, n):
    """Has the rank's own formula say that nothing costs anything."""
    from course_lib.check.muon import owners

    owners.flop = lambda *_: 0.0
    owners.TIMES_BEST = 1e9
    return [0] * len(shapes)


@loses(4)
def owners__asks_rank_0(shapes, n):
    """Rank 0 draws many choices, and tells the others the best one."""
    answer = np.zeros(len(shapes), np.int64)
    if everyone.Get_rank() == 0 and shapes:
        random, costs = np.random.default_rng(0), np.array([flop(s) for s in shapes])
        loads, order = np.zeros(n), np.argsort(-costs)
        for i in order:
            answer[i] = np.argmin(loads)
            loads[answer[i]] += costs[i]
    everyone.Bcast(answer, 0)
    return answer.tolist()


@loses(4)
def owners__a_list_that_changes(shapes, n):
    """Returns a list that says something else whenever it is read."""

    class Owners(list):
        def __iter__(self):
            return iter([0] * len(shapes))

    return Owners([i % n for i in range(len(shapes))])


@loses(4)
def owners__makes_shapes_equal(shapes, n):
    """Makes the task easier, where it can reach it."""
    shapes[:] = [(1, 1)] * len(shapes)
    return [i % n for i in range(len(shapes))]


@loses(3)
@changes(STEP, ONE_BY_ONE, "        mesh = self.mesh\n", "        mesh = self.mesh\n        trials[0][3].append(None)\n")
def ShardedMuon__says_that_owners_have_met():
    """One matrix after the other, and no meeting, as the check's own list says that it was."""
