"""Attacks on part 34's hidden tests: each says how many points its answer must lose all the same."""

from grading.authoring.answers import changes, loses

# What stands in the solutions, and several change.
DATA = """
        self.data = np.zeros((*shape[:2], blocks * block_size, *shape[2:]), dtype)
"""
SUMMED = """
        comm.Allreduce(block.out(attend(q, k, v)), total)
        x = x + total
        comm.Allreduce(block.mlp(x), total)
        x = x + total
"""
EXCHANGE = """
    every = np.empty((comm.Get_size(), *mine.shape))
    comm.Allgather(mine, every)
"""
SENT = """
        for i, part in enumerate(np.split(cache.data[:, :, slots], len(target), 3)):
            comm.Send(np.ascontiguousarray(part), target[i])
"""
RECEIVED = """
        part = np.empty_like(cache.data[:, :, slots], order="C")
        comm.Recv(part, source)
        cache.data[:, :, slots] = part
"""
INIT = """
        self.cache, self.most = cache, most
"""


@loses(6)
@changes(
    DATA,
    """
        class Pretends:
            def __init__(self, shape, dtype):
                self.shape, self.dtype, self.nbytes = shape, np.dtype(dtype), int(np.prod(shape)) * np.dtype(dtype).itemsize

            def __setitem__(self, key, value):
                pass

            def __getitem__(self, key):
                return np.zeros((len(key[2]), *self.shape[3:]), self.dtype)

        self.data = Pretends((*shape[:2], blocks * block_size, *shape[2:]), dtype)
""",
)
def PagedCache__pretends_to_have_data():
    """Says that it has the array."""


@loses(6)
@changes(
    DATA,
    """
        one = np.zeros((*shape[:2], 1, *shape[2:]), dtype)
        wide = (*shape[:2], blocks * block_size, *shape[2:])
        self.data = np.lib.stride_tricks.as_strided(one, wide, (*one.strides[:2], 0, *one.strides[3:]))
""",
)
def PagedCache__one_slot_for_all():
    """Has a single place in memory, with a stride of 0."""


@loses(14)
@changes(
    ...,
    """
    def __init__(self, blocks, block_size, shape, dtype=np.float32):
        self.blocks, self.block_size, self.dealt, self.owned = blocks, block_size, 0, {}
        self.data = np.zeros((*shape[:2], blocks * block_size, *shape[2:]), dtype)

    def allocate(self, number, tokens):
        self.owned.setdefault(number, []).extend(range(self.dealt, self.dealt + tokens))
        self.dealt += tokens
        return True

    def append(self, number):
        return self.allocate(number, 1)

    def free(self, number):
        self.owned.pop(number, None)

    def slots(self, number):
        return np.array(self.owned.get(number, []), int) % (self.blocks * self.block_size)
""",
)
def PagedCache__round_and_round():
    """Deals slots out in a ring, and hopes that the old texts are gone."""


@loses(4)
@changes(
    SUMMED,
    """
        for summand in (lambda: block.out(attend(q, k, v)), lambda: block.mlp(x)):
            half = summand().astype(np.float32 if x.dtype == np.float64 else np.float16)
            found = np.empty((comm.Get_size(), *half.shape), half.dtype)
            comm.Allgather(half.view(np.uint8), found.view(np.uint8))
            x = x + found.astype(x.dtype).sum(axis=0)
""",
)
def prefill__in_half_the_bits():
    """Rounds the summands, to have bytes left for a gather."""


@loses(4)
@changes(
    SUMMED,
    """
        import tempfile

        for name, summand in (("out", lambda: block.out(attend(q, k, v))), ("mlp", lambda: block.mlp(x))):
            place = f"{tempfile.gettempdir()}/{name}-{layer}"
            np.save(f"{place}-{comm.Get_rank()}.npy", summand())
            comm.Barrier()
            x = x + sum(np.load(f"{place}-{r}.npy") for r in range(comm.Get_size()))
            comm.Barrier()
""",
)
def prefill__in_files():
    """Adds up what the ranks leave in files."""


@loses(4)
@changes(
    SUMMED,
    """
        from course_lib import traffic

        every = np.empty((comm.Get_size(), *x.shape), x.dtype)
        for summand in (lambda: block.out(attend(q, k, v)), lambda: block.mlp(x)):
            comm.Allgather(summand(), every)
            x = x + every.sum(axis=0)
        for entry in traffic.entries():
            traffic.counters(entry.ranks).clear()
        traffic.entries = lambda: []
""",
)
def prefill__clears_the_counts():
    """Gathers all summands, and clears the rank's own count of it."""


@loses(5)
@changes(
    ...,
    """
    n, whole = comm.Get_size(), {}
    for name, mine in sorted(model.weights.items()):
        kind = name.split(".")[1]
        dim = {"qkv": 1, "up": 1, "out": 0, "down": 0}.get(kind)
        every = np.empty((n, *mine.shape), mine.dtype)
        if dim is not None:
            comm.Allgather(np.ascontiguousarray(mine), every)
            whole[name] = np.concatenate(every, axis=dim)
    kept = np.empty((n, *cache.data.shape), cache.data.dtype)
    comm.Allgather(np.ascontiguousarray(cache.data), kept)
    kept = np.concatenate(kept, axis=3)
    slots, last = [cache.slots(t.number) for t in texts], [cache.slots(t.number)[-1] for t in texts]
    x = model.embed([t.tokens[-1] for t in texts], [len(t.tokens) - 1 for t in texts])
    from course_lib.gpt.serving.model import ServingBlock

    mine = slice(comm.Get_rank() * model.heads, (comm.Get_rank() + 1) * model.heads)
    for layer, block in enumerate(model.blocks):
        whole_block = ServingBlock(block.weights | {k.split(".", 1)[1]: w for k, w in whole.items() if k.startswith(f"{layer + 1}.")}, model.heads * n)
        q, k, v = whole_block.qkv(x)
        kept[layer, 0, last], kept[layer, 1, last] = k, v
        cache.data[layer, 0, last], cache.data[layer, 1, last] = k[:, mine], v[:, mine]
        seen = [attend(q[[i]], kept[layer, 0, own], kept[layer, 1, own]) for i, own in enumerate(slots)]
        x = x + whole_block.out(np.concatenate(seen))
        x = x + whole_block.mlp(x)
    return model.logits(x)
""",
)
def decode__with_all_weights():
    """Gathers the weights and the cache, and computes alone."""


@loses(5)
@changes(
    """
    slots = [cache.slots(text.number) for text in texts]
""",
    """
    kept = globals().setdefault("_kept", {})
    slots = [cache.slots(text.number) for text in texts]
""",
    "q, keys[last], values[last] = block.qkv(x)",
    "q, k, v = block.qkv(x)\n        for i, t in enumerate(texts):\n            kept.setdefault((id(block), t.number), []).append((k[i], v[i]))",
    "seen = paged_attention(q, keys, values, slots)",
    "seen = np.concatenate([attend(q[[i]], *map(np.array, zip(*kept[id(block), t.number]))) for i, t in enumerate(texts)])",
)
def decode__a_cache_of_its_own():
    """Keeps keys and values in a global dict."""


@loses(3)
@changes(
    EXCHANGE,
    """
    from mpi4py import MPI

    every = np.empty((MPI.COMM_WORLD.Get_size(), *logits.shape), logits.dtype)
    MPI.Intracomm.Allgather(MPI.COMM_WORLD, np.ascontiguousarray(logits), every)
    return np.concatenate(every, axis=1).argmax(axis=1)
""",
)
def next_token__on_the_world():
    """Gathers the logits on MPI's own world, behind the communicator's back."""


@loses(3)
@changes(
    EXCHANGE,
    """
    from course_lib.collectives import calls
    from course_lib.collectives.calls import Call

    mine = np.ascontiguousarray(logits)
    whole = np.empty((comm.Get_size(), *mine.shape), mine.dtype)
    comm.transport.run(Call(calls.ALLGATHER, mine.dtype.num, mine.size, send=mine, recv=whole))
    return np.concatenate(whole, axis=1).argmax(axis=1)
""",
)
def next_token__with_the_transport():
    """Gathers the logits with the transport, below the communicator that counts."""


@loses(3)
@changes(
    EXCHANGE,
    """
    other = comm.Split(0, comm.Get_rank())
    whole = np.empty((comm.Get_size(), *logits.shape), logits.dtype)
    for row in range(len(logits)):
        part = np.empty((comm.Get_size(), logits.shape[1]), logits.dtype)
        other.Allgather(np.ascontiguousarray(logits[row]), part)
        whole[:, row] = part
    return np.concatenate(whole, axis=1).argmax(axis=1)
""",
)
def next_token__on_another_group():
    """Gathers the logits on a group of its own, row by row."""


@loses(8)
@changes(
    INIT,
    """
        large = PagedCache(100 * cache.blocks, cache.block_size, (1, 2, 1, 1))
        for name in ("allocate", "append", "free", "slots"):
            setattr(cache, name, getattr(large, name))
        self.cache, self.most = cache, most
""",
)
def Scheduler__a_larger_cache():
    """Takes the slots of a cache that is a hundred times as large."""


@loses(8)
@changes(
    INIT,
    """
        self.cache, self.most = cache, 10**6
        large = PagedCache(100 * cache.blocks, cache.block_size, (1, 2, 1, 1))
        for name in ("allocate", "append", "free"):
            setattr(cache, name, getattr(large, name))
        cache.slots = lambda number: large.slots(number) % (cache.blocks * cache.block_size)
""",
)
def Scheduler__slots_that_wrap_round():
    """Takes the slots of a larger cache, modulo the size of the real one, for any number of texts."""


@loses(8)
@changes(
    "decode = list(self.running)",
    "for text in self.running:\n            text.limit = 1\n        decode = list(self.running)",
)
def Scheduler__ends_texts_early():
    """Sets each text's limit to 1, so that all are done soon."""


@loses(4)
@changes(
    SENT,
    """
        import tempfile

        for i, part in enumerate(np.split(cache.data[:, :, slots], len(target), 3)):
            np.save(f"{tempfile.gettempdir()}/handed-{target[i]}.npy", part)
""",
    RECEIVED,
    """
        import tempfile

        comm.Barrier()
        cache.data[:, :, slots] = np.load(f"{tempfile.gettempdir()}/handed-{comm.Get_rank()}.npy")
        return
""",
    "slots = cache.slots(number)",
    "slots = cache.slots(number)\n    if comm.Get_rank() not in target and comm.Get_rank() != source:\n        comm.Barrier()",
)
def hand_over__in_files():
    """Leaves the parts in files."""


@loses(4)
@changes(
    "comm.Send(np.ascontiguousarray(part), target[i])",
    "comm.Send(np.ascontiguousarray(part).astype(np.float16).view(np.uint16), target[i])",
    'part = np.empty_like(cache.data[:, :, slots], order="C")',
    "part = np.empty(cache.data[:, :, slots].shape, np.uint16)",
    "cache.data[:, :, slots] = part",
    "cache.data[:, :, slots] = part.view(np.float16)",
)
def hand_over__in_half_the_bits():
    """Rounds keys and values to 16 bits."""
