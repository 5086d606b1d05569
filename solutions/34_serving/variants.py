"""Answers to part 34: wrong ones with the points that each must lose, and other right ones."""

from grading.authoring.answers import changes, loses, right

# What stands in the solutions, and several change.
MORE = "more = -(-(length + tokens) // self.block_size) - len(table)"
TABLE = "table = table + [self.unused.pop() for _ in range(more)]"
FREE = "self.unused += self.owned.pop(number, ([], 0))[0]"
DATA = "self.data = np.zeros((*shape[:2], blocks * block_size, *shape[2:]), dtype)"
SHORT = """
        if more > len(self.unused):
            return False
"""
WRITTEN = "cache.data[layer][:, slots] = k, v"
ATTENTION = """
        comm.Allreduce(block.out(attend(q, k, v)), total)
        x = x + total
"""
MLP = """
        comm.Allreduce(block.mlp(x), total)
        x = x + total
"""
LOGITS = """
    return model.logits(x[-1:])[0]
"""
SUMS = """
        comm.Allreduce(block.out(attend(q, k, v)), total)
        x = x + total
        comm.Allreduce(block.mlp(x), total)
        x = x + total
"""
KEPT = "q, keys[last], values[last] = block.qkv(x)"
SEEN = """
        seen = paged_attention(q, keys, values, slots)
"""
EMBEDDED = "x = model.embed([t.tokens[-1] for t in texts], [len(t.tokens) - 1 for t in texts])"
LAST = "last = [own[-1] for own in slots]"
PAIR = "mine = np.stack([logits.max(axis=1), words], axis=1).astype(np.float64)"
WORDS = "words = logits.argmax(axis=1) + comm.Get_rank() * logits.shape[1]"
WINNER = "return every[every[:, :, 0].argmax(axis=0), range(len(mine)), 1].astype(int)"
REFUSED = """
        if text.prompt + text.limit > self.cache.blocks * self.cache.block_size:
            raise ValueError(f"{text.prompt} + {text.limit} tokens are too many")
"""
LEAVE = """
                self.cache.free(text.number)
                texts.remove(text)
"""
DONE = """
        for texts in self.running, self.waiting:
"""
GROW = """
        for text in list(self.running):
            while text in self.running and not self.cache.append(text.number):
                self.waiting.insert(0, self.running.pop())
                self.cache.free(self.waiting[0].number)
        decode = list(self.running)
"""
ADMIT = """
        while self.waiting and len(self.running) < self.most:
            text = self.waiting[0]
            if not self.cache.allocate(text.number, len(text.tokens)):
                break
            self.running.append(self.waiting.pop(0))
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


@loses(14)
@changes(MORE, "more = (length + tokens) // self.block_size - len(table)")
def PagedCache__rounds_down():
    """Gives no block for a rest of tokens."""


@loses(14)
@changes(FREE, "self.owned.pop(number, None)")
def PagedCache__leaks():
    """Forgets a text, and its blocks."""


@loses(14)
@changes(FREE, "self.unused += self.owned.get(number, ([], 0))[0]")
def PagedCache__keeps_the_table():
    """Gives blocks back, and still has them."""


@loses(14)
@changes(FREE, "self.unused += 2 * self.owned.pop(number, ([], 0))[0]")
def PagedCache__gives_back_twice():
    """Blocks are free twice, so that two texts get them."""


@loses(11)
@changes(
    FREE,
    "self.unused += self.owned.get(number, ([], 0))[0]\n        self.owned[number] = self.owned.get(number, ([], 0))[0], 0",
    "more = -(-(length + tokens)",
    "table = table if length else []\n        more = -(-(length + tokens)",
)
def PagedCache__free_twice():
    """Forgets the tokens of a text, but not its blocks: a second free gives them back again."""


@loses(6)
@changes(DATA, "self.data = np.zeros((*shape[:2], blocks * block_size, *shape[2:]))")
def PagedCache__in_float64():
    """Takes twice the bytes."""


@loses(6)
@changes(DATA, "self.data = np.zeros((*shape[:2], (blocks + 1) * block_size, *shape[2:]), dtype)")
def PagedCache__a_block_too_many():
    """Has a block that nobody uses."""


@loses(6)
@changes("self.unused, self.owned", "self.copy = np.ones_like(self.data)\n        self.unused, self.owned")
def PagedCache__a_copy():
    """Keeps a second array of the same size."""


@loses(14)
@changes("return (first + np.arange(self.block_size)).ravel()[:length]", "return (first + np.arange(self.block_size)).ravel()")
def PagedCache__whole_blocks():
    """Counts the empty places of the last block as slots."""


@loses(14)
@changes("first = np.array(table, int)", "first = np.array(sorted(table), int)")
def PagedCache__sorted_blocks():
    """Sorts the blocks, so that earlier tokens move when a text grows."""


@loses(14)
@changes(SHORT, "")
def PagedCache__no_check():
    """Takes blocks that are not there."""


@loses(9)
@changes("return self.allocate(number, 1)", "self.allocate(number, 1)")
def PagedCache__append_returns_nothing():
    """A missing return."""


@loses(6)
@changes(
    ...,
    """
    def __init__(self, blocks, block_size, shape, dtype=np.float32):
        self.blocks, self.block_size = blocks, block_size
        self.data = np.zeros((*shape[:2], blocks * block_size, *shape[2:]), dtype)
        self.unused, self.owned = list(range(blocks * block_size)), {}

    def allocate(self, number, tokens):
        if tokens > len(self.unused):
            return False
        self.owned[number] = self.owned.get(number, []) + [self.unused.pop() for _ in range(tokens)]
        return True

    def append(self, number):
        return self.allocate(number, 1)

    def free(self, number):
        self.unused += self.owned.pop(number, [])

    def slots(self, number):
        return np.array(self.owned.get(number, []), int)
""",
)
def PagedCache__without_blocks():
    """Gives out single slots: all fits, but a text's keys are scattered."""


@right
@changes(
    ...,
    """
    def __init__(self, blocks, block_size, shape, dtype=np.float32):
        layers, two, heads, size = shape
        self.blocks, self.block_size = blocks, block_size
        self.data = np.empty((layers, two, blocks * block_size, heads, size), dtype)
        self.owner = np.full(blocks, -1)
        self.held = {}

    def allocate(self, number, tokens):
        free = np.flatnonzero(self.owner < 0)
        need = (tokens + self.block_size - 1) // self.block_size
        if need > len(free):
            return False
        self.owner[free[:need]] = number
        places = [block * self.block_size + i for block in free[:need] for i in range(self.block_size)]
        self.held[number] = places[:tokens], places[tokens:]
        return True

    def append(self, number):
        used, left = self.held[number]
        if not left:
            free = np.flatnonzero(self.owner < 0)
            if not len(free):
                return False
            self.owner[free[0]] = number
            left.extend(free[0] * self.block_size + i for i in range(self.block_size))
        used.append(left.pop(0))
        return True

    def free(self, number):
        self.owner[self.owner == number] = -1
        self.held.pop(number, None)

    def slots(self, number):
        return np.array(self.held[number][0] if number in self.held else [], dtype=int)
""",
)
def PagedCache__owners():
    """Notes the owner of each block, and each text's slots."""


@right
@changes(
    "self.unused, self.owned = list(range(blocks)), {}",
    "self.unused, self.owned = set(range(blocks)), {}",
    FREE,
    "self.unused |= set(self.owned.pop(number, ([], 0))[0])",
)
def PagedCache__a_set():
    """Keeps free blocks in a set."""


@right
@changes(
    ...,
    """
    def __init__(self, blocks, block_size, shape, dtype=np.float32):
        self.blocks, self.block_size = blocks, block_size
        self.data = np.zeros(shape[:2] + (blocks * block_size,) + shape[2:], dtype)
        self.tables, self.counts, self.next = {}, {}, [*range(1, blocks), -1]
        self.head, self.left = 0, blocks

    def _take(self):
        block, self.head = self.head, self.next[self.head]
        self.left -= 1
        return block

    def allocate(self, number, tokens):
        if -(-tokens // self.block_size) > self.left:
            return False
        self.tables[number], self.counts[number] = [], 0
        for _ in range(tokens):
            self.append(number)
        return True

    def append(self, number):
        if self.counts[number] % self.block_size == 0:
            if not self.left:
                return False
            self.tables[number].append(self._take())
        self.counts[number] += 1
        return True

    def free(self, number):
        self.counts.pop(number, 0)
        for block in self.tables.pop(number, ()):
            self.next[block], self.head = self.head, block
            self.left += 1

    def slots(self, number):
        count, size = self.counts.get(number, 0), self.block_size
        return np.array([self.tables[number][i // size] * size + i % size for i in range(count)], int)
""",
)
def PagedCache__a_linked_list():
    """Keeps free blocks in a linked list."""


@loses(4)
@changes(WRITTEN, "pass")
def prefill__keeps_nothing():
    """Leaves the cache as it is."""


@loses(4)
@changes(WRITTEN, "cache.data[layer][0, slots] = k")
def prefill__only_keys():
    """Keeps no values."""


@loses(4)
@changes(WRITTEN, "cache.data[layer][:, slots] = v, k")
def prefill__values_first():
    """Keeps values where keys belong."""


@loses(4)
@changes(WRITTEN, "cache.data[layer][:, : len(x)] = k, v")
def prefill__first_slots():
    """Takes the first slots of the cache, whose ever they are."""


@loses(4)
@changes(WRITTEN, "cache.data[0][:, slots] = k, v")
def prefill__one_layer():
    """Keeps all layers in the place of the first one."""


@loses(4)
@changes(WRITTEN, "cache.data[layer][:, np.sort(slots)] = k, v")
def prefill__sorted_slots():
    """Keeps tokens in the order of the slots' numbers."""


@loses(4)
@changes(
    ATTENTION,
    """
        x = x + block.out(attend(q, k, v))
""",
)
def prefill__no_sum_of_attention():
    """Adds this rank's summand only."""


@loses(4)
@changes(
    MLP,
    """
        x = x + block.mlp(x)
""",
)
def prefill__no_sum_of_mlp():
    """Adds this rank's summand of the MLP only."""


@loses(4)
@changes(
    ATTENTION,
    """
        summand = block.out(attend(q, k, v))
""",
    MLP,
    """
        comm.Allreduce(summand + block.mlp(x), total)
        x = x + total
""",
)
def prefill__one_sum_per_layer():
    """Runs attention and the MLP side by side, with one sum for both."""


@loses(4)
@changes(
    MLP,
    """
        every = np.empty((comm.Get_size(), *x.shape), x.dtype)
        comm.Allgather(block.mlp(x), every)
        x = x + every.sum(axis=0)
""",
)
def prefill__gathers_summands():
    """Gathers the summands, and adds by itself: n / 2 times the bytes."""


@loses(4)
@changes(LOGITS, "    return model.logits(x[:1])[0]\n")
def prefill__first_logits():
    """Returns what follows the first token."""


@loses(4)
@changes(LOGITS, "    return model.logits(x[-1:])\n")
def prefill__an_axis_too_many():
    """Returns (1, words)."""


@loses(4)
@changes("range(len(text.tokens)))", "range(1, 1 + len(text.tokens)))")
def prefill__positions_from_one():
    """Counts positions from 1."""


@loses(4)
@changes("attend(q, k, v)", "np.concatenate([attend(q[[i]], k, v) for i in range(len(q))])")
def prefill__not_causal():
    """Lets each token see the later ones."""


@loses(4)
@changes(
    LOGITS,
    """
    every = np.empty((comm.Get_size(), model.logits(x).shape[1]), x.dtype)
    comm.Allgather(model.logits(x[-1:])[0], every)
    return every[comm.Get_rank()]
""",
)
def prefill__gathers_logits():
    """Gathers all logits, though nobody needs them."""


@right
@changes(
    "x = model.embed(text.tokens, range(len(text.tokens)))",
    "count = len(text.tokens)\n    x = model.embed(np.array(text.tokens), np.arange(count))",
    WRITTEN,
    "for token, slot in enumerate(slots):\n            cache.data[layer, 0, slot] = k[token]\n            cache.data[layer, 1, slot] = v[token]",
)
def prefill__token_by_token():
    """Writes each token by itself."""


@right
@changes(
    ATTENTION,
    """
        own = cache.data[layer][:, slots]
        comm.Allreduce(block.out(attend(q, own[0], own[1])), total)
        x += total
""",
    MLP,
    """
        comm.Allreduce(block.mlp(x), total)
        x += total
""",
)
def prefill__reads_back():
    """Attends to what it has written."""


@right
@changes(
    MLP,
    """
        request = comm.Iallreduce(block.mlp(x), total)
        request.Wait()
        x = x + total
""",
    LOGITS,
    "    return model.logits(x)[-1]\n",
)
def prefill__nonblocking():
    """Uses a nonblocking sum, and computes all logits."""


@loses(5)
@changes(EMBEDDED, "x = model.embed([t.tokens[-1] for t in texts], [len(t.tokens) for t in texts])")
def decode__next_position():
    """Takes the position after the last one."""


@loses(5)
@changes(EMBEDDED, "x = model.embed([t.tokens[-1] for t in texts], range(len(texts)))")
def decode__position_in_the_batch():
    """Takes a text's place in the batch for its position."""


@loses(5)
@changes(EMBEDDED, "x = model.embed([t.tokens[0] for t in texts], [len(t.tokens) - 1 for t in texts])")
def decode__first_token():
    """Runs the first token again."""


@loses(5)
@changes(SEEN, "        seen = np.concatenate([attend(q[[i]], keys[own[:-1]], values[own[:-1]]) for i, own in enumerate(slots)])\n")
def decode__not_itself():
    """A token does not see itself."""


@loses(5)
@changes(
    KEPT,
    "q, k, v = block.qkv(x)",
    SEEN,
    """
        seen = np.concatenate([attend(q[[i]], keys[own], values[own]) for i, own in enumerate(slots)])
        keys[last], values[last] = k, v
""",
)
def decode__keeps_too_late():
    """Writes after attention."""


@loses(5)
@changes(
    KEPT,
    "q, k, v = block.qkv(x)",
    SEEN,
    """
        def grown(kept, own, new):
            return np.concatenate([kept[own[:-1]], new])

        seen = np.concatenate([attend(q[[i]], grown(keys, own, k[[i]]), grown(values, own, v[[i]])) for i, own in enumerate(slots)])
""",
)
def decode__keeps_nothing():
    """Attends to the new token, and does not keep it."""


@loses(5)
@changes(LAST, "last = [slots[0][-1]] * len(texts)")
def decode__one_slot_for_all():
    """Writes all new tokens into the first text's slot."""


@loses(5)
@changes(
    SEEN,
    """
        every = np.concatenate(slots)
        seen = np.concatenate([attend(q[[i]], keys[every], values[every]) for i in range(len(texts))])
""",
)
def decode__sees_other_texts():
    """Each text sees all others in the batch."""


@loses(5)
@changes(
    SEEN,
    """
        longest = max(map(len, slots))
        padded = np.array([[*own, *[own[-1]] * (longest - len(own))] for own in slots])
        seen = np.concatenate([attend(q[[i]], keys[own], values[own]) for i, own in enumerate(padded)])
""",
)
def decode__padded_without_a_mask():
    """Pads short texts with their last token, which they then see many times."""


@loses(5)
@changes(SEEN, "        seen = np.concatenate([attend(q[[i]], values[own], keys[own]) for i, own in enumerate(slots)])\n")
def decode__keys_for_values():
    """Takes values for keys."""


@loses(5)
@changes(
    MLP,
    """
        x = x + block.mlp(x)
""",
)
def decode__no_sum_of_mlp():
    """Adds this rank's summand of the MLP only."""


@loses(5)
@changes(
    MLP,
    """
        every = np.empty((comm.Get_size(), *x.shape), x.dtype)
        comm.Allgather(block.mlp(x), every)
        x = x + every.sum(axis=0)
""",
)
def decode__gathers_summands():
    """Gathers the summands, and adds by itself: n / 2 times the bytes."""


@loses(5)
@changes(
    ...,
    """
    found = []
    for text in texts:
        own = cache.slots(text.number)
        x = model.embed(text.tokens[-1:], [len(text.tokens) - 1])
        total = np.empty_like(x)
        for (keys, values), block in zip(cache.data, model.blocks, strict=True):
            q, keys[own[-1:]], values[own[-1:]] = block.qkv(x)
            comm.Allreduce(block.out(attend(q, keys[own], values[own])), total)
            x = x + total
            comm.Allreduce(block.mlp(x), total)
            x = x + total
        found.append(model.logits(x)[0])
    return np.array(found)
""",
)
def decode__one_by_one():
    """Runs text by text, and so reads all weights for each."""


@loses(5)
@changes(
    ...,
    """
    return np.array([prefill(model, text, cache, comm) for text in texts])
""",
)
def decode__prefills_again():
    """Runs whole texts, and does not use the cache."""


@right
@changes(
    SEEN,
    """
        longest = max(map(len, slots))
        seen = []
        for i, own in enumerate(slots):
            scores = np.full((model.heads, longest), -np.inf)
            scores[:, : len(own)] = np.einsum("hs,phs->hp", q[i], keys[own]) / np.sqrt(model.size)
            chances = np.exp(scores - scores.max(axis=1, keepdims=True))
            chances = (chances / chances.sum(axis=1, keepdims=True))[:, : len(own)]
            seen.append(np.einsum("hp,phs->hs", chances, values[own])[None].astype(x.dtype))
        seen = np.concatenate(seen)
""",
)
def decode__padded_with_a_mask():
    """Pads short texts, and gives the padding no weight."""


@right
@changes(
    "for (keys, values), block in zip(cache.data, model.blocks, strict=True):",
    "for layer, block in enumerate(model.blocks):\n        keys, values = cache.data[layer, 0], cache.data[layer, 1]",
    KEPT,
    "q, k, v = block.qkv(x)\n        for i, slot in enumerate(last):\n            keys[slot], values[slot] = k[i], v[i]",
)
def decode__slot_by_slot():
    """Writes each text's token by itself."""


@right
@changes(SEEN, "        seen = np.concatenate([attend(q[[i]], keys[own], values[own]) for i, own in enumerate(slots)])\n")
def decode__text_by_text():
    """Attends to the slots of one text after the other."""


@right
@changes(
    SEEN,
    """
        seen = []
        for i, text in enumerate(texts):
            own = cache.slots(text.number)
            seen.append(attend(q[i : i + 1], keys.take(own, axis=0), values.take(own, axis=0)))
        seen = np.concatenate(seen)
""",
    "return model.logits(x)",
    "return np.ascontiguousarray(model.logits(x))",
)
def decode__takes():
    """Looks the slots up again in each layer."""


@loses(3)
@changes(WORDS, "words = logits.argmax(axis=1)")
def next_token__own_number():
    """Takes the number within the rank."""


@loses(3)
@changes(WORDS, "words = logits.argmax(axis=1) + comm.Get_rank() * logits.shape[0]")
def next_token__wrong_offset():
    """Counts texts instead of words."""


@loses(3)
@changes(
    ...,
    """
    every = np.empty((comm.Get_size(), *logits.shape), logits.dtype)
    comm.Allgather(np.ascontiguousarray(logits), every)
    return np.concatenate(every, axis=1).argmax(axis=1)
""",
)
def next_token__gathers_logits():
    """Gathers all logits."""


@loses(3)
@changes(WINNER, "winner = len(every) - 1 - every[::-1, :, 0].argmax(axis=0)\n    return every[winner, range(len(mine)), 1].astype(int)")
def next_token__last_rank_wins():
    """Of equal logits on two ranks, takes the last one."""


@loses(3)
@changes(WORDS, "words = (comm.Get_rank() + 1) * logits.shape[1] - 1 - logits[:, ::-1].argmax(axis=1)")
def next_token__last_word_wins():
    """Of equal logits on a rank, takes the last one."""


@loses(3)
@changes("range(len(mine)), 1].astype(int)", "range(len(mine)), 1]")
def next_token__floats():
    """Returns floats."""


@loses(3)
@changes("every = np.empty((comm.Get_size(), *mine.shape))\n    comm.Allgather(mine, every)", "every = mine[None]")
def next_token__alone():
    """Asks nobody."""


@loses(3)
@changes(
    "every = np.empty((comm.Get_size(), *mine.shape))\n    comm.Allgather(mine, every)",
    "every = np.zeros((comm.Get_size(), *mine.shape))\n    comm.Gather(mine, every)",
)
def next_token__only_rank_0():
    """Only rank 0 learns the word."""


@loses(3)
@changes(
    ...,
    """
    best, word = np.empty(len(logits)), np.empty(len(logits))
    mine = logits.max(axis=1).astype(float)
    comm.Allreduce(mine, best, op=MAX)
    own = np.where(mine == best, logits.argmax(axis=1) + comm.Get_rank() * logits.shape[1], 0.0)
    comm.Allreduce(own, word)
    return word.astype(int)
""",
    "def next_token(",
    "from mpi4py.MPI import MAX\n\n\ndef next_token(",
)
def next_token__adds_up_words():
    """Adds up the words of all ranks that have the largest logit."""


@loses(3)
@changes(PAIR, "mine = np.stack([np.abs(logits).max(axis=1), words], axis=1).astype(np.float64)")
def next_token__largest_magnitude():
    """Compares magnitudes."""


@loses(3)
@changes(PAIR, "mine = np.stack([np.maximum(logits.max(axis=1), 0), words], axis=1).astype(np.float64)")
def next_token__at_least_zero():
    """Takes negative logits for 0."""


@loses(3)
@changes(
    WORDS,
    "words = []\n    for row in logits:\n        words.append(int(row.argmax()) + comm.Get_rank() * logits.shape[1])\n        row[row.argmax()] += 1",
)
def next_token__changes_logits():
    """Changes the logits."""


@right
@changes(
    ...,
    """
    from mpi4py import MPI

    best, word = np.empty(len(logits)), np.empty(len(logits), np.int64)
    mine = logits.max(axis=1).astype(np.float64)
    comm.Allreduce(mine, best, op=MPI.MAX)
    own = np.where(mine == best, logits.argmax(axis=1) + comm.Get_rank() * logits.shape[1], 2**40)
    comm.Allreduce(own, word, op=MPI.MIN)
    return word
""",
)
def next_token__two_reductions():
    """The largest logit, then the smallest word that has it."""


@right
@changes(
    ...,
    """
    n, r = comm.Get_size(), comm.Get_rank()
    mine = np.stack([logits.max(axis=1), logits.argmax(axis=1) + r * logits.shape[1]]).astype(float)
    pairs = {r: mine}
    passed = mine
    for step in range(1, n):
        received = np.empty_like(passed)
        comm.Sendrecv(passed, (r + 1) % n, recvbuf=received, source=(r - 1) % n)
        pairs[(r - step) % n] = passed = received
    best = pairs[0]
    for i in range(1, n):
        best = np.where(pairs[i][0] > best[0], pairs[i], best)
    return best[1].astype(np.int64)
""",
)
def next_token__in_a_ring():
    """Passes pairs round a ring."""


@right
@changes(
    "every = np.empty((comm.Get_size(), *mine.shape))\n    comm.Allgather(mine, every)",
    "sent = np.tile(mine.ravel(), comm.Get_size())\n    flat = np.empty_like(sent)\n    comm.Alltoall(sent, flat)\n"
    "    every = flat.reshape(-1, *mine.shape)",
)
def next_token__all_to_all():
    """Sends the pair to each rank."""


@loses(5)
@changes(REFUSED, "")
def Scheduler__refuses_nobody():
    """Takes texts that never fit."""


@loses(5)
@changes("if text.prompt + text.limit > ", "if text.prompt > ")
def Scheduler__only_prompts_are_too_long():
    """Takes a text that fits, but will not when it has grown."""


@loses(5)
@changes("        decode = list(self.running)\n", "        decode = list(self.running)[:: 1 - 2 * (everyone.Get_rank() == 1)]\n")
def Scheduler__own_order():
    """Decodes in another order on rank 1."""


@loses(5)
@changes(
    "        decode = list(self.running)\n",
    "        decode = sorted(self.running, key=lambda text: hash((everyone.Get_rank(), text.number)))\n",
)
def Scheduler__order_by_hash():
    """Decodes in the order of a number that differs from rank to rank."""


@loses(3)
@changes("while self.waiting and len(self.running) < self.most:", "while self.waiting and not decode and len(self.running) < self.most:")
def Scheduler__static():
    """Fills a batch only when the last one is done."""


@loses(3)
@changes(
    "if not self.cache.allocate(",
    "own = [*self.running, text]\n            need = sum(-(-(t.prompt + t.limit) // self.cache.block_size) for t in own)\n"
    "            if need > self.cache.blocks or not self.cache.allocate(",
)
def Scheduler__reserves():
    """Admits a text only if all that it may become fits."""


@loses(3)
@changes("len(self.running) < self.most:", "len(self.running) < min(self.most, 1):")
def Scheduler__one_at_a_time():
    """Runs one text after the other."""


@loses(8)
@changes(LEAVE, "                texts.remove(text)\n")
def Scheduler__never_frees():
    """Texts that are done keep their blocks."""


@loses(8)
@changes("                self.cache.free(self.waiting[0].number)\n", "")
def Scheduler__preempted_keep_their_blocks():
    """Preempts, and frees nothing."""


@loses(5)
@changes(
    ADMIT,
    """
        for text in list(self.waiting):
            if len(self.running) < self.most and self.cache.allocate(text.number, len(text.tokens)):
                self.waiting.remove(text)
                self.running.append(text)
""",
)
def Scheduler__first_that_fits():
    """Admits whoever fits: a long text waits until the stream of short ones ends."""


@loses(5)
@changes("text = self.waiting[0]", "text = self.waiting[-1]", "self.waiting.pop(0))", "self.waiting.pop())")
def Scheduler__newest_first():
    """Admits the newest text first."""


@loses(5)
@changes(
    GROW,
    """
        for text in list(self.running):
            while text in self.running and not self.cache.append(text.number):
                oldest = self.running.pop(0)
                self.waiting.insert(0, oldest)
                self.cache.free(oldest.number)
        decode = list(self.running)
        decode = [text for text in decode if len(self.cache.slots(text.number)) == len(text.tokens)]
""",
)
def Scheduler__preempts_the_oldest():
    """The oldest text gives way."""


@loses(8)
@changes(
    GROW,
    """
        decode = []
        for text in self.running:
            self.cache.append(text.number)
            decode.append(text)
""",
)
def Scheduler__ignores_a_full_cache():
    """Decodes texts that got no slot."""


@loses(8)
@changes(
    GROW,
    """
        got = [text for text in self.running if self.cache.append(text.number)]
        decode = list(self.running)
""",
    "return self.running[len(decode) :], decode",
    "return self.running[len(decode) :], got",
)
def Scheduler__pauses():
    """Texts without a slot pause, with all their blocks, until nobody can go on."""


@loses(8)
@changes("self.cache.allocate(text.number, len(text.tokens))", "self.cache.allocate(text.number, text.prompt)")
def Scheduler__only_the_prompt():
    """Gives a preempted text slots for its prompt only."""


@loses(8)
@changes("while self.waiting and len(self.running) < self.most:", "while self.waiting:")
def Scheduler__any_number():
    """Has no largest batch."""


@loses(8)
@changes(DONE, "        for texts in (self.running,):\n")
def Scheduler__serves_who_has_gone():
    """Admits texts whose client went away while they waited."""


@loses(8)
@changes("while text in self.running and not self.cache.append(text.number):", "while text in self.running and False:")
def Scheduler__no_append():
    """Asks for no slot for the new token."""


@loses(8)
@changes("return self.running[len(decode) :], decode", "return decode, self.running[len(decode) :]")
def Scheduler__the_wrong_way_round():
    """Returns the texts to decode first."""


@loses(8)
@changes("return self.running[len(decode) :], decode", "return self.running[len(decode) :], list(self.running)")
def Scheduler__twice():
    """Decodes texts in the step of their prefill."""


@loses(8)
@changes(
    "return self.running[len(decode) :], decode", "prefill = self.running[len(decode) :]\n        return prefill, [] if prefill else decode"
)
def Scheduler__prefill_alone():
    """Lets all others rest while something is prefilled, although each has a slot for its next token."""


@right
@changes(
    ...,
    """
    def __init__(self, cache, most):
        from collections import deque

        self.cache, self.most = cache, most
        self.waiting, self.running = deque(), {}

    def add(self, text):
        size = self.cache.block_size
        if -(-(text.prompt + text.limit) // size) > self.cache.blocks:
            raise ValueError("too long")
        self.waiting.append(text)

    def next_batch(self):
        for number, text in list(self.running.items()):
            if text.done:
                del self.running[number]
                self.cache.free(number)
        prefill, decode = [], []
        order = list(self.running.values())
        while order:
            text = order.pop(0)
            got = self.cache.append(text.number)
            while not got and order:
                victim = order.pop()
                del self.running[victim.number]
                self.cache.free(victim.number)
                self.waiting.appendleft(victim)
                got = self.cache.append(text.number)
            if got:
                decode.append(text)
            else:
                del self.running[text.number]
                self.cache.free(text.number)
                self.waiting.appendleft(text)
        while self.waiting and len(self.running) < self.most:
            if self.waiting[0].done:
                self.waiting.popleft()
            elif self.cache.allocate(self.waiting[0].number, len(self.waiting[0].tokens)):
                text = self.waiting.popleft()
                self.running[text.number] = text
                prefill.append(text)
            else:
                break
        return prefill, decode
""",
)
def Scheduler__with_a_deque():
    """Keeps running texts in a dict, and those that wait in a deque."""


@right
@changes(
    GROW,
    """
        self.running.sort(key=lambda text: self.order[text.number])
        for text in list(self.running):
            while text in self.running and not self.cache.append(text.number):
                youngest = max(self.running, key=lambda text: self.order[text.number])
                self.running.remove(youngest)
                self.cache.free(youngest.number)
                self.waiting.append(youngest)
        self.waiting.sort(key=lambda text: self.order[text.number])
        decode = list(self.running)
""",
    "        self.waiting.append(text)\n",
    "        self.order[text.number] = len(self.order)\n        self.waiting.append(text)\n",
    "self.cache, self.most = cache, most",
    "self.cache, self.most, self.order = cache, most, {}",
)
def Scheduler__by_order_of_arrival():
    """Sorts by arrival."""


@right
@changes(
    "return self.running[len(decode) :], decode",
    "return tuple(self.running[len(decode) :]), tuple(reversed(decode))",
)
def Scheduler__tuples():
    """Returns tuples, the youngest first."""


@loses(4)
@changes(
    SENT,
    """
        for r in target:
            comm.Send(np.ascontiguousarray(cache.data[:, :, slots]), r)
""",
    RECEIVED,
    """
        layers, two, _, heads, size = cache.data.shape
        whole = np.empty((layers, two, len(slots), heads * len(target), size), cache.data.dtype)
        comm.Recv(whole, source)
        cache.data[:, :, slots] = np.split(whole, len(target), axis=3)[target.index(comm.Get_rank())]
""",
)
def hand_over__all_heads_to_all():
    """Sends all heads to each rank."""


@loses(4)
@changes(
    ...,
    """
    slots, rank = cache.slots(number), comm.Get_rank()
    count = np.array([len(slots), cache.data.shape[3]])
    comm.Bcast(count, root=source)
    layers, two, _, _, size = cache.data.shape
    whole = np.empty((layers, two, int(count[0]), int(count[1]), size), cache.data.dtype)
    if rank == source:
        whole[...] = cache.data[:, :, slots]
    comm.Bcast(whole, root=source)
    if rank in target:
        cache.data[:, :, slots] = np.split(whole, len(target), axis=3)[target.index(rank)]
""",
)
def hand_over__broadcasts():
    """Broadcasts everything."""


@loses(4)
@changes("comm.Send(np.ascontiguousarray(part), target[i])", "comm.Send(np.ascontiguousarray(part), sorted(target)[i])")
def hand_over__in_rank_order():
    """Gives the first heads to the lowest rank."""


@loses(4)
@changes(
    "np.split(cache.data[:, :, slots], len(target), 3)",
    "[cache.data[:, :, slots][:, :, :, i :: len(target)] for i in range(len(target))]",
)
def hand_over__every_other_head():
    """Deals heads out one by one."""


@loses(4)
@changes(
    SENT,
    """
        for i, part in enumerate(np.split(cache.data[:, :, slots], len(target), 3)):
            comm.Send(slots, target[i])
            comm.Send(np.ascontiguousarray(part), target[i])
""",
    RECEIVED,
    """
        theirs = np.empty_like(slots)
        comm.Recv(theirs, source)
        part = np.empty_like(cache.data[:, :, slots], order="C")
        comm.Recv(part, source)
        cache.data[:, :, theirs % cache.data.shape[2]] = part
""",
)
def hand_over__into_the_sources_slots():
    """Writes where the text is on the source."""


@loses(4)
@changes("cache.data[:, :, slots] = part", "cache.data[:, :1, slots] = part[:, :1]")
def hand_over__only_keys():
    """Keeps the keys only."""


@loses(4)
@changes("cache.data[:, :, slots] = part", "cache.data[-1:, :, slots] = part[-1:]")
def hand_over__one_layer():
    """Keeps the last layer only."""


@loses(4)
@changes(
    SENT,
    """
        for i, part in enumerate(np.split(cache.data, len(target), axis=3)):
            comm.Send(np.array([part.shape[2]]), target[i])
            comm.Send(np.ascontiguousarray(part), target[i])
            comm.Send(slots, target[i])
""",
    RECEIVED,
    """
        count, theirs = np.empty(1, int), np.empty_like(slots)
        comm.Recv(count, source)
        layers, two, _, heads, size = cache.data.shape
        part = np.empty((layers, two, int(count[0]), heads, size), cache.data.dtype)
        comm.Recv(part, source)
        comm.Recv(theirs, source)
        cache.data[:, :, slots] = part[:, :, theirs]
""",
)
def hand_over__the_whole_cache():
    """Sends all blocks of the cache, also those of other texts."""


@loses(4)
@changes(
    SENT,
    """
        comm.Send(np.ascontiguousarray(cache.data[:, :, slots]), target[0])
""",
    RECEIVED,
    """
        layers, two, _, heads, size = cache.data.shape
        i, n = target.index(comm.Get_rank()), len(target)
        whole = np.empty((layers, two, len(slots), heads * n, size), cache.data.dtype)
        comm.Recv(whole, target[i - 1] if i else source)
        if i + 1 < n:
            comm.Send(whole, target[i + 1])
        cache.data[:, :, slots] = np.split(whole, n, axis=3)[i]
""",
)
def hand_over__along_a_chain():
    """Sends everything to the first rank, which passes it on."""


@loses(4)
@changes(
    "comm.Send(np.ascontiguousarray(part), target[i])",
    "comm.Send(np.ascontiguousarray(part).astype(np.float64), target[i])",
    'part = np.empty_like(cache.data[:, :, slots], order="C")',
    "part = np.empty(cache.data[:, :, slots].shape)",
)
def hand_over__in_float64():
    """Sends twice the bytes of float32."""


@loses(4)
@changes("cache.data[:, :, slots] = part", "cache.data[:, :, : len(slots)] = part")
def hand_over__into_the_first_slots():
    """Writes into the first slots of the cache."""


@loses(4)
@changes("comm.Send(np.ascontiguousarray(part), target[i])", "comm.Isend(np.ascontiguousarray(part), target[i])")
def hand_over__does_not_wait():
    """Starts to send, and does not wait for the end."""


@loses(4)
@changes("comm.Recv(part, source)", "comm.Recv(part)")
def hand_over__from_any_rank():
    """Receives from any rank: a message of the next call may be the first one."""


@right
@changes(
    "comm.Send(np.ascontiguousarray(part), target[i])",
    "comm.Send(np.ascontiguousarray(part), target[i], tag=number)",
    "comm.Recv(part, source)",
    "comm.Recv(part, tag=number)",
)
def hand_over__by_tag():
    """Receives from any rank, but only this text."""


@right
@changes(
    SENT,
    """
        for layer in cache.data:
            for kind in layer:
                for i, part in enumerate(np.split(kind[slots], len(target), axis=1)):
                    comm.Send(np.ascontiguousarray(part), target[i])
""",
    RECEIVED,
    """
        for layer in cache.data:
            for kind in layer:
                part = np.empty((len(slots), *kind.shape[1:]), kind.dtype)
                comm.Recv(part, source)
                kind[slots] = part
""",
)
def hand_over__layer_by_layer():
    """Sends keys and values of each layer by themselves."""


@right
@changes(
    SENT,
    """
        parts = [np.ascontiguousarray(p) for p in np.split(cache.data[:, :, slots], len(target), 3)]
        for request in [comm.Isend(part, r) for part, r in zip(parts, target, strict=True)]:
            request.Wait()
""",
    RECEIVED,
    """
        part = np.empty((*cache.data.shape[:2], len(slots), *cache.data.shape[3:]), cache.data.dtype)
        comm.Irecv(part, source).Wait()
        cache.data[:, :, slots] = part
""",
)
def hand_over__nonblocking():
    """Sends to all ranks at once."""


@right
@changes(
    SENT,
    """
        heads = cache.data.shape[3] // len(target)
        for token in slots:
            for i, r in enumerate(target):
                comm.Send(cache.data[:, :, token, i * heads : (i + 1) * heads].copy(), r)
""",
    RECEIVED,
    """
        for token in slots:
            part = np.empty(cache.data[:, :, token].shape, cache.data.dtype)
            comm.Recv(part, source)
            cache.data[:, :, token] = part
""",
)
def hand_over__token_by_token():
    """Sends each token by itself."""


@loses(6)
@changes(
    "data = np.zeros((*shape[:2], blocks * block_size, *shape[2:]), dtype)",
    "data = np.zeros((*shape[:2], blocks * block_size, *shape[2:]), np.float32)",
)
def PagedCache__ignores_the_dtype():
    """Has float32, whatever it is asked for."""


@loses(6)
@changes(
    "return (first + np.arange(self.block_size)).ravel()[:length]", "return (first + np.arange(self.block_size)).ravel()[:length].tolist()"
)
def PagedCache__slots_in_a_list():
    """Returns a list of slots."""


@loses(6)
@changes(
    "return (first + np.arange(self.block_size)).ravel()[:length]",
    "return np.array([b * self.block_size + i for b in table for i in range(self.block_size)][:length])",
)
def PagedCache__no_slots_are_floats():
    """Returns float64 for a text without tokens."""


@loses(14)
@changes(
    "self.owned.pop(number, ([], 0))[0]",
    "self.owned.get(number, ([], 0))[0]\n        self.owned[number] = [], -min(1, self.owned.get(number, ([], 0))[1])",
    "return (first + np.arange(self.block_size)).ravel()[:length]",
    "return (first + np.arange(self.block_size)).ravel()[: max(length, 0)]",
)
def PagedCache__a_number_only_once():
    """Gives a text that comes again too many slots."""


@loses(3)
@changes(
    "    comm.Allgather(mine, every)\n",
    "    for i in range(len(mine)):\n        row = np.empty((comm.Get_size(), 2))\n        comm.Allgather(mine[i], row)\n        every[:, i] = row\n",
)
def next_token__text_by_text():
    """Makes an exchange for each text."""


@loses(3)
@changes("axis=1).astype(np.float64)", "axis=1).astype(np.float32)", "mine.shape))", "mine.shape), np.float32)")
def next_token__rounds_to_float32():
    """Compares float64 logits in float32."""


@loses(5)
@changes(
    "        if text.prompt + text.limit >",
    "        self.waiting.append(text)\n        if text.prompt + text.limit >",
    'are too many")\n        self.waiting.append(text)',
    'are too many")',
)
def Scheduler__refuses_and_lets_wait():
    """Refuses a text, and still has it wait."""


@loses(4)
@changes("comm.Send(", "everyone.Send(", "comm.Recv(part", "everyone.Recv(part")
def hand_over__messages_on_everyone():
    """Sends to ranks of the world."""


@loses(4)
@changes(
    ...,
    """
    slots = cache.slots(number)
    if everyone.Get_rank() == source:
        for i, part in enumerate(np.split(cache.data[:, :, slots], len(target), 3)):
            everyone.Send(np.ascontiguousarray(part), target[i])
    elif everyone.Get_rank() in target:
        part = np.empty_like(cache.data[:, :, slots], order="C")
        everyone.Recv(part, source)
        cache.data[:, :, slots] = part
""",
)
def hand_over__all_on_everyone():
    """Takes everyone in place of comm."""


@loses(14)
@changes(
    "self.unused, self.owned = list(range(blocks)), {}",
    "self.unused = list(range(blocks))",
    "    def __init__(self, blocks",
    "    owned = {}\n\n    def __init__(self, blocks",
)
def PagedCache__one_table_for_all_caches():
    """Has the tables in the class."""


@loses(8)
@changes(
    "self.waiting, self.running = [], []",
    "pass",
    "    def __init__(self, cache",
    "    waiting, running = [], []\n\n    def __init__(self, cache",
)
def Scheduler__one_queue_for_all():
    """Has its lists in the class."""


@loses(6)
@changes(
    "first = np.array(table, int)[:, None] * self.block_size",
    "first = np.array(table, int)[:, None]",
    "np.arange(self.block_size)",
    "np.arange(self.block_size) * self.blocks",
)
def PagedCache__places_before_blocks():
    """Takes place × blocks + block for a slot."""


@loses(6)
@changes("return (first + np.arange(self.block_size))", "return (first + np.arange(self.block_size)[::-1])")
def PagedCache__blocks_backwards():
    """Fills each block from its end."""


@loses(3)
@changes(
    "return every[every[:, :, 0].argmax(axis=0), range(len(mine)), 1].astype(int)",
    "return every[every[:, :, 0].argmax(axis=0), range(len(mine)), 1].astype(int).squeeze()",
)
def next_token__squeezes():
    """Returns a number without an axis for a single text."""


@loses(6)
@changes(
    ...,
    """
    def __init__(self, blocks, block_size, shape, dtype=np.float32):
        self.blocks, self.block_size = blocks, block_size
        self.data = np.zeros((*shape[:2], blocks * block_size, *shape[2:]), dtype)
        self.unused, self.tables, self.counts = list(range(blocks)), {}, {}

    def allocate(self, number, tokens):
        need = -(-tokens // self.block_size)
        if need > len(self.unused):
            return False
        self.tables[number], self.counts[number] = [self.unused.pop() for _ in range(need)], tokens
        return True

    def append(self, number):
        if (self.counts[number] + 1) % self.block_size == 1:
            if not self.unused:
                return False
            self.tables[number].append(self.unused.pop())
        self.counts[number] += 1
        return True

    def free(self, number):
        self.unused += self.tables.pop(number, [])
        self.counts.pop(number, None)

    def slots(self, number):
        table, size = self.tables.get(number, []), self.block_size
        return np.array([b * size + i for b in table for i in range(size)], int)[: self.counts.get(number, 0)]
""",
)
def PagedCache__a_remainder_of_one():
    """Takes a new block when the remainder is 1, which it never is with blocks of one token."""


@loses(6)
@changes(
    "self.unused, self.owned = list(range(blocks)), {}",
    "self.unused, self.owned = list(range(blocks)), {}\n        self.buffer = np.empty(blocks * block_size, int)",
    "return (first + np.arange(self.block_size)).ravel()[:length]",
    "self.buffer[:length] = (first + np.arange(self.block_size)).ravel()[:length]\n        return self.buffer[:length]",
)
def PagedCache__one_buffer_for_all_slots():
    """Returns the slots of all texts in the same array."""


@loses(6)
@changes(
    "return (first + np.arange(self.block_size)).ravel()[:length]",
    "return (first + np.arange(self.block_size)).ravel()[:length].astype(np.uint16)",
)
def PagedCache__short_integers():
    """Slots of 16 bits."""


@loses(4)
@changes("slots, total =", "everyone.Barrier()\n    slots, total =")
def prefill__barrier_of_everyone():
    """Waits for all ranks."""


@loses(4)
@changes(
    SUMS,
    """
        comm.Allreduce(np.concatenate([block.out(row[None]) for row in attend(q, k, v)]), total)
        x = x + total
        comm.Allreduce(np.concatenate([block.mlp(row[None]) for row in x]), total)
        x = x + total
""",
)
def prefill__matrices_token_by_token():
    """Multiplies token by token: reads all weights for each."""


@loses(4)
@changes("q, k, v = block.qkv(x)", "q, k, v = block.qkv(x)[0], block.qkv(x)[1], block.qkv(x)[2]")
def prefill__three_times():
    """Computes queries, keys and values three times."""


@loses(4)
@changes("text.tokens, range(", "np.array(text.tokens, np.uint8), range(")
def prefill__bytes():
    """Tokens of 8 bits."""


@loses(4)
@changes(
    "x = model.embed(text.tokens",
    "tokens = [text.tokens.pop(0) for _ in list(text.tokens)]\n    x = model.embed(tokens",
    "range(len(text.tokens)))",
    "range(len(tokens)))",
)
def prefill__empties_the_text():
    """Takes the tokens out of the text."""


@loses(4)
@changes("enumerate(model.blocks)", "enumerate(model.blocks[:12])")
def prefill__twelve_blocks():
    """At most 12 blocks."""


@loses(5)
@changes(
    KEPT,
    "parts = [block.qkv(x[[i]]) for i in range(len(texts))]\n        q = np.concatenate([p[0] for p in parts])\n        keys[last], values[last] = np.concatenate([p[1] for p in parts]), np.concatenate([p[2] for p in parts])",
    "comm.Allreduce(block.out(seen), total)",
    "comm.Allreduce(np.concatenate([block.out(seen[[i]]) for i in range(len(texts))]), total)",
    "comm.Allreduce(block.mlp(x), total)",
    "comm.Allreduce(np.concatenate([block.mlp(x[[i]]) for i in range(len(texts))]), total)",
)
def decode__text_by_text_but_the_sums():
    """Reads all weights for each text; only the sums are for all texts."""


@loses(5)
@changes(KEPT, "q = block.qkv(x)[0]\n        keys[last], values[last] = block.qkv(x)[1:]")
def decode__twice():
    """Computes the queries, and then keys and values."""


@loses(5)
@changes(
    "    slots = [cache.slots(text.number) for text in texts]",
    "    slots = [cache.slots(text.number) for text in texts[:8]]\n    texts = texts[:8]",
)
def decode__eight_texts():
    """At most eight texts."""


@loses(5)
@changes("    return model.logits(x)", "    while texts:\n        texts.pop()\n    return model.logits(x)")
def decode__empties_the_list():
    """Empties the list of texts."""


@loses(3)
@changes(
    "mine = np.stack([logits.max(axis=1), words], axis=1)",
    "words = words.astype(np.uint16)\n    mine = np.stack([logits.max(axis=1), words], axis=1)",
)
def next_token__short_words():
    """Words of 16 bits."""


@loses(3)
@changes("mine = np.stack([logits.max(axis=1), words], axis=1)", "mine = np.stack([np.maximum(logits.max(axis=1), -1e9), words], axis=1)")
def next_token__at_least_minus_a_billion():
    """Starts from -1e9, not -inf."""


@loses(3)
@changes(
    "return every[every[:, :, 0].argmax(axis=0), range(len(mine)), 1].astype(int)",
    """kept = globals().setdefault("_kept", {}).setdefault(len(mine), np.empty(len(mine), int))
    kept[:] = every[every[:, :, 0].argmax(axis=0), range(len(mine)), 1]
    return kept""",
)
def next_token__one_buffer():
    """Returns the same array for each batch of this size."""


@loses(5)
@changes("if text.prompt + text.limit > ", "if text.prompt + text.limit - 1 > ")
def Scheduler__the_last_token_needs_no_slot():
    """Admits a text of one token too many."""


@loses(5)
@changes("len(self.running) < self.most:", "len(self.running) < max(self.most, 2):")
def Scheduler__at_least_two():
    """Two at least."""


@loses(4)
@changes("slots = cache.slots(number)", "slots = globals().setdefault('_slots', {}).setdefault(number, cache.slots(number))")
def hand_over__slots_of_the_first_time():
    """Keeps the slots of a number."""


@loses(4)
@changes("    slots = cache.slots(number)\n", "    everyone.Barrier()\n    slots = cache.slots(number)\n")
def hand_over__barrier_of_everyone():
    """Waits for all ranks."""


@loses(4)
@changes(
    SENT,
    """
        parts = np.split(cache.data[:, :, slots], len(target), 3)
        while target:
            comm.Send(np.ascontiguousarray(parts.pop(0)), target.pop(0))
""",
)
def hand_over__empties_target():
    """Takes the ranks out of the caller's list."""


@right
@changes(
    ATTENTION,
    """
        summand = block.out(attend(q, k, v))
        part = np.empty(summand.size // comm.Get_size(), x.dtype)
        comm.Reduce_scatter_block(summand.ravel(), part) if hasattr(comm, "Reduce_scatter_block") else comm.Reduce_scatter(summand.ravel(), part)
        whole = np.empty(summand.size, x.dtype)
        comm.Allgather(part, whole)
        x = x + whole.reshape(x.shape)
""",
)
def prefill__reduce_scatter():
    """Adds up by a reduce-scatter and an all-gather."""


@right
@changes(
    ATTENTION,
    """
        n, r = comm.Get_size(), comm.Get_rank()
        for which in (lambda: block.out(attend(q, k, v)), lambda: block.mlp(x)):
            summand = which()
            parts = [p.copy() for p in np.array_split(summand.ravel(), n)]
            for step in range(n - 1):
                i, j = (r - step) % n, (r - step - 1) % n
                got = np.empty_like(parts[j])
                comm.Sendrecv(parts[i], (r + 1) % n, recvbuf=got, source=(r - 1) % n)
                parts[j] += got
            for step in range(n - 1):
                i, j = (r + 1 - step) % n, (r - step) % n
                comm.Sendrecv(parts[i], (r + 1) % n, recvbuf=parts[j], source=(r - 1) % n)
            x = x + np.concatenate(parts).reshape(summand.shape)
""",
    MLP,
    "",
)
def prefill__own_ring():
    """Adds up in a ring of its own."""


@right
@changes("return self.running[len(decode) :], decode", "return [self.running[len(decode) :], decode]")
def Scheduler__a_list_of_lists():
    """Returns a list of two lists."""


@right
@changes(
    SENT,
    """
        for i, part in enumerate(np.split(cache.data[:, :, slots], len(target), 3)):
            comm.Send(np.array([*part.shape, part.dtype.itemsize, number]), target[i])
            comm.Send(np.ascontiguousarray(part), target[i])
            done = np.empty(1, int)
            comm.Recv(done, target[i])
""",
    RECEIVED,
    """
        shape = np.empty(7, int)
        comm.Recv(shape, source)
        part = np.empty(tuple(shape[:5]), cache.data.dtype)
        comm.Recv(part, source)
        cache.data[:, :, slots] = part
        comm.Send(np.ones(1, int), source)
""",
)
def hand_over__shapes_first():
    """Shapes first, and an answer."""


@right
@changes(
    ...,
    """
    n, r = comm.Get_size(), comm.Get_rank()
    mine = np.stack([logits.max(axis=1), logits.argmax(axis=1) + r * logits.shape[1], np.full(len(logits), r)], axis=1).astype(float)
    every = np.empty((n, *mine.shape)) if r == 0 else None
    comm.Gather(mine, every, root=0)
    words = np.empty(len(logits), np.int64)
    if r == 0:
        for i in range(len(words)):
            words[i] = int(max(every[:, i], key=lambda row: (row[0], -row[1]))[1])
    comm.Bcast(words, root=0)
    return words
""",
)
def next_token__gather_and_broadcast():
    """Rank 0 decides; three numbers for each text."""


@right
@changes(
    ...,
    """
    order = sorted(range(len(texts)), key=lambda i: -len(texts[i].tokens))
    ordered = [texts[i] for i in order]
    slots = [np.asarray(cache.slots(text.number)) for text in ordered]
    x = model.embed([t.tokens[-1] for t in ordered], [len(t.tokens) - 1 for t in ordered])
    for layer, block in enumerate(model.blocks):
        q, k, v = block.qkv(x)
        for i, own in enumerate(slots):
            cache.data[layer, :, own[-1]] = k[i], v[i]
        seen = paged_attention(q, *cache.data[layer], slots)
        for summand in (block.out, block.mlp):
            total = np.empty_like(x)
            comm.Allreduce(summand(seen if summand == block.out else x), total)
            x = x + total
    logits = model.logits(x)
    found = np.empty_like(logits)
    found[order] = logits
    return found
""",
)
def decode__longest_first():
    """Sorts texts by length, and puts the logits back in order."""
