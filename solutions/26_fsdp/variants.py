"""Answers to part 26: wrong ones with the points that each must lose, and other right ones."""

from grading.authoring.answers import changes, loses, right

FREES = """
        self.blocks[i].free()
        if back and self.sync:
"""


@loses(25)
@changes("[comm.Get_rank()].copy()", "[-1 - comm.Get_rank()].copy()")
class FlatShard__of_another_rank:
    """The parts the wrong way round."""


@loses(14)
@changes("[comm.Get_rank()].copy()", "[comm.Get_rank()]")
class FlatShard__a_view:
    """Keeps the whole flat array, as its part is a view of it."""


@loses(14)
@changes(
    "self.comm.Iallgather(self.shard.data, self.whole)",
    """
self.comm.Iallgather(self.shard.data, self.whole)
            self.request.Wait()""",
)
class FlatShard__waits_in_start:
    """Begins, and waits at once."""


@loses(25)
@changes(
    """
        if self.whole is None:
            self.whole = np.empty(self.flat.length, self.flat.dtype)
            self.request = self.comm.Iallgather(self.shard.data, self.whole)""",
    """
        self.whole = np.empty(self.flat.length, self.flat.dtype)
        self.request = self.comm.Iallgather(self.shard.data, self.whole)""",
)
class FlatShard__begins_anew:
    """Each start begins anew."""


@loses(25)
@changes(
    """
        self.start()
        self.request.Wait()
""",
    """
        self.start()
""",
)
class FlatShard__no_wait:
    """Does not wait for what has begun."""


@loses(25)
@changes(
    """
        self.whole = self.request = None
""",
    """
        self.kept, self.whole = self.whole if self.whole is not None else getattr(self, 'kept', None), None
""",
    """
        if self.whole is None:
""",
    """
        if getattr(self, 'kept', None) is not None:
            self.whole = self.kept
        if self.whole is None:
""",
)
class FlatShard__stale:
    """Gathers once, and keeps the array for later."""


@loses(25)
@changes(
    """
        self.whole = self.request = None
""",
    """
        self.request.Wait() if self.whole is not None else None
""",
)
class FlatShard__keeps_whole:
    """free forgets the parameters' data only."""


@loses(25)
@changes(
    """
        mine /= mine.dtype.type(self.comm.Get_size())
""",
    "",
)
class FlatShard__sum:
    """The sum of the ranks' gradients."""


@loses(13)
@changes("mine if self.shard.grad is None else self.shard.grad + mine", "mine")
class FlatShard__replaces:
    """Replaces the gradient that is there."""


@loses(25)
@changes(
    """
        for p in self.parameters:
            p.grad = None
""",
    "",
)
class FlatShard__p_grad_stays:
    """Leaves p.grad."""


@loses(8)
@changes(
    "self.flat.join([p.grad for p in self.parameters])",
    "FlatBuffer([p.grad for p in self.parameters if p.grad is not None], self.comm.Get_size()).join([p.grad for p in self.parameters if p.grad is not None])",
)
class FlatShard__none_is_skipped:
    """Skips a gradient that is None."""


@loses(25)
@changes(
    """
        self.comm.Reduce_scatter(grads, mine)
""",
    """
        total = np.empty_like(grads)
        self.comm.Allreduce(grads, total)
        mine[:] = np.split(total, self.comm.Get_size())[self.comm.Get_rank()]
""",
)
class FlatShard__all_reduced:
    """All-reduces, and takes its part: right, but twice the bytes."""


@right
@changes(
    """
        self.comm.Reduce_scatter(grads, mine)
""",
    """
        self.comm.Ireduce_scatter(grads, mine).Wait()
""",
)
class FlatShard__ireduce_scatter:
    """Reduces with a call that does not block."""


@right
class FlatShard__by_hand:
    """Without FlatBuffer."""

    def __init__(self, parameters, comm):
        self.n, self.me, self.comm, self.params = comm.Get_size(), comm.Get_rank(), comm, list(parameters)
        self.layout, end = [], 0
        for p in self.params:
            self.layout.append((end, end + p.data.size, p.data.shape))
            end += p.data.size
        self.each = (end + self.n - 1) // self.n
        everything = np.zeros(self.each * self.n, self.params[0].data.dtype)
        for p, (a, b, _) in zip(self.params, self.layout):
            everything[a:b] = p.data.reshape(-1)
        self.shard = Parameter(everything[self.me * self.each : (self.me + 1) * self.each].copy())
        self.whole, self.waiting = None, None
        del everything
        self.free()

    def start(self):
        if self.whole is not None:
            return
        self.whole = np.zeros(self.each * self.n, dtype=self.shard.data.dtype)
        self.waiting = self.comm.Iallgather(self.shard.data, self.whole)

    def gather(self):
        if self.whole is None:
            self.start()
        if self.waiting is not None:
            self.waiting.Wait()
            self.waiting = None
        for p, (a, b, shape) in zip(self.params, self.layout):
            p.data = self.whole[a:b].reshape(shape)

    def free(self):
        if self.waiting is not None:
            self.waiting.Wait()
            self.waiting = None
        self.whole = None
        for p in self.params:
            p.data = np.zeros(0, dtype=self.shard.data.dtype)

    def reduce(self):
        everything = np.zeros(self.each * self.n, dtype=self.shard.data.dtype)
        for p, (a, b, _) in zip(self.params, self.layout):
            if p.grad is not None:
                everything[a:b] = p.grad.reshape(-1)
                p.grad = None
        everything /= self.n
        part = np.zeros(self.each, dtype=everything.dtype)
        self.comm.Reduce_scatter(everything, part)
        if self.shard.grad is not None:
            part += self.shard.grad
        self.shard.grad = part


@loses(9)
@changes(
    """
        following = i - 1 if back else i + 1
        if 0 <= following < len(self.blocks):
            self.blocks[following].start()
""",
    "",
)
class FullyShardedDataParallel__no_prefetch:
    """Gathers each block when it works."""


@loses(9)
@changes(
    """
        if 0 <= following < len(self.blocks):
            self.blocks[following].start()
""",
    """
        for k in (following, 2 * following - i):
            if 0 <= k < len(self.blocks):
                self.blocks[k].start()
""",
)
class FullyShardedDataParallel__two_ahead:
    """Starts the next two."""


@loses(9)
@changes(
    """
        for shard in self.shards:
            shard.free()
""",
    """
        for shard in self.shards:
            shard.free()
            shard.start()
""",
)
class FullyShardedDataParallel__all_at_first:
    """Gathers all blocks when forward begins."""


@loses(9)
@changes(
    FREES,
    """
        if back:
            self.blocks[i].free()
        if back and self.sync:
""",
)
class FullyShardedDataParallel__not_freed_forward:
    """Keeps blocks from forward to backward."""


@loses(3)
@changes(
    """
        for shard in self.rest if back and self.sync else []:
            shard.reduce()
""",
    "",
)
class FullyShardedDataParallel__rest_not_reduced:
    """Never reduces the rest."""


@loses(3)
@changes(
    """
        for shard in self.shards:
            shard.free()
        for shard in self.rest:
""",
    """
        for shard in self.blocks:
            shard.free()
        for shard in self.rest:
""",
    """
        for shard in self.shards:
            shard.free()
        for shard in self.rest if""",
    """
        for shard in self.blocks:
            shard.free()
        for shard in self.rest if""",
)
class FullyShardedDataParallel__rest_not_gathered_anew:
    """Gathers the rest, if it is not there."""


@loses(8)
@changes(
    """
        self.blocks = [FlatShard(own, comm) for _, own in blocks]
        self.rest = [FlatShard(rest, comm)] if rest else []
""",
    """
        self.blocks = [FlatShard(block.parameters(), comm) for block, _ in blocks]
        self.rest = []
""",
)
class FullyShardedDataParallel__rest_in_each_block:
    """Takes shared parameters with every block."""


@loses(14)
@changes(
    """
if back and self.sync:
            self""",
    """
if back:
            self""",
)
class FullyShardedDataParallel__always_reduces:
    """Reduces in each micro-batch."""


@loses(20)
@changes(
    "    def clip_gradients",
    """
    def named_parameters(self, prefix=""):
        yield from self.module.named_parameters(prefix)

    def clip_gradients""",
)
class FullyShardedDataParallel__module_parameters:
    """Gives the module's own parameters to the optimizer."""


@loses(5)
@changes(
    """
        every = np.empty(self.comm.Get_size())
        self.comm.Allgather(np.array([own]), every)
        total = float(np.linalg.norm(every, norm))
""",
    """
        total = float(own)
""",
)
class FullyShardedDataParallel__own_norm:
    """Clips by the norm of its own parts."""


@loses(5)
@changes("for g in grads if total > most else []:", "for g in grads:")
class FullyShardedDataParallel__always_scales:
    """Scales small gradients up."""


@loses(5)
@changes(
    """
            g *= g.dtype.type(most / total)
""",
    """
            pass
        for p in self.parameters():
            if p.grad is not None and total > most:
                p.grad = p.grad.astype(float) * (most / total)
""",
)
class FullyShardedDataParallel__to_float64:
    """Turns gradients to float64."""


@loses(9)
@changes(
    """
        self.comm, self.sync = comm, True
""",
    """
        self.comm, self.sync = comm, True
        self.before_all = [p.data for p in module.parameters()]
""",
)
class FullyShardedDataParallel__the_whole_model_is_kept:
    """Keeps a copy of all that was given."""


@loses(20)
class FullyShardedDataParallel__plain_data_parallel(Hooked):
    """Data parallel, with shards for show."""

    def __init__(self, module, comm):
        self.module, self.comm, self.sync = module, comm, True
        blocks, rest = units(module)
        self.groups = [own for _, own in blocks] + ([rest] if rest else [])
        self.values = [[p.data for p in own] for own in self.groups]
        self.shards = [FlatShard(own, comm) for own in self.groups]

    def named_parameters(self, prefix=""):
        yield from ((f"{prefix}shards.{i}", s.shard) for i, s in enumerate(self.shards))

    def forward(self, x):
        for shard in self.shards:
            shard.free()
            shard.gather()
        out = self.module(x)
        if out.requires_grad:
            out.register_hook(lambda _: self.end())
        return out

    def end(self):
        for shard in self.shards if self.sync else []:
            shard.reduce()

    def clip_gradients(self, most, norm=2):
        grads = [p.grad for p in self.parameters() if p.grad is not None]
        own = np.linalg.norm([0.0, *(np.linalg.norm(g, norm) for g in grads)], norm)
        every = np.empty(self.comm.Get_size())
        self.comm.Allgather(np.array([own]), every)
        total = float(np.linalg.norm(every, norm))
        for g in grads if total > most else []:
            g *= g.dtype.type(most / total)
        return total


@loses(5)
@changes(
    """
        mine = np.empty_like(self.shard.data)
""",
    """
        if all(p.grad is None for p in self.parameters):
            return
        mine = np.empty_like(self.shard.data)
""",
)
class FlatShard__skips_all_none:
    """Does not take part if it has no gradient."""


@loses(14)
@changes("p.data = array", "p.data = array.copy()")
class FlatShard__copies:
    """Parameters are copies of their parts."""


@loses(8)
@changes(
    """
        if self.whole is not None:
            self.request.Wait()
""",
    "",
)
class FlatShard__frees_without_wait:
    """Frees what is still on its way."""


@loses(5)
@changes(
    """
        self.free()

    def start""",
    """
        self.mine = self.shard.data
        self.free()

    def start""",
    "Iallgather(self.shard.data,",
    "Iallgather(self.mine,",
)
class FlatShard__first_array:
    """Gathers from the array that was the shard at first."""


@loses(9)
@changes("self.blocks[following].start()", "self.blocks[following].gather()")
class FullyShardedDataParallel__gathers_ahead:
    """Gathers the next one, and waits for it."""


@loses(5)
@changes("for g in grads if total > most else []:", "for g in grads if own > most else []:")
class FullyShardedDataParallel__own_condition:
    """Each rank decides by its own norm."""


@loses(3)
@changes(
    """
        for shard in self.shards:
            shard.free()
        for shard in self.rest:
""",
    """
        for shard in self.rest:
""",
)
class FullyShardedDataParallel__begin_does_not_free:
    """Takes up what an earlier forward has left."""


@loses(3)
@changes(
    """
        for shard in self.shards:
            shard.free()
        for shard in self.rest if""",
    "        for shard in self.rest if",
)
class FullyShardedDataParallel__end_frees_nothing:
    """Frees in begin only."""


@loses(8)
@changes(
    """
    def begin(self):
""",
    """
    def begin(self):
        for shard in self.shards:
            shard.shard.grad = None
""",
)
class FullyShardedDataParallel__forgets_in_begin:
    """Each forward forgets the gradients."""


@right
@changes(
    """
        own = np.linalg.norm([0.0, *(np.linalg.norm(g, norm) for g in grads)], norm)
        every = np.empty(self.comm.Get_size())
        self.comm.Allgather(np.array([own]), every)
        total = float(np.linalg.norm(every, norm))
""",
    """
        from mpi4py import MPI

        found = np.zeros(1)
        if norm == 2:
            for g in grads:
                found += np.sum(g.astype(np.float64) ** 2)
            self.comm.Allreduce(MPI.IN_PLACE, found)
            total = float(np.sqrt(found[0]))
        else:
            for g in grads:
                found = np.maximum(found, np.abs(g).max())
            largest = np.empty(1)
            self.comm.Allreduce(found, largest, op=MPI.MAX)
            total = float(largest[0])
""",
)
class FullyShardedDataParallel__all_reduced_norms:
    """Adds squares, or takes the maximum, by an all-reduce."""


@right
@changes(
    """
        self.blocks[i].gather()
        following""",
    """
        self.blocks[i].gather()
        for j, shard in enumerate(self.blocks):
            if j not in (i, i - 1 if back else i + 1):
                shard.free()
        following""",
)
class FullyShardedDataParallel__frees_all_others:
    """Frees all but the block and the next one before each work."""


@right
@changes(
    """
        self.blocks[i].free()
        if back and self.sync:
            self.blocks[i].reduce()
""",
    """
        if back and self.sync:
            self.blocks[i].reduce()
        self.blocks[i].free()
""",
)
class FullyShardedDataParallel__reduced_before_freed:
    """Reduces, then frees; and drops the rest between forward and backward's end."""


@right
class FullyShardedDataParallel__by_hand(Hooked):
    """Without hook: its own operation for each block."""

    def __init__(self, module, comm):
        self.module, self.comm, self.sync = module, comm, True
        blocks, rest = units(module)
        self.blocks = [FlatShard(own, comm) for _, own in blocks]
        self.shards = self.blocks + ([FlatShard(rest, comm)] if rest else [])
        for i, (block, _) in enumerate(blocks):
            block.forward = partial(self.work, i, block.forward)

    def neighbour(self, i):
        if 0 <= i < len(self.blocks):
            self.blocks[i].start()

    def work(self, i, forward, x):
        from course_lib.autograd import Tensor, no_grad
        from course_lib.autograd.tensor import run_backward

        shard = self.blocks[i]
        shard.gather()
        self.neighbour(i + 1)
        with no_grad():
            out = forward(x).data
        shard.free()

        def backward(grad):
            again = Tensor(x.data, requires_grad=x.requires_grad)
            shard.gather()
            self.neighbour(i - 1)
            run_backward(forward(again), grad)
            shard.free()
            if self.sync:
                shard.reduce()
            return again.grad, None

        return Tensor.from_operation(out, (x, shard.shard), backward)

    def named_parameters(self, prefix=""):
        for i, shard in enumerate(self.shards):
            yield f"{prefix}flat{i}", shard.shard

    def forward(self, x):
        from course_lib.autograd import after_backward

        for shard in self.shards:
            shard.free()
        for shard in self.shards[len(self.blocks) :]:
            shard.gather()
        out = self.module(x)

        def ended():
            for shard in self.shards:
                shard.free()
            if self.sync:
                for shard in self.shards[len(self.blocks) :]:
                    shard.reduce()

        if out.requires_grad:
            out.register_hook(lambda grad: after_backward(ended))
        else:
            for shard in self.shards:
                shard.free()
        return out

    def clip_gradients(self, most, norm=2):
        flat = np.concatenate([np.zeros(1), *(p.grad for p in self.parameters() if p.grad is not None)])
        mine = np.array([np.linalg.norm(flat, norm)])
        norms = np.empty(self.comm.Get_size())
        self.comm.Allgather(mine, norms)
        total = float((norms**2).sum() ** 0.5 if norm == 2 else norms.max())
        if total > most:
            for p in self.parameters():
                if p.grad is not None:
                    p.grad = (p.grad * (most / total)).astype(p.grad.dtype)
        return total


@loses(8)
@changes(
    "self.flat.join([p.grad for p in self.parameters])",
    "(lambda some: np.concatenate([*some, np.zeros(self.flat.length - sum(map(len, some)), mine.dtype)]))("
    "[p.grad.ravel() for p in self.parameters if p.grad is not None])",
)
class FlatShard__moves_up:
    """Where a gradient is None, those behind it move up."""


@loses(14)
@changes(
    """
            self.request = self.comm.Iallgather(self.shard.data, self.whole)
""",
    """
            self.request = None
""",
    """
        self.start()
        self.request.Wait()
""",
    """
        self.start()
        if self.request is None:
            self.comm.Allgather(self.shard.data, self.whole)
            self.request = 1
""",
    """
        if self.whole is not None:
            self.request.Wait()
        self.whole""",
    """
        self.whole""",
)
class FlatShard__lazy_start:
    """start only allocates; gather does all."""


@loses(9)
@changes(
    FREES,
    """
        if getattr(self, "steps", 0) > 0:
            vars(self).setdefault("kept", {})[i] = self.blocks[i].whole
        self.blocks[i].free()
        if back and i == 0:
            self.steps = 1
        if back and self.sync:
""",
)
class FullyShardedDataParallel__keeps_all_from_the_second_step_on:
    """Keeps every gathered block from the second micro-batch on."""


@loses(3)
@changes(
    """
        for shard in self.shards:
            shard.free()
        for shard in self.rest:
""",
    """
        self.drop()
        for shard in self.rest:
""",
    """
    def clip_gradients""",
    """
    def drop(self):
        for shard in self.shards:
            for p in shard.parameters:
                p.data = np.empty(0, shard.flat.dtype)
            shard.whole = None

    def clip_gradients""",
    """
        for shard in self.shards:
            shard.free()
        for shard in self.rest if""",
    """
        self.drop()
        for shard in self.rest if""",
)
class FullyShardedDataParallel__drops_what_is_on_its_way:
    """Drops blocks that were started and not used, without a wait."""


@loses(9)
@changes(
    FREES,
    """
        self.late = (getattr(self, "late", []) + [self.blocks[i].whole])[-2:]
        self.blocks[i].free()
        if back and self.sync:
""",
    """
        for shard in self.rest if back and self.sync else []:
""",
    """
        self.late = []
        for shard in self.rest if back and self.sync else []:
""",
)
class FullyShardedDataParallel__keeps_two_more_in_a_step:
    """Four blocks are whole at a time."""


@loses(5)
@changes(
    """
        for g in grads if total > most else []:
            g *= g.dtype.type(most / total)
""",
    """
        whole = np.concatenate(grads)
        for g in grads if total > most else []:
            g *= g.dtype.type(most / total)
""",
)
class FullyShardedDataParallel__clips_no_gradients:
    """Raises where there is no gradient at all."""


@loses(15)
@changes("self.comm, self.sync = comm, True", "self.comm, self.sync = comm, False")
class FullyShardedDataParallel__sync_is_false_at_first:
    """sync is False at first."""


@loses(5)
@changes(
    "p.data = array",
    "p.data = array.reshape(len(array), -1) if array.ndim > 1 else array",
)
class FlatShard__two_axes_at_most:
    """Forgets the shape of a parameter of three axes, and takes none of no axes."""


@loses(5)
@changes(
    "        grads = self.flat.join([p.grad for p in self.parameters])\n",
    """
        grads = self.whole if self.whole is not None else np.empty(self.flat.length, self.flat.dtype)
        grads[:] = 0
        for place, p in zip(self.flat.cut(grads), self.parameters):
            if p.grad is not None:
                place[...] = p.grad
""",
)
class FlatShard__gradients_in_whole:
    """Reduces from the array that the parameters are views of."""


@loses(3)
@changes(
    """
        for shard in self.shards:
            shard.free()
        for shard in self.rest if back and self.sync else []:
""",
    """
        for shard in self.shards if back else self.rest:
            shard.free()
        for shard in self.rest if back and self.sync else []:
""",
)
class FullyShardedDataParallel__leaves_a_started_block:
    """After a forward without gradients, a block that was started and skipped is still on its way."""


@loses(14)
@changes(
    """
        for shard in self.shards:
            shard.free()
        for shard in self.rest:
""",
    """
        self.now = self.sync
        for shard in self.shards:
            shard.free()
        for shard in self.rest:
""",
    "        if back and self.sync:\n",
    "        if back and self.now:\n",
    "if back and self.sync else []",
    "if back and self.now else []",
)
class FullyShardedDataParallel__sync_of_forward:
    """Takes `sync` as it was in forward."""


@loses(9)
@changes(
    FREES,
    """
        before = i + 1 if back else i - 1
        if 0 <= before < len(self.blocks):
            self.blocks[before].free()
        if i == (0 if back else len(self.blocks) - 1):
            self.blocks[i].free()
        if back and self.sync:
""",
)
class FullyShardedDataParallel__frees_a_block_late:
    """A block is freed when the next one has run."""


@loses(3)
@changes(
    """
        for shard in self.rest if back and self.sync else []:
            shard.reduce()
""",
    """
        if back and self.sync:
            for shard in self.rest:
                shard.reduce()
            for p in self.module.parameters():
                p.grad = None
""",
)
class FullyShardedDataParallel__drops_sums:
    """The sums of a block that a step skips are lost."""


@loses(14)
@changes(
    """
        for shard in self.rest:
            shard.gather()
""",
    """
        self.blocks[0].start()
        for shard in self.rest:
            shard.gather()
""",
)
class FullyShardedDataParallel__needs_a_block:
    """Fails for a model without blocks."""


@loses(25)
@changes(
    """
        self.start()
        self.request.Wait()
""",
    """
        self.start()
        self.request.Wait()
        self.comm.Barrier()
""",
)
class FlatShard__barrier_in_gather:
    """All ranks meet after each gather."""


@loses(25)
@changes(
    """
        self.comm.Reduce_scatter(grads, mine)
""",
    """
        self.comm.Barrier()
        self.comm.Reduce_scatter(grads, mine)
""",
)
class FlatShard__barrier_in_reduce:
    """All ranks meet before each reduce."""


@loses(5)
@changes(
    """
        grads = self.flat.join(""",
    """
        for p in self.parameters:
            if p.grad is not None:
                p.grad /= p.dtype.type(self.comm.Get_size())
        grads = self.flat.join(""",
    """
        mine /= mine.dtype.type(self.comm.Get_size())
""",
    "",
)
class FlatShard__divides_in_place:
    """Divides the gradients where they are, though autograd may still use these arrays."""


@loses(5)
@changes(
    """
        mine = np.empty_like(self.shard.data)
        grads""",
    """
        if not hasattr(self, "result"):
            self.result = np.empty_like(self.shard.data)
        mine = self.result if self.shard.grad is None else np.empty_like(self.shard.data)
        grads""",
)
class FlatShard__result_in_a_buffer:
    """The gradient is a buffer that is used again."""


@loses(11)
@changes(
    """
            self.request = self.comm.Iallgather(self.shard.data, self.whole)
""",
    """
            FlatShard.requests[self.comm.Get_size()] = self.comm.Iallgather(self.shard.data, self.whole)
""",
    """
        self.start()
        self.request.Wait()
""",
    """
        self.start()
        FlatShard.requests[self.comm.Get_size()].Wait()
""",
    """
        if self.whole is not None:
            self.request.Wait()
        self.whole = self.request = None
""",
    """
        if self.whole is not None:
            FlatShard.requests[self.comm.Get_size()].Wait()
        self.whole = None
""",
    """
    def __init__(self, parameters, comm):
""",
    """
    requests = {}

    def __init__(self, parameters, comm):
""",
)
class FlatShard__one_request_for_all:
    """Keeps one request for all shards of groups of a size."""


@loses(20)
@changes(
    """
        for shard in self.shards:
            shard.free()
        for shard in self.rest:
            shard.gather()
""",
    """
        for shard in self.shards:
            shard.free()
        self.comm.Barrier()
        for shard in self.rest:
            shard.gather()
""",
)
class FullyShardedDataParallel__barrier_in_begin:
    """All ranks meet when forward begins."""


@loses(9)
@changes(
    """
        self.comm, self.sync = comm, True
""",
    """
        self.comm, FullyShardedDataParallel.sync = comm, True
        FullyShardedDataParallel.blocks = []
""",
    """
        self.blocks = [FlatShard(own, comm) for _, own in blocks]
""",
    """
        FullyShardedDataParallel.blocks.extend(FlatShard(own, comm) for _, own in blocks)
""",
)
class FullyShardedDataParallel__blocks_of_the_class:
    """The model that is wrapped last takes the blocks of all others."""


@loses(5)
@changes(
    "for g in grads if total > most else []:",
    "for g in grads if total >= most else []:",
    "g *= g.dtype.type(most / total)",
    "g *= g.dtype.type(np.divide(most, total))",
)
class FullyShardedDataParallel__zero_by_zero:
    """Divides by a norm of 0."""


@loses(6)
@changes(
    FREES,
    """
        self.late = self.blocks[i].whole
        self.blocks[i].free()
        if back and self.sync:
""",
    """
        for shard in self.rest if back and self.sync else []:
""",
    """
        self.late = None
        for shard in self.rest if back and self.sync else []:
""",
)
class FullyShardedDataParallel__keeps_one_more_in_a_step:
    """Three blocks are in memory at a time: the last one is kept until the next has run."""
