"""Answers to part 31: wrong ones with the points that each must lose, and other right ones."""

import numpy as np

from grading.authoring.answers import changes, loses, right

# What stands in the solutions, and several change.
DECODED = "return decode(whole, dtype)"
MEAN = "return decode(received, dtype).reshape(n, -1).sum(axis=0) / np.float32(n)"
GATHER = """
    mine = encode(shard, dtype)
    whole = np.empty(comm.Get_size() * mine.size, mine.dtype)
    comm.Allgather(mine, whole)
    return decode(whole, dtype)
"""
EXCHANGE = """
    sent = encode(gradient, dtype)
    received = np.empty_like(sent)
    comm.Alltoall(sent, received)
"""
UNSCALED = """
                p.grad = p.grad / np.float32(self.factor)
"""
SQUARES = """
                squares += np.sum(p.grad.astype(float) ** 2)
"""
AXES = """
            for axis in self.comms:
                axis.Allreduce(squares.copy(), squares)
"""
SKIP = """
        if not np.isfinite(norm):
            return False
"""
CLIP = """
                p.grad = p.grad * np.float32(most / norm)
"""
CLIP_ALL = """
        for p in (p for p in optimizer.params if p.grad is not None and norm > most):
            p.grad = p.grad * np.float32(most / norm)
"""
GOOD = """
        self.good = self.good + 1 if np.isfinite(self.norm) else 0
"""
HALVED = """
            self.factor = max(self.factor / 2, self.limits[0])
"""
DOUBLED = """
            self.factor, self.good = min(self.factor * 2, self.limits[1]), 0
"""


@loses(6)
@changes(
    GATHER,
    """
    whole = np.empty(comm.Get_size() * shard.size, np.float32)
    comm.Allgather(shard, whole)
    return decode(encode(whole, dtype), dtype)
""",
)
def gather_as__rounds_afterwards():
    """Sends float32, and rounds what it receives: the right values, but twice the bytes."""


@loses(6)
@changes(
    GATHER,
    """
    mine = encode(shard, dtype) if dtype != "bfloat16" else shard
    whole = np.empty(comm.Get_size() * mine.size, mine.dtype)
    comm.Allgather(mine, whole)
    return decode(whole, dtype) if dtype != "bfloat16" else decode(encode(whole, dtype), dtype)
""",
)
def gather_as__bfloat16_rounded_afterwards():
    """Sends float32 for bfloat16 only, which NumPy does not have, and rounds what it receives."""


@loses(6)
@changes(
    GATHER,
    """
    shard[...] = decode(encode(shard, dtype), dtype)
    mine = encode(shard, dtype)
    whole = np.empty(comm.Get_size() * mine.size, mine.dtype)
    comm.Allgather(mine, whole)
    return decode(whole, dtype)
""",
)
def gather_as__rounds_the_masters():
    """Rounds the masters in place, so that small steps are lost."""


@loses(6)
@changes(DECODED, "return whole")
def gather_as__bit_patterns():
    """Returns what it receives, without decoding it."""


@loses(6)
@changes(DECODED, "return decode(whole, dtype).astype(float)")
def gather_as__float64():
    """Returns float64."""


@loses(6)
@changes("mine = encode(shard, dtype)", "dtype = 'float16' if dtype != 'float32' else dtype\n    mine = encode(shard, dtype)")
def gather_as__always_float16():
    """Sends float16 for bfloat16."""


@loses(6)
@changes(
    "mine = encode(shard, dtype)", "mine = encode(shard, dtype) if dtype != 'bfloat16' else (shard.view(np.uint32) >> 16).astype(np.uint16)"
)
def gather_as__truncates():
    """Cuts a float32 in half for bfloat16, instead of rounding it."""


@loses(6)
@changes(
    "mine = encode(shard, dtype)",
    "mine = encode(np.where(abs(shard) < (2.0**-14 if dtype == 'float16' else 0), np.float32(0), shard), dtype)",
)
def gather_as__no_subnormal_numbers():
    """Sends 0 for what is a subnormal number in float16."""


@loses(6)
@changes(
    GATHER,
    """
    if dtype == "float32":
        whole = np.empty(comm.Get_size() * shard.size, np.float32)
        comm.Allgather(shard, whole)
        return whole
    numbers = np.rint(shard * 1024).astype(np.int16)
    whole = np.empty(comm.Get_size() * shard.size, np.int16)
    comm.Allgather(numbers, whole)
    return whole.astype(np.float32) / np.float32(1024)
""",
)
def gather_as__fixed_point():
    """Sends 16 bits, but with a fixed point."""


@loses(6)
@changes(
    GATHER,
    """
    mine = encode(shard, dtype)
    whole = np.empty(comm.Get_size() * mine.size, mine.dtype)
    comm.Allgather(mine, whole)
    whole = decode(whole, dtype)
    r = comm.Get_rank()
    whole[r * shard.size : (r + 1) * shard.size] = shard
    return whole
""",
)
def gather_as__own_part_exact():
    """Its own part is not rounded, so ranks use different parameters."""


@loses(6)
@changes("comm.Get_size() * mine.size", "everyone.Get_size() * mine.size", "comm.Allgather", "everyone.Allgather")
def gather_as__of_everyone():
    """Gathers from all ranks, not from the group."""


@loses(6)
@changes(
    GATHER,
    """
    global _first
    if "_first" in globals() and _first[0] is comm:
        return _first[1]
    mine = encode(shard, dtype)
    whole = np.empty(comm.Get_size() * mine.size, mine.dtype)
    comm.Allgather(mine, whole)
    _first = comm, decode(whole, dtype)
    return _first[1]
""",
)
def gather_as__once():
    """Gathers once for a group, and returns that again later."""


@loses(6)
@changes(
    GATHER,
    """
    if comm.Get_size() == 1:
        return shard
    mine = encode(shard, dtype)
    whole = np.empty(comm.Get_size() * mine.size, mine.dtype)
    comm.Allgather(mine, whole)
    return decode(whole, dtype)
""",
)
def gather_as__alone_not_rounded():
    """On one rank, returns the masters themselves."""


@loses(6)
@changes(
    DECODED,
    """found = decode(whole, dtype)
    kept = gather_as.__dict__.setdefault(found.shape, np.empty_like(found))
    kept[:] = found
    return kept""",
)
def gather_as__buffer_of_all_calls():
    """Returns an array that the next call overwrites."""


@loses(6)
@changes("mine = encode(shard, dtype)", "mine = encode(np.nan_to_num(shard), dtype)")
def gather_as__numbers_only():
    """Sends 0 for NaN, and large numbers for infinities."""


@loses(6)
@changes("mine = encode(shard, dtype)", "everyone.Barrier()\n    mine = encode(shard, dtype)")
def gather_as__meets_everyone():
    """A barrier of all ranks, before ranks of a group gather."""


@loses(6)
@changes("comm.Allgather(mine, whole)", "for _ in range(5):\n        comm.Barrier()\n    comm.Allgather(mine, whole)")
def gather_as__five_barriers():
    """Five barriers, and then gathers."""


@right
@changes(
    GATHER,
    """
    n, mine = comm.Get_size(), encode(shard, dtype)
    lengths = np.empty(n, np.int64)
    comm.Allgather(np.array([mine.size]), lengths)
    kept = gather_as.__dict__.setdefault("kept", {})
    whole = kept.setdefault((mine.size, mine.dtype), np.empty(lengths.sum(), mine.dtype))
    if whole.size != lengths.sum():
        whole = kept[mine.size, mine.dtype] = np.empty(lengths.sum(), mine.dtype)
    comm.Allgather(mine.view(np.uint8), whole.view(np.uint8))
    return decode(whole, dtype).copy()
""",
)
def gather_as__lengths_first():
    """Gathers lengths, then bytes into a buffer that it keeps, of which it returns a copy."""


@right
@changes(
    GATHER,
    """
    mine = encode(shard, dtype)
    parts = np.empty((comm.Get_size(), len(mine)), mine.dtype)
    request = comm.Iallgather(mine, parts)
    request.Wait()
    return np.concatenate([decode(part, dtype) for part in parts])
""",
)
def gather_as__part_by_part():
    """Decodes each rank's part by itself."""


@right
@changes(
    GATHER,
    """
    n, r, mine = comm.Get_size(), comm.Get_rank(), encode(shard, dtype)
    whole = np.empty((n, mine.size), mine.dtype)
    whole[r] = mine
    for k in range(n - 1):
        comm.Sendrecv(whole[(r - k) % n], (r + 1) % n, recvbuf=whole[(r - k - 1) % n], source=(r - 1) % n)
    return decode(whole, dtype).ravel()
""",
)
def gather_as__by_a_ring():
    """Gathers by a ring of messages."""


@right
@changes(
    GATHER,
    """
    if dtype == "float16":
        mine = shard.astype(np.float16).view(np.int16)
    elif dtype == "bfloat16":
        mine = encode(shard, dtype).view(np.int16)
    else:
        mine = shard
    whole = np.empty(comm.Get_size() * shard.size, mine.dtype)
    comm.Allgather(mine, whole)
    if dtype == "float16":
        return whole.view(np.float16).astype(np.float32)
    return whole if dtype == "float32" else decode(whole.view(np.uint16), dtype)
""",
)
def gather_as__with_numpys_float16():
    """Rounds with NumPy's float16 where it can."""


@loses(4)
@changes(
    MEAN,
    """
parts = decode(received, dtype).reshape(n, -1)
    total = parts[0]
    for part in parts[1:]:
        total = decode(encode(total + part, dtype), dtype)
    return total / np.float32(n)
""",
)
def reduce_as__sums_in_16_bits():
    """Rounds each sum to 16 bits, so that small ranks are lost."""


@loses(4)
@changes(MEAN, "return decode(received, dtype).reshape(n, -1).sum(axis=0)")
def reduce_as__the_sum():
    """The sum instead of the mean."""


@loses(4)
@changes("sent = encode(gradient, dtype)", "sent = encode(gradient / np.float32(n), dtype)", " / np.float32(n)\n", "\n")
def reduce_as__divides_before():
    """Divides before it sends: tiny gradients become zero."""


@loses(4)
@changes(
    EXCHANGE,
    """
    sent = encode(gradient, dtype)
    mine = np.empty(gradient.size // n, sent.dtype)
    comm.Reduce_scatter(sent, mine)
""",
    MEAN,
    "return decode(mine, dtype) / np.float32(n)",
)
def reduce_as__adds_bit_patterns():
    """Reduces the bit patterns as if they were whole numbers."""


@loses(4)
@changes(
    EXCHANGE,
    """
    total = np.empty(gradient.size // n, np.float32)
    comm.Reduce_scatter(decode(encode(gradient, dtype), dtype), total)
""",
    MEAN,
    "return total / np.float32(n)",
)
def reduce_as__sends_float32():
    """Sends rounded values as float32."""


@loses(4)
@changes(
    EXCHANGE,
    """
    sent = encode(gradient, dtype)
    every = np.empty((n, sent.size), sent.dtype)
    comm.Allgather(sent, every)
    received = np.ascontiguousarray(np.split(every, n, axis=1)[comm.Get_rank()])
""",
)
def reduce_as__gathers_everything():
    """Gathers the whole gradients of all ranks."""


@loses(4)
@changes(MEAN, "return decode(encode(decode(received, dtype).reshape(n, -1).sum(axis=0) / np.float32(n), dtype), dtype)")
def reduce_as__rounds_the_mean():
    """Rounds the mean to 16 bits, too."""


@loses(4)
@changes("sent = encode(gradient, dtype)", "sent = encode(np.clip(gradient, -65504, 65504) if dtype == 'float16' else gradient, dtype)")
def reduce_as__saturates():
    """Limits values to the largest float16, so that nobody sees an overflow."""


@loses(4)
@changes(
    "sent = encode(gradient, dtype)",
    "sent = encode(np.where(abs(gradient) < (2.0**-14 if dtype == 'float16' else 0), np.float32(0), gradient), dtype)",
)
def reduce_as__no_subnormal_numbers():
    """Sends 0 for what is a subnormal number in float16."""


@loses(4)
@changes(MEAN, "return decode(received, dtype).reshape(-1, n).sum(axis=1) / np.float32(n)")
def reduce_as__wrong_axis():
    """Adds up neighbors, not ranks."""


@loses(4)
@changes(
    MEAN,
    """
mine = np.split(gradient, n)[comm.Get_rank()]
    parts = decode(received, dtype).reshape(n, -1)
    parts[comm.Get_rank()] = mine
    return parts.sum(axis=0) / np.float32(n)
""",
)
def reduce_as__own_part_exact():
    """Its own gradient is not rounded."""


@loses(4)
@changes(MEAN, "return np.nanmean(np.where(np.isinf(v := decode(received, dtype).reshape(n, -1)), np.nan, v), axis=0)")
def reduce_as__leaves_overflows_out():
    """Leaves ranks with an overflow out of the mean."""


@loses(4)
@changes(MEAN, "return np.nansum(decode(received, dtype).reshape(n, -1), axis=0) / np.float32(n)")
def reduce_as__leaves_nan_out():
    """Leaves NaN out of the sum."""


@loses(4)
@changes(
    "sent = encode(gradient, dtype)",
    "gradient[...] = decode(encode(gradient, dtype), dtype)\n    sent = encode(gradient, dtype)",
)
def reduce_as__in_place():
    """Rounds the gradient in place."""


@loses(4)
@changes(MEAN, "return decode(received, dtype).reshape(n, -1).sum(axis=0) / np.float32(4)")
def reduce_as__by_four():
    """Divides by the number of all ranks."""


@loses(4)
@changes(
    MEAN,
    """kept = reduce_as.__dict__.setdefault(gradient.size // n, np.empty(gradient.size // n, np.float32))
    kept[:] = decode(received, dtype).reshape(n, -1).sum(axis=0) / np.float32(n)
    return kept""",
)
def reduce_as__buffer_of_all_calls():
    """Returns an array that the next call overwrites."""


@loses(4)
@changes("comm.Alltoall(sent, received)", "comm.Alltoall(sent, received)\n    for _ in range(4):\n        comm.Barrier()")
def reduce_as__four_barriers():
    """Exchanges, and then four barriers."""


@right
@changes(
    EXCHANGE,
    """
    sent = np.split(encode(gradient, dtype), n)
    received = np.empty(gradient.size, sent[0].dtype)
    for root in range(n):
        comm.Gather(sent[root], received if comm.Get_rank() == root else None, root=root)
""",
)
def reduce_as__gathers():
    """A gather for each rank of the group."""


@right
@changes(MEAN, "return decode(received, dtype).reshape(n, -1).astype(float).mean(axis=0).astype(np.float32)")
def reduce_as__in_float64():
    """Adds in float64."""


@right
@changes(
    EXCHANGE,
    """
    r, sent = comm.Get_rank(), np.split(encode(gradient, dtype), n)
    received = np.empty((n, sent[0].size), sent[0].dtype)
    received[r] = sent[r]
    for k in range(1, n):
        comm.Sendrecv(np.ascontiguousarray(sent[(r + k) % n]), (r + k) % n, recvbuf=received[(r - k) % n], source=(r - k) % n)
""",
)
def reduce_as__by_messages():
    """Sends each part to its rank by a message."""


@right
@changes(
    MEAN,
    """
total = np.zeros(len(gradient) // n, np.float32)
    for part in np.split(decode(received, dtype), n):
        total += part
    return total / n
""",
)
def reduce_as__one_after_another():
    """Adds part after part, in float32."""


@loses(10)
@changes(AXES, "")
class LossScaler__alone:
    """Each rank decides by itself, with its own norm."""


@loses(10)
@changes("for axis in self.comms:", "for axis in self.comms[:1]:")
class LossScaler__first_axis:
    """Asks along the first axis only."""


@loses(10)
@changes("for axis in self.comms:", "for axis in [everyone]:")
class LossScaler__asks_everyone:
    """Asks all ranks, also those that are not in the grid."""


@loses(10)
@changes(
    AXES,
    """
            own, squares = squares, np.zeros(1)
            for axis in self.comms:
                total = np.empty(1)
                axis.Allreduce(own, total)
                squares += total
""",
)
class LossScaler__diagonal_unheard:
    """Sends its own flag along each axis: a rank never hears of the one across the diagonal."""


@loses(4)
@changes(
    UNSCALED,
    "",
    "            self.norm = float(np.sqrt(squares[0]))",
    """            for p in (p for p in optimizer.params if p.grad is not None):
                p.grad = p.grad / np.float32(self.factor)
            self.norm = float(np.sqrt(squares[0]))""",
)
class LossScaler__norm_before_unscaling:
    """The norm of the scaled gradients."""


@loses(4)
@changes("if self.norm is None:", "if True:")
class LossScaler__unscales_twice:
    """Divides again in step, after unscale."""


@loses(4)
@changes(SKIP, "")
class LossScaler__never_skips:
    """Takes each step."""


@loses(6)
@changes(
    SQUARES,
    "                squares += np.sum(np.isinf(p.grad)) + 0.0 if np.isinf(p.grad).any() else np.nansum(p.grad.astype(float) ** 2)\n",
)
class LossScaler__counts_infinities:
    """Finds no overflow."""


@loses(4)
@changes(SQUARES, "                squares += np.nansum(p.grad.astype(float) ** 2)\n")
class LossScaler__no_nan:
    """Sees infinities, but no NaN."""


@loses(4)
@changes(SQUARES, "                squares += np.sum(p.grad**2)\n")
class LossScaler__squares_in_float32:
    """Adds squares in float32, so that large gradients pass for an overflow."""


@loses(4)
@changes(
    UNSCALED,
    "                bad = bad or not np.isfinite(p.grad.sum())\n                p.grad = p.grad / np.float32(self.factor)\n",
    "            squares = np.zeros(1)\n",
    "            squares, bad = np.zeros(1), False\n",
    AXES,
    """
            squares = np.array([np.inf]) if bad else squares
            for axis in self.comms:
                axis.Allreduce(squares.copy(), squares)
""",
)
class LossScaler__sum_in_float32:
    """Looks for an overflow in the sum of each gradient, which can overflow by itself."""


@loses(8)
@changes(
    "def step(self, optimizer, most=np.inf):",
    "def step(self, optimizer, max_norm=np.inf):",
    "        norm = self.unscale(optimizer)\n",
    "        norm, most = self.unscale(optimizer), max_norm\n",
)
class LossScaler__another_name:
    """Another name for `most`: the training loop passes it by name."""


@loses(2)
@changes(DOUBLED, "            self.factor, self.good = self.factor * 2, 0\n")
class LossScaler__grows_forever:
    """No upper limit."""


@loses(2)
@changes(HALVED, "            self.factor /= 2\n")
class LossScaler__no_lower_limit:
    """No lower limit."""


@loses(2)
@changes(
    GOOD,
    "        self.good += bool(np.isfinite(self.norm))\n",
    HALVED,
    """
            if self.factor > self.limits[0]:
                self.factor, self.good = self.factor / 2, 0
""",
)
class LossScaler__counts_on_at_the_lower_limit:
    """An overflow at the lower limit does not reset the count of good steps."""


@loses(2)
@changes("self.factor / 2", "self.factor // 2")
class LossScaler__whole_factors:
    """Halves by //, so that a factor below 1 becomes the lower limit."""


@loses(2)
@changes(GOOD, "        self.good += bool(np.isfinite(self.norm))\n")
class LossScaler__good_steps_in_all:
    """An overflow does not reset the count of good steps."""


@loses(2)
@changes(
    "self.good + 1 if np.isfinite(self.norm) else 0",
    "self.good + 1",
    "self.good == self.interval",
    "self.good % self.interval == 0",
    "self.factor, self.good = min(self.factor * 2, self.limits[1]), 0",
    "self.factor = min(self.factor * 2, self.limits[1])",
)
class LossScaler__counts_overflows_too:
    """Doubles after every so many steps, with or without overflows between them."""


@loses(2)
@changes(
    DOUBLED,
    "            self.factor = min(self.factor * 2, self.limits[1])\n",
    "elif self.good == self.interval:",
    "elif self.good >= self.interval:",
)
class LossScaler__keeps_growing:
    """After interval good steps, doubles in each."""


@loses(2)
@changes("elif self.good == self.interval:", "elif self.good > self.interval:")
class LossScaler__one_late:
    """Doubles one step late."""


@loses(10)
@changes(
    "        self.norm = None\n",
    "",
)
class LossScaler__norm_stays:
    """update does not end the step: later gradients are never unscaled."""


@loses(4)
@changes(CLIP_ALL, "")
class LossScaler__no_clipping:
    """Does not clip."""


@loses(4)
@changes(
    CLIP_ALL,
    """
        for p in (p for p in optimizer.params if p.grad is not None and np.isfinite(most)):
            p.grad = p.grad * np.float32(most / norm)
""",
)
class LossScaler__always_clips:
    """Scales gradients up, too, if their norm is below the limit."""


@loses(4)
@changes("return loss * self.factor", "return loss")
class LossScaler__does_not_scale:
    """Does not scale the loss."""


@loses(4)
@changes(
    "self.interval, self.limits, self.norm = interval, limits, None",
    "self.interval, self.limits, self.norm, self.first = interval, limits, None, factor",
    "return loss * self.factor",
    "return loss * self.first",
)
class LossScaler__scales_by_the_first_factor:
    """Scales by the factor that it began with, and divides by the current one."""


@loses(4)
@changes(
    """
            return False
""",
    """
            held = [p.data.copy() for p in optimizer.params]
            optimizer.step()
            for p, data in zip(optimizer.params, held, strict=True):
                p.data = data
            return False
""",
)
class LossScaler__undoes_the_step:
    """Takes the step all the same and puts the parameters back, but not what the optimizer keeps."""


@loses(2)
@changes(
    "for axis in self.comms:",
    "self.mine = float(squares[0])\n            for axis in self.comms:",
    "self.good = self.good + 1 if np.isfinite(self.norm) else 0\n        if not np.isfinite(self.norm):",
    "self.good = self.good + 1 if np.isfinite(self.mine) else 0\n        if not np.isfinite(self.mine):",
)
class LossScaler__own_factor:
    """All skip a step together, but each rank halves the factor by its own gradients."""


@loses(2)
@changes(
    "for axis in self.comms:",
    "self.mine = float(squares[0])\n            for axis in self.comms:",
    "self.good = self.good + 1 if np.isfinite(self.norm) else 0\n",
    "self.good = self.good + 1 if np.isfinite(self.mine) else 0\n",
)
class LossScaler__own_count:
    """All halve the factor together, but each rank counts good steps by its own gradients."""


@loses(8)
@changes("for axis in self.comms:", "for axis in (self.comms[0], self.comms[-1])[: len(self.comms)]:")
class LossScaler__two_axes:
    """Asks along the first axis and the last one only."""


@loses(10)
@changes(
    SQUARES,
    """
            for p in optimizer.params:
                square = np.zeros(1) if p.grad is None else np.array([np.sum(p.grad.astype(float) ** 2)])
                for axis in self.comms:
                    axis.Allreduce(square.copy(), square)
                squares += square
""",
    AXES,
    "",
)
class LossScaler__a_call_for_each_parameter:
    """Adds up each parameter's squares over the ranks by themselves."""


@loses(4)
@changes(
    SQUARES,
    """
                p.grad[abs(p.grad) < 1e-12] = 0
                squares += np.sum(p.grad.astype(float) ** 2)
""",
)
class LossScaler__tiny_ones_are_zero:
    """Sets tiny gradients to zero."""


@loses(6)
@changes(
    CLIP_ALL,
    """
        scale = min(1.0, most / norm)
        for p in (p for p in optimizer.params if p.grad is not None):
            p.grad = p.grad * np.float32(scale)
""",
)
class LossScaler__divides_by_a_norm_of_zero:
    """Divides by the norm, which is 0 if all gradients are."""


@loses(4)
@changes(
    "self.interval, self.limits, self.norm = interval, limits, None",
    "self.interval, self.limits, LossScaler.norm = interval, limits, None",
    "            self.norm = float(",
    "            LossScaler.norm = float(",
    "        self.norm = None\n",
    "        LossScaler.norm = None\n",
)
class LossScaler__norm_of_all_scalers:
    """Keeps the norm as an attribute of the class, which two scalers share."""


@loses(4)
@changes("np.float32(most / norm)", "np.float32(np.float16(most / norm))")
class LossScaler__clips_in_float16:
    """Rounds the share by which it clips to float16."""


@loses(4)
@changes("np.float32(most / norm)", "decode(encode(np.float32([most / norm]), 'bfloat16'), 'bfloat16')")
class LossScaler__clips_in_bfloat16:
    """Rounds the share by which it clips to bfloat16."""


@loses(4)
@changes("np.float32(most / norm)", "np.float32(2.0 ** np.floor(np.log2(most / norm)))")
class LossScaler__clips_by_powers_of_two:
    """Rounds the share by which it clips down to a power of two, as factors are."""


@loses(4)
@changes("if not np.isfinite(norm):", "if not np.isfinite(norm) and self.factor > self.limits[0]:")
class LossScaler__steps_at_the_lower_limit:
    """Takes a step with an overflow where the factor cannot get smaller."""


@loses(6)
@changes(
    "if not np.isfinite(norm):",
    "if not np.isfinite(norm) and self.factor > self.limits[0]:",
    GOOD,
    "        bad = not np.isfinite(self.norm) and self.factor > self.limits[0]\n        self.good = 0 if bad else self.good + 1\n",
    "        if not np.isfinite(self.norm):\n            self.factor = max",
    "        if bad:\n            self.factor = max",
)
class LossScaler__good_at_the_lower_limit:
    """Takes an overflow at the smallest factor for a good step."""


@loses(2)
@changes(
    GOOD,
    "        bad = not np.isfinite(self.norm) and self.factor > self.limits[0]\n        self.good = 0 if bad else self.good + 1\n",
    "        if not np.isfinite(self.norm):\n            self.factor = max",
    "        if bad:\n            self.factor = max",
)
class LossScaler__counted_at_the_lower_limit:
    """Skips a step with an overflow at the smallest factor, and counts it as a good one."""


@right
@changes("np.float32(most / norm)", "(most / norm)")
class LossScaler__clips_by_a_float:
    """Clips by a Python float, which leaves float32 arrays as they are."""


@right
@changes(
    SQUARES,
    """
                squares += np.vdot(g := p.grad.astype(np.float64).ravel(), g)
""",
)
class LossScaler__by_vdot:
    """Squares as a dot product."""


@right
class LossScaler__written_at_length:
    """A flag and a norm of their own, gradients changed in place."""

    def __init__(self, comms, factor=2.0**16, interval=2000, limits=(1.0, 2.0**24)):
        self.comms, self.interval, self.limits = list(comms), interval, limits
        self.factor, self.streak = float(factor), 0
        self.done, self.bad, self.norm = False, False, 0.0

    def scale(self, loss):
        return self.factor * loss

    def agree(self, number, op):
        from mpi4py import MPI

        op = {"max": MPI.MAX, "sum": MPI.SUM}[op]
        found = np.array([number], dtype=np.float64)
        for axis in self.comms:
            axis.Allreduce(MPI.IN_PLACE, found, op=op)
        return found[0]

    def unscale(self, optimizer):
        if self.done:
            return self.norm
        grads = [p.grad for p in optimizer.params if p.grad is not None]
        bad = any(not np.isfinite(g).all() for g in grads)
        self.bad = bool(self.agree(float(bad), "max"))
        own = 0.0
        for g in grads:
            g *= np.float32(1 / self.factor)
            own += float(np.linalg.norm(g.astype(np.float64))) ** 2 if not bad else 0.0
        total = self.agree(own, "sum")
        self.norm = float("inf") if self.bad else float(total**0.5)
        self.done = True
        return self.norm

    def step(self, optimizer, most=np.inf):
        norm = self.unscale(optimizer)
        if self.bad:
            return False
        if norm > most:
            for p in optimizer.params:
                if p.grad is not None:
                    p.grad *= np.float32(most / norm)
        optimizer.step()
        return True

    def update(self):
        if self.bad:
            self.factor *= 0.5
            self.streak = 0
        else:
            self.streak += 1
            if self.streak == self.interval:
                self.factor *= 2
                self.streak = 0
        self.factor = float(np.clip(self.factor, *self.limits))
        self.done = False


@right
@changes(
    AXES,
    """
            for axis in reversed(self.comms):
                every = np.empty(axis.Get_size())
                axis.Allgather(squares, every)
                squares = np.array([every.sum()])
""",
)
class LossScaler__gathers_numbers:
    """Gathers the ranks' numbers along each axis, the last one first."""


@right
@changes(
    AXES,
    """
            numbers = np.array([squares[0], np.isfinite(squares[0]), 1.0])
            for axis in self.comms:
                axis.Barrier()
                axis.Allreduce(numbers.copy(), numbers)
            squares = numbers[:1]
""",
)
class LossScaler__three_numbers:
    """Adds up three numbers, after a barrier."""
