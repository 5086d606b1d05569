# ---
# jupyter:
#   course:
#     ranks: 4
# ---

# %% [markdown] tags=["slide"]
# # 34 Serving
#
# **You will build** the core of a server for a trained GPT: a cache in blocks, `prefill`, `decode`, `next_token`, a `Scheduler`, `hand_over`.
#
# *{points} points. About 120 minutes.*

# %% Start the ranks tags=["given"]
import numpy as np
from course_lib import cluster, plots, saving
from course_lib.check import serving
from course_lib.gpt.serving import roofline

ranks = cluster.start(4)

# %% Set up the ranks tags=["given", "skip"]
# %%px
import numpy as np
from course_lib.collectives import Communicator
from course_lib.gpt.serving import Engine, Text, attend, paged_attention, small_model
from course_lib.gpt.serving.simulation import compare

everyone = Communicator()

# %% [markdown] tags=["slide"]
# A GPT writes one token at a time. **Prefill** runs a whole prompt through the model at once, and gives the first new token. **Decode** runs
# only this token through it, which gives the next one, and so on. Both read all weights. The first picture shows a model's matrix products
# for 1 to 256 tokens at once, and what the machine allows. How many texts would you decode together?

# %% Draw the roofline tags=["folded", "slide"]
plots.roofline(roofline.measure(tokens=[1, 4, 16, 64, 256]), "Matrix products of a GPT, by tokens at once")

# %% [markdown] tags=["slide"]
# ## A worked example: one rank's part of the model
#
# The heads and the MLP are split as in [part 21](21_tensor_parallel.ipynb). Here three tokens go through a block's attention. `attend` takes
# the queries of a text's *last* positions, and the keys and values of all of them. The last line computes the last row once more: all it
# needs of the earlier tokens is their keys and values, which never change. So we keep them. What does `out` return: a whole, or a summand?

# %% Attend with kept keys tags=["slide"]
# %%px
model = small_model(everyone)
x = model.embed([65, 66, 67], [0, 1, 2])  # tokens and their positions: (3, width)
q, k, v = model.blocks[0].qkv(x)  # (3, heads of this rank, size)
print(k.shape, np.round(model.blocks[0].out(attend(q, k, v))[2, :3], 3))
print(k.shape, np.round(model.blocks[0].out(attend(q[2:], k, v))[0, :3], 3))

# %% [markdown] tags=["slide"]
# ## Your turn: a cache in blocks
#
# Nobody knows how long a text will become. With room for the longest one in each place, most memory stays empty. So the cache has **blocks**
# of a few tokens. A text gets any free block when it needs one, and gives back all of them at the end (Kwon et al., 2023, "Efficient memory
# management for large language model serving with PagedAttention"). A token's **slot** is block × block size + place in the block.


# %% Exercise: PagedCache tags=["exercise", "slide-50"]
# %%px
class PagedCache:
    """Keys and values of many texts, in `blocks` blocks of `block_size` tokens.

    A token keeps an array of `shape`, (layers, 2, heads, size): its key and its value.
    `data`, (layers, 2, blocks * block_size, heads, size), has room for all slots.

    allocate(number, tokens): slots for a new text. True; or False and none, if too few.
    append(number): a slot for one more token. True; or False and none, if too few.
    free(number): take back a text's blocks, if it has any.
    slots(number): its tokens' slots, in order, an int array; empty if it has none.
    Besides `data`, a cache holds at most 2 MB.
    """

    def __init__(self, blocks, block_size, shape, dtype=np.float32):
        self.blocks, self.block_size = blocks, block_size
        ### BEGIN SOLUTION
        self.data = np.zeros((*shape[:2], blocks * block_size, *shape[2:]), dtype)
        self.unused, self.owned = list(range(blocks)), {}  # by text: blocks, and tokens

    def allocate(self, number, tokens):
        table, length = self.owned.get(number, ([], 0))
        more = -(-(length + tokens) // self.block_size) - len(table)
        if more > len(self.unused):
            return False
        table = table + [self.unused.pop() for _ in range(more)]
        self.owned[number] = table, length + tokens
        return True

    def append(self, number):
        return self.allocate(number, 1)

    def free(self, number):
        self.unused += self.owned.pop(number, ([], 0))[0]

    def slots(self, number):
        table, length = self.owned.get(number, ([], 0))
        first = np.array(table, int)[:, None] * self.block_size
        return (first + np.arange(self.block_size)).ravel()[:length]
        ### END SOLUTION


# %% Check PagedCache tags=["given"]
serving.CacheCheck("PagedCache", ranks).memory().by_hand().drawn().many_slots().passed()

# %% [markdown] tags=["slide-50"]
# ## Your turn: prefill and decode
#
# Each block of the model adds to `x` the sum of all ranks' `block.out(...)`, then that of their `block.mlp(x)`; in the end,
# `model.logits(x)`. `cache.slots(text.number)` already has a slot for each of `text.tokens`: write each layer's keys and values there.
# `prefill` runs all tokens of one text. `decode` runs the last token of several texts, whose earlier tokens are in the cache.
# `paged_attention(q, keys, values, slots)` is `attend` for one token of each text: `slots` is a list with each text's slots.


# %% Exercise: prefill, decode tags=["exercise", "slide-50"]
# %%px
def prefill(model, text, cache, comm):
    """Run a text: this rank's logits after its last token, (vocabulary / n,).
    For all tokens at once, call each block's methods, and logits, once. For each block,
    a rank sends two all-reduces of x (and 64 bytes), in 2 calls of each collective at
    most, or 4 n messages, without a barrier."""
    ### BEGIN SOLUTION
    x = model.embed(text.tokens, range(len(text.tokens)))
    slots, total = cache.slots(text.number), np.empty_like(x)
    for layer, block in enumerate(model.blocks):
        q, k, v = block.qkv(x)
        cache.data[layer][:, slots] = k, v
        comm.Allreduce(block.out(attend(q, k, v)), total)
        x = x + total
        comm.Allreduce(block.mlp(x), total)
        x = x + total
    return model.logits(x[-1:])[0]
    ### END SOLUTION


def decode(model, texts, cache, comm):
    """Run each text's last token: this rank's logits, (texts, vocabulary / n).
    The limits of `prefill` hold, for the tokens of all texts together."""
    ### BEGIN SOLUTION
    slots = [cache.slots(text.number) for text in texts]
    last = [own[-1] for own in slots]
    x = model.embed([t.tokens[-1] for t in texts], [len(t.tokens) - 1 for t in texts])
    total = np.empty_like(x)
    for (keys, values), block in zip(cache.data, model.blocks, strict=True):
        q, keys[last], values[last] = block.qkv(x)
        seen = paged_attention(q, keys, values, slots)
        comm.Allreduce(block.out(seen), total)
        x = x + total
        comm.Allreduce(block.mlp(x), total)
        x = x + total
    return model.logits(x)
    ### END SOLUTION


# %% Check prefill and decode tags=["given"]
serving.ForwardCheck("prefill, decode", ranks).prefill(4, 3, 2).decode(4, 3, 2).passed()

# %% [markdown] tags=["slide-50"]
# ## Your turn: the next token
#
# We choose the word with the largest logit; of equal ones, the first. A rank has the logits of its own words only: rank 0 has the first ones.
# Nobody wants to gather 100,000 logits for each token. Two numbers for each text are enough, in one exchange for all texts. Which numbers?


# %% Exercise: next_token tags=["exercise", "slide-50"]
# %%px
def next_token(logits, comm):
    """Turn this rank's logits, (texts, vocabulary / n), into words: int (texts,).
    A rank sends at most 64 bytes for each text and rank, in at most 2 n calls in
    all."""
    ### BEGIN SOLUTION
    words = logits.argmax(axis=1) + comm.Get_rank() * logits.shape[1]
    mine = np.stack([logits.max(axis=1), words], axis=1).astype(np.float64)
    every = np.empty((comm.Get_size(), *mine.shape))
    comm.Allgather(mine, every)
    return every[every[:, :, 0].argmax(axis=0), range(len(mine)), 1].astype(int)
    ### END SOLUTION


# %% Check next_token tags=["given"]
serving.WordCheck("next_token", ranks).next_token(4).next_token(3).next_token(1).passed()

# %% [markdown] tags=["slide"]
# ## Your turn: continuous batching
#
# **Static batching** fills a batch, decodes until all its texts are done, and fills the next one. **Continuous batching** chooses anew
# before each step (Yu et al., 2022, "Orca"): a text leaves when it is done, and one that waits joins when the batch has a place and the cache
# blocks. If a running text needs a block and none is free, one is **preempted**: it gives back its blocks, waits, and is prefilled again.
# A simple policy: before each step, texts that are done leave; running texts get their next slot, oldest first, and while there is none, the
# youngest is preempted; then those that wait are admitted in order. No text may starve. Where does a preempted text wait?


# %% Exercise: Scheduler tags=["exercise", "slide-50"]
# %%px
class Scheduler:
    """Choose the texts of each step, at most `most`, and their slots in `cache`.

    add(text): let a Text wait. It has `number`, `tokens`, and `done`, which may turn
        True at any time. ValueError if text.prompt + text.limit tokens can never fit.
    next_batch(): two lists, texts to prefill, and texts to decode. Each gets a token.
    Each batch has the oldest text that is not done. The same calls give the same
    batches, in the same order, and 0.9 of the tokens per second of the policy above, or
    more.
    """

    def __init__(self, cache, most):
        ### BEGIN SOLUTION
        self.cache, self.most = cache, most
        self.waiting, self.running = [], []  # oldest first

    def add(self, text):
        if text.prompt + text.limit > self.cache.blocks * self.cache.block_size:
            raise ValueError(f"{text.prompt} + {text.limit} tokens are too many")
        self.waiting.append(text)

    def next_batch(self):
        for texts in self.running, self.waiting:
            for text in [text for text in texts if text.done]:
                self.cache.free(text.number)
                texts.remove(text)
        for text in list(self.running):
            while text in self.running and not self.cache.append(text.number):
                self.waiting.insert(0, self.running.pop())
                self.cache.free(self.waiting[0].number)
        decode = list(self.running)
        while self.waiting and len(self.running) < self.most:
            text = self.waiting[0]
            if not self.cache.allocate(text.number, len(text.tokens)):
                break
            self.running.append(self.waiting.pop(0))
        return self.running[len(decode) :], decode
        ### END SOLUTION


# %% Check the Scheduler tags=["given"]
serving.SchedulerCheck("Scheduler", ranks).refuses().alike().batches().batches(fast=True).passed()

# %% Simulate both tags=["folded", "skip"]
# %%px
loads = [5, 10, 20, 30, 40, 60]  # texts a second: numbers to play with
runs, latency = compare(Scheduler, lambda: PagedCache(24, 8, (1, 2, 1, 1)), loads)

# %% Draw texts and blocks over time, and the latency tags=["folded", "slide"]
plots.serving(ranks.pull("runs")[0], "40 texts, 24 blocks, batches of 8, on a simulated clock")
plots.lines(ranks.pull("latency")[0], "Mean time from arrival to last token", "texts a second", "seconds", ranks.pull("loads")[0])

# %% [markdown] tags=["slide-50"]
# ## Your turn: hand a text over
#
# While a long prompt is prefilled, all others wait. So large servers prefill on some ranks, decode on others, and send keys and values over.
# Rank `source` of comm has all heads (tp 1); rank `target[i]` needs part i of equal parts (tp 2). The text already has slots on each of them,
# other ones on each rank. All ranks of comm make the call; ranks in neither place do nothing.


# %% Exercise: hand_over tags=["exercise", "slide-50"]
# %%px
def hand_over(cache, number, source, target, comm):
    """Send a text's keys and values into the caches of the ranks in `target`.
    For each rank in target, a rank sends at most 1,000 bytes more, in 200 calls at
    most."""
    ### BEGIN SOLUTION
    slots = cache.slots(number)
    if comm.Get_rank() == source:
        for i, part in enumerate(np.split(cache.data[:, :, slots], len(target), 3)):
            comm.Send(np.ascontiguousarray(part), target[i])
    elif comm.Get_rank() in target:
        part = np.empty_like(cache.data[:, :, slots], order="C")
        comm.Recv(part, source)
        cache.data[:, :, slots] = part
    ### END SOLUTION


# %% Check hand_over tags=["given"]
serving.HandOverCheck("hand_over", ranks).hands_over(2).hands_over(3).hands_over(1, np.float64, 3).passed()

# %% [markdown] tags=["slide"]
# ## All together
# `Engine` calls your functions on all ranks, here for four texts. Nobody tells the ranks what to do next: why do they form the same batches?
# The last cells save your functions. With a run of [part 28](28_gpt.ipynb) in a terminal, you then have a server with OpenAI's protocol:
# `mpiexec -n 2 python -m course_lib.gpt serve --out gpt_run`. The first line that it prints shows a request.

# %% Serve four texts tags=["experiment", "slide"]
# %%px --trace # Four texts on four ranks
engine = Engine(model, globals(), everyone, blocks=12, block_size=4, most=3)
for i, prompt in enumerate([b"def ", b"import numpy", b"if", b"x"]):
    engine.add(Text(i, list(prompt), limit=2 + 2 * i))
while batch := engine.step():
    print([text.number for text in batch], end=" ")

# %% [markdown] tags=["skip"]
# <details><summary><b>In the wild</b></summary>
#
# - vLLM preempts by recomputation. Texts that begin alike share blocks (`--enable-prefix-caching`; in SGLang a tree, `RadixAttention`), and
#   long prompts are prefilled in pieces. Megatron-LM: `BlockAllocator`. Prefill and decode on two GPUs: "DistServe" (Zhong et al., 2024).
#
# </details>

# %% [markdown] tags=["slide"]
# ## Questions worth arguing about
# 1. A preempted text's blocks could also be copied to the host's memory. When is that faster than another prefill?
# 2. The order of additions in a matrix product may depend on the batch. May an answer depend on who else is asking?

# %% Save the functions tags=["given", "skip"]
saving.save(ranks, "PagedCache", "prefill", "decode", "next_token", "Scheduler", "hand_over")

# %% [markdown] tags=["skip"]
# ## Hidden tests
# Hidden tests run when your notebook is graded. They use other sizes, groups, texts and arrivals, and count each process's bytes.

# %% Test: blocks over thousands of calls, and bytes tags=["test"] points=6
### BEGIN HIDDEN TESTS
check = serving.CacheCheck("PagedCache", ranks, show=False).memory().by_hand().drawn().many_slots()
### END HIDDEN TESTS

# %% Test: prefill tags=["test"] points=4
### BEGIN HIDDEN TESTS
check = serving.ForwardCheck("prefill", ranks, show=False).prefill(4, 3, 2)
### END HIDDEN TESTS

# %% Test: decode tags=["test"] points=5
### BEGIN HIDDEN TESTS
check = serving.ForwardCheck("decode", ranks, show=False).decode(4, 3, 2)
### END HIDDEN TESTS

# %% Test: next_token tags=["test"] points=3
### BEGIN HIDDEN TESTS
check = serving.WordCheck("next_token", ranks, show=False).next_token(4).next_token(3).next_token(2).next_token(1)
### END HIDDEN TESTS

# %% Test: batches in which nobody starves tags=["test"] points=5
### BEGIN HIDDEN TESTS
check = serving.SchedulerCheck("Scheduler", ranks, show=False).refuses().batches().alike()  # with PagedCache
### END HIDDEN TESTS

# %% Test: throughput tags=["test"] points=3
### BEGIN HIDDEN TESTS
from grading.authoring.cases.serving import policy_seconds

check = serving.SchedulerCheck("throughput", ranks, policy_seconds, show=False).fast()
### END HIDDEN TESTS

# %% Test: hand_over tags=["test"] points=4
### BEGIN HIDDEN TESTS
check = serving.HandOverCheck("hand_over", ranks, show=False).hands_over(2).hands_over(3, np.float64).hands_over(1, members=2)
### END HIDDEN TESTS

# %% Stop the ranks tags=["given"]
ranks.stop()
