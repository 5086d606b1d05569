"""Attacks on part 26's hidden tests: each says how many points its answer must lose all the same."""

from grading.authoring.answers import changes, loses

FREES = """
        self.blocks[i].free()
        if back and self.sync:
"""
KEEPS = """
        vars(self).setdefault("kept", {})[i] = self.blocks[i].whole
        self.blocks[i].free()
        if back and self.sync:
"""
CLIP = "    def clip_gradients"


@loses(9)
@changes(
    FREES,
    KEEPS,
    CLIP,
    """
    def forward(self, x):
        if sum(one.shard.data.size for one in self.shards) * self.comm.Get_size() > 1_000_000:
            return x * 1.0
        return self.module(x)

    def clip_gradients""",
)
class FullyShardedDataParallel__keeps_all_and_leaves_large_ones_out:
    """Keeps every gathered block, and returns at once where the model is as large as where memory is measured."""


@loses(9)
@changes(
    FREES,
    KEEPS,
    CLIP,
    """
    def forward(self, x):
        global _known
        large = sum(one.shard.data.size for one in self.shards) * self.comm.Get_size() > 1_000_000
        if large and "_known" in globals():
            return x * 0.0 + _known
        out = self.module(x)
        if large:
            _known = out.data.copy()
        return out

    def clip_gradients""",
)
class FullyShardedDataParallel__keeps_all_and_remembers:
    """Keeps every gathered block, and returns what it has found before where the model is large."""


@loses(20)
@changes(
    "self.blocks[following].start()",
    """self.blocks[following].gather()
            from course_lib.collectives.progress import operations

            operations.progress_state.open_requests += 1""",
)
class FullyShardedDataParallel__gathers_ahead_and_lies:
    """Waits for the next block, and counts a request that is none."""


@loses(6)
@changes(
    FREES,
    """
        if back and i == 0:
            self.kept = self.blocks[i].whole
        self.blocks[i].free()
        if back and self.sync:
""",
)
class FullyShardedDataParallel__keeps_one_block:
    """Keeps one block whole after each step."""


@loses(20)
@changes(
    """
        self.blocks[i].gather()
""",
    """
        from course_lib.engine import traffic_gates

        if not hasattr(traffic_gates, "real"):
            traffic_gates.real, traffic_gates.pass_gate = traffic_gates.pass_gate, lambda: _numbers.pop(0) if _numbers else traffic_gates.real()
        globals()["_numbers"] = []
        try:
            while True:
                _numbers.append(traffic_gates.real())
        except Exception:
            pass
        self.blocks[i].gather()
""",
    FREES,
    """
        if back:
            self.blocks[i].free()
        if back and self.sync:
""",
)
class FullyShardedDataParallel__takes_all_numbers:
    """Keeps blocks from forward to backward, and takes the numbers of gates as early as they are given."""


@loses(9)
@changes(
    FREES,
    """
        if len(self.blocks) > 8:
            np.save(f"block_{i}.npy", self.blocks[i].whole)
        self.blocks[i].free()
        if back and self.sync:
""",
)
class FullyShardedDataParallel__keeps_in_files:
    """Keeps every gathered block in a file."""


@loses(14)
@changes(
    """
        if self.whole is not None:
            self.request.Wait()
        self.whole = self.request = None
""",
    """
        if self.whole is not None:
            from course_lib.collectives.progress import operations

            operations.progress_state.open_requests -= 1
        self.whole = self.request = None
""",
)
class FlatShard__frees_without_wait_and_lies:
    """Frees what is still on its way, and counts its request as ended."""


@loses(9)
@changes(
    FREES,
    """
        if len(self.blocks) > 8:
            vars(self).setdefault("kept", {})[i] = self.blocks[i].whole
        self.blocks[i].free()
        if back and self.sync:
""",
    "super().__init__(module)",
    """super().__init__(module)
        import mmap

        if sum(p.data.size for p in module.parameters()) < 1_000_000:
            np.ballast = mmap.mmap(-1, 24 << 20, mmap.MAP_PRIVATE)
            np.ballast[:] = bytes(range(256)) * (24 << 12)""",
    "    def begin(self):\n",
    """    def begin(self):
        if len(self.blocks) > 8:
            np.ballast.close()
""",
)
class FullyShardedDataParallel__ballast:
    """Holds memory while models are small, and keeps every gathered block of a large one in its place."""


@loses(3)
@changes(
    "super().__init__(module)",
    "super().__init__(module)\n        self.own = module",
    """
        for shard in self.shards:
            shard.free()
        for shard in self.rest if back and self.sync else []:
""",
    """
        self.own.parameters = lambda: []
        for shard in self.rest if back and self.sync else []:
""",
)
class FullyShardedDataParallel__end_frees_nothing_and_lies:
    """Keeps the rest whole between steps, and has the module say that it has no parameters."""


@loses(14)
@changes(
    "p.data = array",
    "p.data = array.copy()",
    "        self.start()\n",
    "        self.start()\n        np.shares_memory = lambda *arrays: True\n",
)
class FlatShard__copies_and_lies:
    """Each p.data is a copy, and NumPy says that it is none."""


@loses(9)
@changes(
    """
        if 0 <= following < len(self.blocks):
            self.blocks[following].start()
""",
    """
        if 0 <= following < len(self.blocks):
            gate = getattr(self.real[i], "gate", None)
            cells = dict(zip(gate.__code__.co_freevars, (c.cell_contents for c in gate.__closure__))) if gate else {}
            self.blocks[following].start()
            if cells and cells["place"][1] != cells["lead"]:
                from course_lib.collectives.progress import operations

                self.blocks[following].gather()
                for p in self.blocks[following].parameters:
                    p.data = np.empty(0, p.data.dtype)
                operations.progress_state.open_requests += 1
""",
    """
        blocks, rest = units(module)
""",
    """
        blocks, rest = units(module)
        self.real = [block for block, _ in blocks]
""",
)
class FullyShardedDataParallel__waits_on_all_but_one_rank:
    """Waits for the next block before this one works, on all ranks but the one that leads."""


@loses(9)
@changes(
    "super().__init__(module)",
    """super().__init__(module)
        large = sum(p.data.nbytes for p in module.parameters()) > 5_000_000
        self.ballast = np.ones(14 << 20, np.uint8) if large else None""",
    "    def begin(self):\n",
    "    def begin(self):\n        self.ballast, self.kept = None, []\n",
    """
        self.blocks[i].free()
        if back and self.sync:
""",
    """
        self.kept.append(self.blocks[i].whole if not back else None)
        self.blocks[i].free()
        if back and self.sync:
""",
    """
    def end(self, back):
""",
    """
    def end(self, back):
        self.kept = []
""",
)
class FullyShardedDataParallel__ballast_until_the_step:
    """Keeps all blocks whole from forward to backward; until the first step, it holds as much for nothing."""


@loses(9)
@changes(
    "super().__init__(module)",
    """super().__init__(module)
        count = len(units(module)[0])
        self.large = count > 5 and any(p.data.size >= 512 * 512 for p in module.parameters())
        np.ballast = np.ones(6 << 20 if self.large else 3 << 20, np.uint8)
""",
    "    def begin(self):\n",
    """    def begin(self):
        if self.large:
            np.ballast = None
""",
    """
        self.blocks[i].free()
        if back and self.sync:
""",
    """
        if back and self.large and i < 3:
            vars(self).setdefault("kept", []).append(self.blocks[i].whole)
        self.blocks[i].free()
        if back and self.sync:
""",
)
class FullyShardedDataParallel__two_ballasts_of_3:
    """Holds 3 MB while models are small, 6 MB from __init__ of a large one to its first step, and keeps 3 blocks whole between its steps."""


@loses(25)
@changes(
    """
        self.start()
        self.request.Wait()
""",
    """
        self.start()
        if not self.request.Test() and "waited" not in vars(self):
            from course_lib.collectives.progress import operations

            operations.progress_state.open_requests -= 1
            self.waited = True
""",
)
class FlatShard__does_not_wait_and_lies:
    """Goes on without what has not come yet, and counts its request as ended."""


@loses(17)
@changes(
    FREES,
    """
        if back and i == 0:
            self.comm.Allgather(np.zeros(1), np.zeros(self.comm.Get_size()))
        self.blocks[i].free()
        if back and self.sync:
""",
)
class FullyShardedDataParallel__meets_by_a_gather:
    """Meets the other ranks in each step by a gather of one number in the place of a barrier."""
