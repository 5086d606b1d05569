"""Answers to part 26: wrong ones with the points that each must lose, and other right ones."""

from grading.answers import loses, right


@loses(25)
class FlatShard__of_another_rank:
    """The parts the wrong way round."""

    def __init__(self, parameters, comm):
        arrays, n = [p.data for p in parameters], comm.Get_size()
        self.parameters, self.comm, self.whole = parameters, comm, None
        self.flat = Flat(arrays, n)
        self.shard = Parameter(np.split(self.flat.join(arrays), n)[-1 - comm.Get_rank()].copy())
        self.free()

    def start(self):
        if self.whole is None:
            self.whole = np.empty(self.flat.length, self.flat.dtype)
            self.request = self.comm.Iallgather(self.shard.data, self.whole)

    def gather(self):
        self.start()
        self.request.Wait()
        for p, array in zip(self.parameters, self.flat.cut(self.whole), strict=True):
            p.data = array

    def free(self):
        if self.whole is not None:
            self.request.Wait()
        self.whole = self.request = None
        for p in self.parameters:
            p.data = np.empty(0, self.flat.dtype)

    def reduce(self):
        mine = np.empty_like(self.shard.data)
        grads = self.flat.join([p.grad for p in self.parameters])
        self.comm.Reduce_scatter(grads, mine)
        mine /= mine.dtype.type(self.comm.Get_size())
        self.shard.grad = mine if self.shard.grad is None else self.shard.grad + mine
        for p in self.parameters:
            p.grad = None
        ### END SOLUTION


@loses(6)
class FlatShard__a_view:
    """Keeps the whole flat array, as its part is a view of it."""

    def __init__(self, parameters, comm):
        arrays, n = [p.data for p in parameters], comm.Get_size()
        self.parameters, self.comm, self.whole = parameters, comm, None
        self.flat = Flat(arrays, n)
        self.shard = Parameter(np.split(self.flat.join(arrays), n)[comm.Get_rank()])
        self.free()

    def start(self):
        if self.whole is None:
            self.whole = np.empty(self.flat.length, self.flat.dtype)
            self.request = self.comm.Iallgather(self.shard.data, self.whole)

    def gather(self):
        self.start()
        self.request.Wait()
        for p, array in zip(self.parameters, self.flat.cut(self.whole), strict=True):
            p.data = array

    def free(self):
        if self.whole is not None:
            self.request.Wait()
        self.whole = self.request = None
        for p in self.parameters:
            p.data = np.empty(0, self.flat.dtype)

    def reduce(self):
        mine = np.empty_like(self.shard.data)
        grads = self.flat.join([p.grad for p in self.parameters])
        self.comm.Reduce_scatter(grads, mine)
        mine /= mine.dtype.type(self.comm.Get_size())
        self.shard.grad = mine if self.shard.grad is None else self.shard.grad + mine
        for p in self.parameters:
            p.grad = None
        ### END SOLUTION


@loses(14)
class FlatShard__waits_in_start:
    """Begins, and waits at once."""

    def __init__(self, parameters, comm):
        arrays, n = [p.data for p in parameters], comm.Get_size()
        self.parameters, self.comm, self.whole = parameters, comm, None
        self.flat = Flat(arrays, n)
        self.shard = Parameter(np.split(self.flat.join(arrays), n)[comm.Get_rank()].copy())
        self.free()

    def start(self):
        if self.whole is None:
            self.whole = np.empty(self.flat.length, self.flat.dtype)
            self.request = self.comm.Iallgather(self.shard.data, self.whole)
            self.request.Wait()

    def gather(self):
        self.start()
        self.request.Wait()
        for p, array in zip(self.parameters, self.flat.cut(self.whole), strict=True):
            p.data = array

    def free(self):
        if self.whole is not None:
            self.request.Wait()
        self.whole = self.request = None
        for p in self.parameters:
            p.data = np.empty(0, self.flat.dtype)

    def reduce(self):
        mine = np.empty_like(self.shard.data)
        grads = self.flat.join([p.grad for p in self.parameters])
        self.comm.Reduce_scatter(grads, mine)
        mine /= mine.dtype.type(self.comm.Get_size())
        self.shard.grad = mine if self.shard.grad is None else self.shard.grad + mine
        for p in self.parameters:
            p.grad = None
        ### END SOLUTION


@loses(25)
class FlatShard__begins_anew:
    """Each start begins anew."""

    def __init__(self, parameters, comm):
        arrays, n = [p.data for p in parameters], comm.Get_size()
        self.parameters, self.comm, self.whole = parameters, comm, None
        self.flat = Flat(arrays, n)
        self.shard = Parameter(np.split(self.flat.join(arrays), n)[comm.Get_rank()].copy())
        self.free()

    def start(self):
        self.whole = np.empty(self.flat.length, self.flat.dtype)
        self.request = self.comm.Iallgather(self.shard.data, self.whole)

    def gather(self):
        self.start()
        self.request.Wait()
        for p, array in zip(self.parameters, self.flat.cut(self.whole), strict=True):
            p.data = array

    def free(self):
        if self.whole is not None:
            self.request.Wait()
        self.whole = self.request = None
        for p in self.parameters:
            p.data = np.empty(0, self.flat.dtype)

    def reduce(self):
        mine = np.empty_like(self.shard.data)
        grads = self.flat.join([p.grad for p in self.parameters])
        self.comm.Reduce_scatter(grads, mine)
        mine /= mine.dtype.type(self.comm.Get_size())
        self.shard.grad = mine if self.shard.grad is None else self.shard.grad + mine
        for p in self.parameters:
            p.grad = None
        ### END SOLUTION


@loses(25)
class FlatShard__no_wait:
    """Does not wait for what has begun."""

    def __init__(self, parameters, comm):
        arrays, n = [p.data for p in parameters], comm.Get_size()
        self.parameters, self.comm, self.whole = parameters, comm, None
        self.flat = Flat(arrays, n)
        self.shard = Parameter(np.split(self.flat.join(arrays), n)[comm.Get_rank()].copy())
        self.free()

    def start(self):
        if self.whole is None:
            self.whole = np.empty(self.flat.length, self.flat.dtype)
            self.request = self.comm.Iallgather(self.shard.data, self.whole)

    def gather(self):
        self.start()
        for p, array in zip(self.parameters, self.flat.cut(self.whole), strict=True):
            p.data = array

    def free(self):
        if self.whole is not None:
            self.request.Wait()
        self.whole = self.request = None
        for p in self.parameters:
            p.data = np.empty(0, self.flat.dtype)

    def reduce(self):
        mine = np.empty_like(self.shard.data)
        grads = self.flat.join([p.grad for p in self.parameters])
        self.comm.Reduce_scatter(grads, mine)
        mine /= mine.dtype.type(self.comm.Get_size())
        self.shard.grad = mine if self.shard.grad is None else self.shard.grad + mine
        for p in self.parameters:
            p.grad = None
        ### END SOLUTION


@loses(25)
class FlatShard__stale:
    """Gathers once, and keeps the array for later."""

    def __init__(self, parameters, comm):
        arrays, n = [p.data for p in parameters], comm.Get_size()
        self.parameters, self.comm, self.whole = parameters, comm, None
        self.flat = Flat(arrays, n)
        self.shard = Parameter(np.split(self.flat.join(arrays), n)[comm.Get_rank()].copy())
        self.free()

    def start(self):
        if getattr(self, "kept", None) is not None:
            self.whole = self.kept
        if self.whole is None:
            self.whole = np.empty(self.flat.length, self.flat.dtype)
            self.request = self.comm.Iallgather(self.shard.data, self.whole)

    def gather(self):
        self.start()
        self.request.Wait()
        for p, array in zip(self.parameters, self.flat.cut(self.whole), strict=True):
            p.data = array

    def free(self):
        if self.whole is not None:
            self.request.Wait()
        self.kept, self.whole = self.whole if self.whole is not None else getattr(self, "kept", None), None
        for p in self.parameters:
            p.data = np.empty(0, self.flat.dtype)

    def reduce(self):
        mine = np.empty_like(self.shard.data)
        grads = self.flat.join([p.grad for p in self.parameters])
        self.comm.Reduce_scatter(grads, mine)
        mine /= mine.dtype.type(self.comm.Get_size())
        self.shard.grad = mine if self.shard.grad is None else self.shard.grad + mine
        for p in self.parameters:
            p.grad = None
        ### END SOLUTION


@loses(25)
class FlatShard__keeps_whole:
    """free forgets the parameters' data only."""

    def __init__(self, parameters, comm):
        arrays, n = [p.data for p in parameters], comm.Get_size()
        self.parameters, self.comm, self.whole = parameters, comm, None
        self.flat = Flat(arrays, n)
        self.shard = Parameter(np.split(self.flat.join(arrays), n)[comm.Get_rank()].copy())
        self.free()

    def start(self):
        if self.whole is None:
            self.whole = np.empty(self.flat.length, self.flat.dtype)
            self.request = self.comm.Iallgather(self.shard.data, self.whole)

    def gather(self):
        self.start()
        self.request.Wait()
        for p, array in zip(self.parameters, self.flat.cut(self.whole), strict=True):
            p.data = array

    def free(self):
        if self.whole is not None:
            self.request.Wait()
        self.request.Wait() if self.whole is not None else None
        for p in self.parameters:
            p.data = np.empty(0, self.flat.dtype)

    def reduce(self):
        mine = np.empty_like(self.shard.data)
        grads = self.flat.join([p.grad for p in self.parameters])
        self.comm.Reduce_scatter(grads, mine)
        mine /= mine.dtype.type(self.comm.Get_size())
        self.shard.grad = mine if self.shard.grad is None else self.shard.grad + mine
        for p in self.parameters:
            p.grad = None
        ### END SOLUTION


@loses(25)
class FlatShard__sum:
    """The sum of the ranks' gradients."""

    def __init__(self, parameters, comm):
        arrays, n = [p.data for p in parameters], comm.Get_size()
        self.parameters, self.comm, self.whole = parameters, comm, None
        self.flat = Flat(arrays, n)
        self.shard = Parameter(np.split(self.flat.join(arrays), n)[comm.Get_rank()].copy())
        self.free()

    def start(self):
        if self.whole is None:
            self.whole = np.empty(self.flat.length, self.flat.dtype)
            self.request = self.comm.Iallgather(self.shard.data, self.whole)

    def gather(self):
        self.start()
        self.request.Wait()
        for p, array in zip(self.parameters, self.flat.cut(self.whole), strict=True):
            p.data = array

    def free(self):
        if self.whole is not None:
            self.request.Wait()
        self.whole = self.request = None
        for p in self.parameters:
            p.data = np.empty(0, self.flat.dtype)

    def reduce(self):
        mine = np.empty_like(self.shard.data)
        grads = self.flat.join([p.grad for p in self.parameters])
        self.comm.Reduce_scatter(grads, mine)
        self.shard.grad = mine if self.shard.grad is None else self.shard.grad + mine
        for p in self.parameters:
            p.grad = None
        ### END SOLUTION


@loses(13)
class FlatShard__replaces:
    """Replaces the gradient that is there."""

    def __init__(self, parameters, comm):
        arrays, n = [p.data for p in parameters], comm.Get_size()
        self.parameters, self.comm, self.whole = parameters, comm, None
        self.flat = Flat(arrays, n)
        self.shard = Parameter(np.split(self.flat.join(arrays), n)[comm.Get_rank()].copy())
        self.free()

    def start(self):
        if self.whole is None:
            self.whole = np.empty(self.flat.length, self.flat.dtype)
            self.request = self.comm.Iallgather(self.shard.data, self.whole)

    def gather(self):
        self.start()
        self.request.Wait()
        for p, array in zip(self.parameters, self.flat.cut(self.whole), strict=True):
            p.data = array

    def free(self):
        if self.whole is not None:
            self.request.Wait()
        self.whole = self.request = None
        for p in self.parameters:
            p.data = np.empty(0, self.flat.dtype)

    def reduce(self):
        mine = np.empty_like(self.shard.data)
        grads = self.flat.join([p.grad for p in self.parameters])
        self.comm.Reduce_scatter(grads, mine)
        mine /= mine.dtype.type(self.comm.Get_size())
        self.shard.grad = mine
        for p in self.parameters:
            p.grad = None
        ### END SOLUTION


@loses(25)
class FlatShard__p_grad_stays:
    """Leaves p.grad."""

    def __init__(self, parameters, comm):
        arrays, n = [p.data for p in parameters], comm.Get_size()
        self.parameters, self.comm, self.whole = parameters, comm, None
        self.flat = Flat(arrays, n)
        self.shard = Parameter(np.split(self.flat.join(arrays), n)[comm.Get_rank()].copy())
        self.free()

    def start(self):
        if self.whole is None:
            self.whole = np.empty(self.flat.length, self.flat.dtype)
            self.request = self.comm.Iallgather(self.shard.data, self.whole)

    def gather(self):
        self.start()
        self.request.Wait()
        for p, array in zip(self.parameters, self.flat.cut(self.whole), strict=True):
            p.data = array

    def free(self):
        if self.whole is not None:
            self.request.Wait()
        self.whole = self.request = None
        for p in self.parameters:
            p.data = np.empty(0, self.flat.dtype)

    def reduce(self):
        mine = np.empty_like(self.shard.data)
        grads = self.flat.join([p.grad for p in self.parameters])
        self.comm.Reduce_scatter(grads, mine)
        mine /= mine.dtype.type(self.comm.Get_size())
        self.shard.grad = mine if self.shard.grad is None else self.shard.grad + mine
        ### END SOLUTION


@loses(8)
class FlatShard__none_is_skipped:
    """Skips a gradient that is None."""

    def __init__(self, parameters, comm):
        arrays, n = [p.data for p in parameters], comm.Get_size()
        self.parameters, self.comm, self.whole = parameters, comm, None
        self.flat = Flat(arrays, n)
        self.shard = Parameter(np.split(self.flat.join(arrays), n)[comm.Get_rank()].copy())
        self.free()

    def start(self):
        if self.whole is None:
            self.whole = np.empty(self.flat.length, self.flat.dtype)
            self.request = self.comm.Iallgather(self.shard.data, self.whole)

    def gather(self):
        self.start()
        self.request.Wait()
        for p, array in zip(self.parameters, self.flat.cut(self.whole), strict=True):
            p.data = array

    def free(self):
        if self.whole is not None:
            self.request.Wait()
        self.whole = self.request = None
        for p in self.parameters:
            p.data = np.empty(0, self.flat.dtype)

    def reduce(self):
        mine = np.empty_like(self.shard.data)
        grads = Flat([p.grad for p in self.parameters if p.grad is not None], self.comm.Get_size()).join(
            [p.grad for p in self.parameters if p.grad is not None]
        )
        self.comm.Reduce_scatter(grads, mine)
        mine /= mine.dtype.type(self.comm.Get_size())
        self.shard.grad = mine if self.shard.grad is None else self.shard.grad + mine
        for p in self.parameters:
            p.grad = None
        ### END SOLUTION


@loses(20)
class FlatShard__all_reduced:
    """All-reduces, and takes its part: right, but twice the bytes."""

    def __init__(self, parameters, comm):
        arrays, n = [p.data for p in parameters], comm.Get_size()
        self.parameters, self.comm, self.whole = parameters, comm, None
        self.flat = Flat(arrays, n)
        self.shard = Parameter(np.split(self.flat.join(arrays), n)[comm.Get_rank()].copy())
        self.free()

    def start(self):
        if self.whole is None:
            self.whole = np.empty(self.flat.length, self.flat.dtype)
            self.request = self.comm.Iallgather(self.shard.data, self.whole)

    def gather(self):
        self.start()
        self.request.Wait()
        for p, array in zip(self.parameters, self.flat.cut(self.whole), strict=True):
            p.data = array

    def free(self):
        if self.whole is not None:
            self.request.Wait()
        self.whole = self.request = None
        for p in self.parameters:
            p.data = np.empty(0, self.flat.dtype)

    def reduce(self):
        mine = np.empty_like(self.shard.data)
        grads = self.flat.join([p.grad for p in self.parameters])
        total = np.empty_like(grads)
        self.comm.Allreduce(grads, total)
        mine[:] = np.split(total, self.comm.Get_size())[self.comm.Get_rank()]
        mine /= mine.dtype.type(self.comm.Get_size())
        self.shard.grad = mine if self.shard.grad is None else self.shard.grad + mine
        for p in self.parameters:
            p.grad = None
        ### END SOLUTION


@right
class FlatShard__ireduce_scatter:
    """Reduces with a call that does not block."""

    def __init__(self, parameters, comm):
        arrays, n = [p.data for p in parameters], comm.Get_size()
        self.parameters, self.comm, self.whole = parameters, comm, None
        self.flat = Flat(arrays, n)
        self.shard = Parameter(np.split(self.flat.join(arrays), n)[comm.Get_rank()].copy())
        self.free()

    def start(self):
        if self.whole is None:
            self.whole = np.empty(self.flat.length, self.flat.dtype)
            self.request = self.comm.Iallgather(self.shard.data, self.whole)

    def gather(self):
        self.start()
        self.request.Wait()
        for p, array in zip(self.parameters, self.flat.cut(self.whole), strict=True):
            p.data = array

    def free(self):
        if self.whole is not None:
            self.request.Wait()
        self.whole = self.request = None
        for p in self.parameters:
            p.data = np.empty(0, self.flat.dtype)

    def reduce(self):
        mine = np.empty_like(self.shard.data)
        grads = self.flat.join([p.grad for p in self.parameters])
        self.comm.Ireduce_scatter(grads, mine).Wait()
        mine /= mine.dtype.type(self.comm.Get_size())
        self.shard.grad = mine if self.shard.grad is None else self.shard.grad + mine
        for p in self.parameters:
            p.grad = None
        ### END SOLUTION


@right
class FlatShard__by_hand:
    """Without Flat."""

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
class FullyShardedDataParallel__no_prefetch(Hooked):
    """Gathers each block when it works."""

    def __init__(self, module, comm):
        super().__init__(module)  # hooks, and parameters() from `shards`
        self.comm, self.sync = comm, True
        blocks, rest = units(module)
        self.blocks = [FlatShard(own, comm) for _, own in blocks]
        self.rest = [FlatShard(rest, comm)] if rest else []
        self.shards = self.blocks + self.rest

    def begin(self):
        for shard in self.shards:
            shard.free()
        for shard in self.rest:
            shard.gather()

    def before(self, i, back):
        self.blocks[i].gather()

    def after(self, i, back):
        self.blocks[i].free()
        if back and self.sync:
            self.blocks[i].reduce()

    def end(self, back):
        for shard in self.shards:
            shard.free()
        for shard in self.rest if back and self.sync else []:
            shard.reduce()

    def clip_gradients(self, most, norm=2):
        grads = [p.grad for p in self.parameters() if p.grad is not None]
        own = np.linalg.norm([0.0, *(np.linalg.norm(g, norm) for g in grads)], norm)
        every = np.empty(self.comm.Get_size())
        self.comm.Allgather(np.array([own]), every)
        length = float(np.linalg.norm(every, norm))
        for g in grads if length > most else []:
            g *= g.dtype.type(most / length)
        return length
        ### END SOLUTION


@loses(9)
class FullyShardedDataParallel__two_ahead(Hooked):
    """Starts the next two."""

    def __init__(self, module, comm):
        super().__init__(module)  # hooks, and parameters() from `shards`
        self.comm, self.sync = comm, True
        blocks, rest = units(module)
        self.blocks = [FlatShard(own, comm) for _, own in blocks]
        self.rest = [FlatShard(rest, comm)] if rest else []
        self.shards = self.blocks + self.rest

    def begin(self):
        for shard in self.shards:
            shard.free()
        for shard in self.rest:
            shard.gather()

    def before(self, i, back):
        self.blocks[i].gather()
        following = i - 1 if back else i + 1
        for k in (following, 2 * following - i):
            if 0 <= k < len(self.blocks):
                self.blocks[k].start()

    def after(self, i, back):
        self.blocks[i].free()
        if back and self.sync:
            self.blocks[i].reduce()

    def end(self, back):
        for shard in self.shards:
            shard.free()
        for shard in self.rest if back and self.sync else []:
            shard.reduce()

    def clip_gradients(self, most, norm=2):
        grads = [p.grad for p in self.parameters() if p.grad is not None]
        own = np.linalg.norm([0.0, *(np.linalg.norm(g, norm) for g in grads)], norm)
        every = np.empty(self.comm.Get_size())
        self.comm.Allgather(np.array([own]), every)
        length = float(np.linalg.norm(every, norm))
        for g in grads if length > most else []:
            g *= g.dtype.type(most / length)
        return length
        ### END SOLUTION


@loses(9)
class FullyShardedDataParallel__all_at_first(Hooked):
    """Gathers all blocks when forward begins."""

    def __init__(self, module, comm):
        super().__init__(module)  # hooks, and parameters() from `shards`
        self.comm, self.sync = comm, True
        blocks, rest = units(module)
        self.blocks = [FlatShard(own, comm) for _, own in blocks]
        self.rest = [FlatShard(rest, comm)] if rest else []
        self.shards = self.blocks + self.rest

    def begin(self):
        for shard in self.shards:
            shard.free()
            shard.start()
        for shard in self.rest:
            shard.gather()

    def before(self, i, back):
        self.blocks[i].gather()
        following = i - 1 if back else i + 1
        if 0 <= following < len(self.blocks):
            self.blocks[following].start()

    def after(self, i, back):
        self.blocks[i].free()
        if back and self.sync:
            self.blocks[i].reduce()

    def end(self, back):
        for shard in self.shards:
            shard.free()
        for shard in self.rest if back and self.sync else []:
            shard.reduce()

    def clip_gradients(self, most, norm=2):
        grads = [p.grad for p in self.parameters() if p.grad is not None]
        own = np.linalg.norm([0.0, *(np.linalg.norm(g, norm) for g in grads)], norm)
        every = np.empty(self.comm.Get_size())
        self.comm.Allgather(np.array([own]), every)
        length = float(np.linalg.norm(every, norm))
        for g in grads if length > most else []:
            g *= g.dtype.type(most / length)
        return length
        ### END SOLUTION


@loses(9)
class FullyShardedDataParallel__not_freed_forward(Hooked):
    """Keeps blocks from forward to backward."""

    def __init__(self, module, comm):
        super().__init__(module)  # hooks, and parameters() from `shards`
        self.comm, self.sync = comm, True
        blocks, rest = units(module)
        self.blocks = [FlatShard(own, comm) for _, own in blocks]
        self.rest = [FlatShard(rest, comm)] if rest else []
        self.shards = self.blocks + self.rest

    def begin(self):
        for shard in self.shards:
            shard.free()
        for shard in self.rest:
            shard.gather()

    def before(self, i, back):
        self.blocks[i].gather()
        following = i - 1 if back else i + 1
        if 0 <= following < len(self.blocks):
            self.blocks[following].start()

    def after(self, i, back):
        if back:
            self.blocks[i].free()
        if back and self.sync:
            self.blocks[i].reduce()

    def end(self, back):
        for shard in self.shards:
            shard.free()
        for shard in self.rest if back and self.sync else []:
            shard.reduce()

    def clip_gradients(self, most, norm=2):
        grads = [p.grad for p in self.parameters() if p.grad is not None]
        own = np.linalg.norm([0.0, *(np.linalg.norm(g, norm) for g in grads)], norm)
        every = np.empty(self.comm.Get_size())
        self.comm.Allgather(np.array([own]), every)
        length = float(np.linalg.norm(every, norm))
        for g in grads if length > most else []:
            g *= g.dtype.type(most / length)
        return length
        ### END SOLUTION


@loses(3)
class FullyShardedDataParallel__rest_not_reduced(Hooked):
    """Never reduces the rest."""

    def __init__(self, module, comm):
        super().__init__(module)  # hooks, and parameters() from `shards`
        self.comm, self.sync = comm, True
        blocks, rest = units(module)
        self.blocks = [FlatShard(own, comm) for _, own in blocks]
        self.rest = [FlatShard(rest, comm)] if rest else []
        self.shards = self.blocks + self.rest

    def begin(self):
        for shard in self.shards:
            shard.free()
        for shard in self.rest:
            shard.gather()

    def before(self, i, back):
        self.blocks[i].gather()
        following = i - 1 if back else i + 1
        if 0 <= following < len(self.blocks):
            self.blocks[following].start()

    def after(self, i, back):
        self.blocks[i].free()
        if back and self.sync:
            self.blocks[i].reduce()

    def end(self, back):
        for shard in self.shards:
            shard.free()

    def clip_gradients(self, most, norm=2):
        grads = [p.grad for p in self.parameters() if p.grad is not None]
        own = np.linalg.norm([0.0, *(np.linalg.norm(g, norm) for g in grads)], norm)
        every = np.empty(self.comm.Get_size())
        self.comm.Allgather(np.array([own]), every)
        length = float(np.linalg.norm(every, norm))
        for g in grads if length > most else []:
            g *= g.dtype.type(most / length)
        return length
        ### END SOLUTION


@loses(3)
class FullyShardedDataParallel__rest_not_gathered_anew(Hooked):
    """Gathers the rest, if it is not there."""

    def __init__(self, module, comm):
        super().__init__(module)  # hooks, and parameters() from `shards`
        self.comm, self.sync = comm, True
        blocks, rest = units(module)
        self.blocks = [FlatShard(own, comm) for _, own in blocks]
        self.rest = [FlatShard(rest, comm)] if rest else []
        self.shards = self.blocks + self.rest

    def begin(self):
        for shard in self.blocks:
            shard.free()
        for shard in self.rest:
            shard.gather()

    def before(self, i, back):
        self.blocks[i].gather()
        following = i - 1 if back else i + 1
        if 0 <= following < len(self.blocks):
            self.blocks[following].start()

    def after(self, i, back):
        self.blocks[i].free()
        if back and self.sync:
            self.blocks[i].reduce()

    def end(self, back):
        for shard in self.blocks:
            shard.free()
        for shard in self.rest if back and self.sync else []:
            shard.reduce()

    def clip_gradients(self, most, norm=2):
        grads = [p.grad for p in self.parameters() if p.grad is not None]
        own = np.linalg.norm([0.0, *(np.linalg.norm(g, norm) for g in grads)], norm)
        every = np.empty(self.comm.Get_size())
        self.comm.Allgather(np.array([own]), every)
        length = float(np.linalg.norm(every, norm))
        for g in grads if length > most else []:
            g *= g.dtype.type(most / length)
        return length
        ### END SOLUTION


@loses(8)
class FullyShardedDataParallel__rest_in_each_block(Hooked):
    """Takes shared parameters with every block."""

    def __init__(self, module, comm):
        super().__init__(module)  # hooks, and parameters() from `shards`
        self.comm, self.sync = comm, True
        blocks, rest = units(module)
        self.blocks = [FlatShard(block.parameters(), comm) for block, _ in blocks]
        self.rest = []
        self.shards = self.blocks + self.rest

    def begin(self):
        for shard in self.shards:
            shard.free()
        for shard in self.rest:
            shard.gather()

    def before(self, i, back):
        self.blocks[i].gather()
        following = i - 1 if back else i + 1
        if 0 <= following < len(self.blocks):
            self.blocks[following].start()

    def after(self, i, back):
        self.blocks[i].free()
        if back and self.sync:
            self.blocks[i].reduce()

    def end(self, back):
        for shard in self.shards:
            shard.free()
        for shard in self.rest if back and self.sync else []:
            shard.reduce()

    def clip_gradients(self, most, norm=2):
        grads = [p.grad for p in self.parameters() if p.grad is not None]
        own = np.linalg.norm([0.0, *(np.linalg.norm(g, norm) for g in grads)], norm)
        every = np.empty(self.comm.Get_size())
        self.comm.Allgather(np.array([own]), every)
        length = float(np.linalg.norm(every, norm))
        for g in grads if length > most else []:
            g *= g.dtype.type(most / length)
        return length
        ### END SOLUTION


@loses(14)
class FullyShardedDataParallel__always_reduces(Hooked):
    """Reduces in each micro-batch."""

    def __init__(self, module, comm):
        super().__init__(module)  # hooks, and parameters() from `shards`
        self.comm, self.sync = comm, True
        blocks, rest = units(module)
        self.blocks = [FlatShard(own, comm) for _, own in blocks]
        self.rest = [FlatShard(rest, comm)] if rest else []
        self.shards = self.blocks + self.rest

    def begin(self):
        for shard in self.shards:
            shard.free()
        for shard in self.rest:
            shard.gather()

    def before(self, i, back):
        self.blocks[i].gather()
        following = i - 1 if back else i + 1
        if 0 <= following < len(self.blocks):
            self.blocks[following].start()

    def after(self, i, back):
        self.blocks[i].free()
        if back:
            self.blocks[i].reduce()

    def end(self, back):
        for shard in self.shards:
            shard.free()
        for shard in self.rest if back and self.sync else []:
            shard.reduce()

    def clip_gradients(self, most, norm=2):
        grads = [p.grad for p in self.parameters() if p.grad is not None]
        own = np.linalg.norm([0.0, *(np.linalg.norm(g, norm) for g in grads)], norm)
        every = np.empty(self.comm.Get_size())
        self.comm.Allgather(np.array([own]), every)
        length = float(np.linalg.norm(every, norm))
        for g in grads if length > most else []:
            g *= g.dtype.type(most / length)
        return length
        ### END SOLUTION


@loses(20)
class FullyShardedDataParallel__module_parameters(Hooked):
    """Gives the module's own parameters to the optimizer."""

    def __init__(self, module, comm):
        super().__init__(module)  # hooks, and parameters() from `shards`
        self.comm, self.sync = comm, True
        blocks, rest = units(module)
        self.blocks = [FlatShard(own, comm) for _, own in blocks]
        self.rest = [FlatShard(rest, comm)] if rest else []
        self.shards = self.blocks + self.rest

    def begin(self):
        for shard in self.shards:
            shard.free()
        for shard in self.rest:
            shard.gather()

    def before(self, i, back):
        self.blocks[i].gather()
        following = i - 1 if back else i + 1
        if 0 <= following < len(self.blocks):
            self.blocks[following].start()

    def after(self, i, back):
        self.blocks[i].free()
        if back and self.sync:
            self.blocks[i].reduce()

    def end(self, back):
        for shard in self.shards:
            shard.free()
        for shard in self.rest if back and self.sync else []:
            shard.reduce()

    def named_parameters(self, prefix=""):
        yield from self.module.named_parameters(prefix)

    def clip_gradients(self, most, norm=2):
        grads = [p.grad for p in self.parameters() if p.grad is not None]
        own = np.linalg.norm([0.0, *(np.linalg.norm(g, norm) for g in grads)], norm)
        every = np.empty(self.comm.Get_size())
        self.comm.Allgather(np.array([own]), every)
        length = float(np.linalg.norm(every, norm))
        for g in grads if length > most else []:
            g *= g.dtype.type(most / length)
        return length
        ### END SOLUTION


@loses(5)
class FullyShardedDataParallel__own_length(Hooked):
    """Clips by the length of its own parts."""

    def __init__(self, module, comm):
        super().__init__(module)  # hooks, and parameters() from `shards`
        self.comm, self.sync = comm, True
        blocks, rest = units(module)
        self.blocks = [FlatShard(own, comm) for _, own in blocks]
        self.rest = [FlatShard(rest, comm)] if rest else []
        self.shards = self.blocks + self.rest

    def begin(self):
        for shard in self.shards:
            shard.free()
        for shard in self.rest:
            shard.gather()

    def before(self, i, back):
        self.blocks[i].gather()
        following = i - 1 if back else i + 1
        if 0 <= following < len(self.blocks):
            self.blocks[following].start()

    def after(self, i, back):
        self.blocks[i].free()
        if back and self.sync:
            self.blocks[i].reduce()

    def end(self, back):
        for shard in self.shards:
            shard.free()
        for shard in self.rest if back and self.sync else []:
            shard.reduce()

    def clip_gradients(self, most, norm=2):
        grads = [p.grad for p in self.parameters() if p.grad is not None]
        own = np.linalg.norm([0.0, *(np.linalg.norm(g, norm) for g in grads)], norm)
        length = float(own)
        for g in grads if length > most else []:
            g *= g.dtype.type(most / length)
        return length
        ### END SOLUTION


@loses(5)
class FullyShardedDataParallel__always_scales(Hooked):
    """Scales short gradients up."""

    def __init__(self, module, comm):
        super().__init__(module)  # hooks, and parameters() from `shards`
        self.comm, self.sync = comm, True
        blocks, rest = units(module)
        self.blocks = [FlatShard(own, comm) for _, own in blocks]
        self.rest = [FlatShard(rest, comm)] if rest else []
        self.shards = self.blocks + self.rest

    def begin(self):
        for shard in self.shards:
            shard.free()
        for shard in self.rest:
            shard.gather()

    def before(self, i, back):
        self.blocks[i].gather()
        following = i - 1 if back else i + 1
        if 0 <= following < len(self.blocks):
            self.blocks[following].start()

    def after(self, i, back):
        self.blocks[i].free()
        if back and self.sync:
            self.blocks[i].reduce()

    def end(self, back):
        for shard in self.shards:
            shard.free()
        for shard in self.rest if back and self.sync else []:
            shard.reduce()

    def clip_gradients(self, most, norm=2):
        grads = [p.grad for p in self.parameters() if p.grad is not None]
        own = np.linalg.norm([0.0, *(np.linalg.norm(g, norm) for g in grads)], norm)
        every = np.empty(self.comm.Get_size())
        self.comm.Allgather(np.array([own]), every)
        length = float(np.linalg.norm(every, norm))
        for g in grads:
            g *= g.dtype.type(most / length)
        return length
        ### END SOLUTION


@loses(5)
class FullyShardedDataParallel__to_float64(Hooked):
    """Turns gradients to float64."""

    def __init__(self, module, comm):
        super().__init__(module)  # hooks, and parameters() from `shards`
        self.comm, self.sync = comm, True
        blocks, rest = units(module)
        self.blocks = [FlatShard(own, comm) for _, own in blocks]
        self.rest = [FlatShard(rest, comm)] if rest else []
        self.shards = self.blocks + self.rest

    def begin(self):
        for shard in self.shards:
            shard.free()
        for shard in self.rest:
            shard.gather()

    def before(self, i, back):
        self.blocks[i].gather()
        following = i - 1 if back else i + 1
        if 0 <= following < len(self.blocks):
            self.blocks[following].start()

    def after(self, i, back):
        self.blocks[i].free()
        if back and self.sync:
            self.blocks[i].reduce()

    def end(self, back):
        for shard in self.shards:
            shard.free()
        for shard in self.rest if back and self.sync else []:
            shard.reduce()

    def clip_gradients(self, most, norm=2):
        grads = [p.grad for p in self.parameters() if p.grad is not None]
        own = np.linalg.norm([0.0, *(np.linalg.norm(g, norm) for g in grads)], norm)
        every = np.empty(self.comm.Get_size())
        self.comm.Allgather(np.array([own]), every)
        length = float(np.linalg.norm(every, norm))
        for g in grads if length > most else []:
            pass
        for p in self.parameters():
            if p.grad is not None and length > most:
                p.grad = p.grad.astype(float) * (most / length)
        return length
        ### END SOLUTION


@loses(6)
class FullyShardedDataParallel__the_whole_model_is_kept(Hooked):
    """Keeps a copy of all that was given."""

    def __init__(self, module, comm):
        super().__init__(module)  # hooks, and parameters() from `shards`
        self.comm, self.sync = comm, True
        self.before_all = [p.data for p in module.parameters()]
        blocks, rest = units(module)
        self.blocks = [FlatShard(own, comm) for _, own in blocks]
        self.rest = [FlatShard(rest, comm)] if rest else []
        self.shards = self.blocks + self.rest

    def begin(self):
        for shard in self.shards:
            shard.free()
        for shard in self.rest:
            shard.gather()

    def before(self, i, back):
        self.blocks[i].gather()
        following = i - 1 if back else i + 1
        if 0 <= following < len(self.blocks):
            self.blocks[following].start()

    def after(self, i, back):
        self.blocks[i].free()
        if back and self.sync:
            self.blocks[i].reduce()

    def end(self, back):
        for shard in self.shards:
            shard.free()
        for shard in self.rest if back and self.sync else []:
            shard.reduce()

    def clip_gradients(self, most, norm=2):
        grads = [p.grad for p in self.parameters() if p.grad is not None]
        own = np.linalg.norm([0.0, *(np.linalg.norm(g, norm) for g in grads)], norm)
        every = np.empty(self.comm.Get_size())
        self.comm.Allgather(np.array([own]), every)
        length = float(np.linalg.norm(every, norm))
        for g in grads if length > most else []:
            g *= g.dtype.type(most / length)
        return length
        ### END SOLUTION


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
        length = float(np.linalg.norm(every, norm))
        for g in grads if length > most else []:
            g *= g.dtype.type(most / length)
        return length


@loses(5)
class FlatShard__skips_all_none:
    """Does not take part if it has no gradient."""

    def __init__(self, parameters, comm):
        arrays, n = [p.data for p in parameters], comm.Get_size()
        self.parameters, self.comm, self.whole = parameters, comm, None
        self.flat = Flat(arrays, n)
        self.shard = Parameter(np.split(self.flat.join(arrays), n)[comm.Get_rank()].copy())
        self.free()

    def start(self):
        if self.whole is None:
            self.whole = np.empty(self.flat.length, self.flat.dtype)
            self.request = self.comm.Iallgather(self.shard.data, self.whole)

    def gather(self):
        self.start()
        self.request.Wait()
        for p, array in zip(self.parameters, self.flat.cut(self.whole), strict=True):
            p.data = array

    def free(self):
        if self.whole is not None:
            self.request.Wait()
        self.whole = self.request = None
        for p in self.parameters:
            p.data = np.empty(0, self.flat.dtype)

    def reduce(self):
        if all(p.grad is None for p in self.parameters):
            return
        mine = np.empty_like(self.shard.data)
        grads = self.flat.join([p.grad for p in self.parameters])
        self.comm.Reduce_scatter(grads, mine)
        mine /= mine.dtype.type(self.comm.Get_size())
        self.shard.grad = mine if self.shard.grad is None else self.shard.grad + mine
        for p in self.parameters:
            p.grad = None
        ### END SOLUTION


@loses(5)
class FlatShard__copies:
    """Parameters are copies of their parts."""

    def __init__(self, parameters, comm):
        arrays, n = [p.data for p in parameters], comm.Get_size()
        self.parameters, self.comm, self.whole = parameters, comm, None
        self.flat = Flat(arrays, n)
        self.shard = Parameter(np.split(self.flat.join(arrays), n)[comm.Get_rank()].copy())
        self.free()

    def start(self):
        if self.whole is None:
            self.whole = np.empty(self.flat.length, self.flat.dtype)
            self.request = self.comm.Iallgather(self.shard.data, self.whole)

    def gather(self):
        self.start()
        self.request.Wait()
        for p, array in zip(self.parameters, self.flat.cut(self.whole), strict=True):
            p.data = array.copy()

    def free(self):
        if self.whole is not None:
            self.request.Wait()
        self.whole = self.request = None
        for p in self.parameters:
            p.data = np.empty(0, self.flat.dtype)

    def reduce(self):
        mine = np.empty_like(self.shard.data)
        grads = self.flat.join([p.grad for p in self.parameters])
        self.comm.Reduce_scatter(grads, mine)
        mine /= mine.dtype.type(self.comm.Get_size())
        self.shard.grad = mine if self.shard.grad is None else self.shard.grad + mine
        for p in self.parameters:
            p.grad = None
        ### END SOLUTION


@loses(5)
class FlatShard__frees_without_wait:
    """Frees what is still on its way."""

    def __init__(self, parameters, comm):
        arrays, n = [p.data for p in parameters], comm.Get_size()
        self.parameters, self.comm, self.whole = parameters, comm, None
        self.flat = Flat(arrays, n)
        self.shard = Parameter(np.split(self.flat.join(arrays), n)[comm.Get_rank()].copy())
        self.free()

    def start(self):
        if self.whole is None:
            self.whole = np.empty(self.flat.length, self.flat.dtype)
            self.request = self.comm.Iallgather(self.shard.data, self.whole)

    def gather(self):
        self.start()
        self.request.Wait()
        for p, array in zip(self.parameters, self.flat.cut(self.whole), strict=True):
            p.data = array

    def free(self):
        self.whole = self.request = None
        for p in self.parameters:
            p.data = np.empty(0, self.flat.dtype)

    def reduce(self):
        mine = np.empty_like(self.shard.data)
        grads = self.flat.join([p.grad for p in self.parameters])
        self.comm.Reduce_scatter(grads, mine)
        mine /= mine.dtype.type(self.comm.Get_size())
        self.shard.grad = mine if self.shard.grad is None else self.shard.grad + mine
        for p in self.parameters:
            p.grad = None
        ### END SOLUTION


@loses(5)
class FlatShard__first_array:
    """Gathers from the array that was the shard at first."""

    def __init__(self, parameters, comm):
        arrays, n = [p.data for p in parameters], comm.Get_size()
        self.parameters, self.comm, self.whole = parameters, comm, None
        self.flat = Flat(arrays, n)
        self.shard = Parameter(np.split(self.flat.join(arrays), n)[comm.Get_rank()].copy())
        self.mine = self.shard.data
        self.free()

    def start(self):
        if self.whole is None:
            self.whole = np.empty(self.flat.length, self.flat.dtype)
            self.request = self.comm.Iallgather(self.mine, self.whole)

    def gather(self):
        self.start()
        self.request.Wait()
        for p, array in zip(self.parameters, self.flat.cut(self.whole), strict=True):
            p.data = array

    def free(self):
        if self.whole is not None:
            self.request.Wait()
        self.whole = self.request = None
        for p in self.parameters:
            p.data = np.empty(0, self.flat.dtype)

    def reduce(self):
        mine = np.empty_like(self.shard.data)
        grads = self.flat.join([p.grad for p in self.parameters])
        self.comm.Reduce_scatter(grads, mine)
        mine /= mine.dtype.type(self.comm.Get_size())
        self.shard.grad = mine if self.shard.grad is None else self.shard.grad + mine
        for p in self.parameters:
            p.grad = None
        ### END SOLUTION


@loses(9)
class FullyShardedDataParallel__gathers_ahead(Hooked):
    """Gathers the next one, and waits for it."""

    def __init__(self, module, comm):
        super().__init__(module)  # hooks, and parameters() from `shards`
        self.comm, self.sync = comm, True
        blocks, rest = units(module)
        self.blocks = [FlatShard(own, comm) for _, own in blocks]
        self.rest = [FlatShard(rest, comm)] if rest else []
        self.shards = self.blocks + self.rest

    def begin(self):
        for shard in self.shards:
            shard.free()
        for shard in self.rest:
            shard.gather()

    def before(self, i, back):
        self.blocks[i].gather()
        following = i - 1 if back else i + 1
        if 0 <= following < len(self.blocks):
            self.blocks[following].gather()

    def after(self, i, back):
        self.blocks[i].free()
        if back and self.sync:
            self.blocks[i].reduce()

    def end(self, back):
        for shard in self.shards:
            shard.free()
        for shard in self.rest if back and self.sync else []:
            shard.reduce()

    def clip_gradients(self, most, norm=2):
        grads = [p.grad for p in self.parameters() if p.grad is not None]
        own = np.linalg.norm([0.0, *(np.linalg.norm(g, norm) for g in grads)], norm)
        every = np.empty(self.comm.Get_size())
        self.comm.Allgather(np.array([own]), every)
        length = float(np.linalg.norm(every, norm))
        for g in grads if length > most else []:
            g *= g.dtype.type(most / length)
        return length
        ### END SOLUTION


@loses(5)
class FullyShardedDataParallel__own_condition(Hooked):
    """Each rank decides by its own length."""

    def __init__(self, module, comm):
        super().__init__(module)  # hooks, and parameters() from `shards`
        self.comm, self.sync = comm, True
        blocks, rest = units(module)
        self.blocks = [FlatShard(own, comm) for _, own in blocks]
        self.rest = [FlatShard(rest, comm)] if rest else []
        self.shards = self.blocks + self.rest

    def begin(self):
        for shard in self.shards:
            shard.free()
        for shard in self.rest:
            shard.gather()

    def before(self, i, back):
        self.blocks[i].gather()
        following = i - 1 if back else i + 1
        if 0 <= following < len(self.blocks):
            self.blocks[following].start()

    def after(self, i, back):
        self.blocks[i].free()
        if back and self.sync:
            self.blocks[i].reduce()

    def end(self, back):
        for shard in self.shards:
            shard.free()
        for shard in self.rest if back and self.sync else []:
            shard.reduce()

    def clip_gradients(self, most, norm=2):
        grads = [p.grad for p in self.parameters() if p.grad is not None]
        own = np.linalg.norm([0.0, *(np.linalg.norm(g, norm) for g in grads)], norm)
        every = np.empty(self.comm.Get_size())
        self.comm.Allgather(np.array([own]), every)
        length = float(np.linalg.norm(every, norm))
        for g in grads if own > most else []:
            g *= g.dtype.type(most / length)
        return length
        ### END SOLUTION


@loses(3)
class FullyShardedDataParallel__begin_does_not_free(Hooked):
    """Takes up what an earlier forward has left."""

    def __init__(self, module, comm):
        super().__init__(module)  # hooks, and parameters() from `shards`
        self.comm, self.sync = comm, True
        blocks, rest = units(module)
        self.blocks = [FlatShard(own, comm) for _, own in blocks]
        self.rest = [FlatShard(rest, comm)] if rest else []
        self.shards = self.blocks + self.rest

    def begin(self):
        for shard in self.rest:
            shard.gather()

    def before(self, i, back):
        self.blocks[i].gather()
        following = i - 1 if back else i + 1
        if 0 <= following < len(self.blocks):
            self.blocks[following].start()

    def after(self, i, back):
        self.blocks[i].free()
        if back and self.sync:
            self.blocks[i].reduce()

    def end(self, back):
        for shard in self.shards:
            shard.free()
        for shard in self.rest if back and self.sync else []:
            shard.reduce()

    def clip_gradients(self, most, norm=2):
        grads = [p.grad for p in self.parameters() if p.grad is not None]
        own = np.linalg.norm([0.0, *(np.linalg.norm(g, norm) for g in grads)], norm)
        every = np.empty(self.comm.Get_size())
        self.comm.Allgather(np.array([own]), every)
        length = float(np.linalg.norm(every, norm))
        for g in grads if length > most else []:
            g *= g.dtype.type(most / length)
        return length
        ### END SOLUTION


@loses(3)
class FullyShardedDataParallel__end_frees_nothing(Hooked):
    """Frees in begin only."""

    def __init__(self, module, comm):
        super().__init__(module)  # hooks, and parameters() from `shards`
        self.comm, self.sync = comm, True
        blocks, rest = units(module)
        self.blocks = [FlatShard(own, comm) for _, own in blocks]
        self.rest = [FlatShard(rest, comm)] if rest else []
        self.shards = self.blocks + self.rest

    def begin(self):
        for shard in self.shards:
            shard.free()
        for shard in self.rest:
            shard.gather()

    def before(self, i, back):
        self.blocks[i].gather()
        following = i - 1 if back else i + 1
        if 0 <= following < len(self.blocks):
            self.blocks[following].start()

    def after(self, i, back):
        self.blocks[i].free()
        if back and self.sync:
            self.blocks[i].reduce()

    def end(self, back):
        for shard in self.rest if back and self.sync else []:
            shard.reduce()

    def clip_gradients(self, most, norm=2):
        grads = [p.grad for p in self.parameters() if p.grad is not None]
        own = np.linalg.norm([0.0, *(np.linalg.norm(g, norm) for g in grads)], norm)
        every = np.empty(self.comm.Get_size())
        self.comm.Allgather(np.array([own]), every)
        length = float(np.linalg.norm(every, norm))
        for g in grads if length > most else []:
            g *= g.dtype.type(most / length)
        return length
        ### END SOLUTION


@loses(8)
class FullyShardedDataParallel__forgets_in_begin(Hooked):
    """Each forward forgets the gradients."""

    def __init__(self, module, comm):
        super().__init__(module)  # hooks, and parameters() from `shards`
        self.comm, self.sync = comm, True
        blocks, rest = units(module)
        self.blocks = [FlatShard(own, comm) for _, own in blocks]
        self.rest = [FlatShard(rest, comm)] if rest else []
        self.shards = self.blocks + self.rest

    def begin(self):
        for shard in self.shards:
            shard.shard.grad = None
        for shard in self.shards:
            shard.free()
        for shard in self.rest:
            shard.gather()

    def before(self, i, back):
        self.blocks[i].gather()
        following = i - 1 if back else i + 1
        if 0 <= following < len(self.blocks):
            self.blocks[following].start()

    def after(self, i, back):
        self.blocks[i].free()
        if back and self.sync:
            self.blocks[i].reduce()

    def end(self, back):
        for shard in self.shards:
            shard.free()
        for shard in self.rest if back and self.sync else []:
            shard.reduce()

    def clip_gradients(self, most, norm=2):
        grads = [p.grad for p in self.parameters() if p.grad is not None]
        own = np.linalg.norm([0.0, *(np.linalg.norm(g, norm) for g in grads)], norm)
        every = np.empty(self.comm.Get_size())
        self.comm.Allgather(np.array([own]), every)
        length = float(np.linalg.norm(every, norm))
        for g in grads if length > most else []:
            g *= g.dtype.type(most / length)
        return length
        ### END SOLUTION


@right
class FullyShardedDataParallel__all_reduced_lengths(Hooked):
    """Adds squares, or takes the maximum, by an all-reduce."""

    def __init__(self, module, comm):
        super().__init__(module)  # hooks, and parameters() from `shards`
        self.comm, self.sync = comm, True
        blocks, rest = units(module)
        self.blocks = [FlatShard(own, comm) for _, own in blocks]
        self.rest = [FlatShard(rest, comm)] if rest else []
        self.shards = self.blocks + self.rest

    def begin(self):
        for shard in self.shards:
            shard.free()
        for shard in self.rest:
            shard.gather()

    def before(self, i, back):
        self.blocks[i].gather()
        following = i - 1 if back else i + 1
        if 0 <= following < len(self.blocks):
            self.blocks[following].start()

    def after(self, i, back):
        self.blocks[i].free()
        if back and self.sync:
            self.blocks[i].reduce()

    def end(self, back):
        for shard in self.shards:
            shard.free()
        for shard in self.rest if back and self.sync else []:
            shard.reduce()

    def clip_gradients(self, most, norm=2):
        grads = [p.grad for p in self.parameters() if p.grad is not None]
        from mpi4py import MPI

        found = np.zeros(1)
        if norm == 2:
            for g in grads:
                found += np.sum(g.astype(np.float64) ** 2)
            self.comm.Allreduce(MPI.IN_PLACE, found)
            length = float(np.sqrt(found[0]))
        else:
            for g in grads:
                found = np.maximum(found, np.abs(g).max())
            largest = np.empty(1)
            self.comm.Allreduce(found, largest, op=MPI.MAX)
            length = float(largest[0])
        for g in grads if length > most else []:
            g *= g.dtype.type(most / length)
        return length
        ### END SOLUTION


@right
class FullyShardedDataParallel__frees_all_others(Hooked):
    """Frees all but the block and the next one before each work."""

    def __init__(self, module, comm):
        super().__init__(module)  # hooks, and parameters() from `shards`
        self.comm, self.sync = comm, True
        blocks, rest = units(module)
        self.blocks = [FlatShard(own, comm) for _, own in blocks]
        self.rest = [FlatShard(rest, comm)] if rest else []
        self.shards = self.blocks + self.rest

    def begin(self):
        for shard in self.shards:
            shard.free()
        for shard in self.rest:
            shard.gather()

    def before(self, i, back):
        self.blocks[i].gather()
        for j, shard in enumerate(self.blocks):
            if j not in (i, i - 1 if back else i + 1):
                shard.free()
        following = i - 1 if back else i + 1
        if 0 <= following < len(self.blocks):
            self.blocks[following].start()

    def after(self, i, back):
        self.blocks[i].free()
        if back and self.sync:
            self.blocks[i].reduce()

    def end(self, back):
        for shard in self.shards:
            shard.free()
        for shard in self.rest if back and self.sync else []:
            shard.reduce()

    def clip_gradients(self, most, norm=2):
        grads = [p.grad for p in self.parameters() if p.grad is not None]
        own = np.linalg.norm([0.0, *(np.linalg.norm(g, norm) for g in grads)], norm)
        every = np.empty(self.comm.Get_size())
        self.comm.Allgather(np.array([own]), every)
        length = float(np.linalg.norm(every, norm))
        for g in grads if length > most else []:
            g *= g.dtype.type(most / length)
        return length
        ### END SOLUTION


@right
class FullyShardedDataParallel__reduced_before_freed(Hooked):
    """Reduces, then frees; and drops the rest between forward and backward's end."""

    def __init__(self, module, comm):
        super().__init__(module)  # hooks, and parameters() from `shards`
        self.comm, self.sync = comm, True
        blocks, rest = units(module)
        self.blocks = [FlatShard(own, comm) for _, own in blocks]
        self.rest = [FlatShard(rest, comm)] if rest else []
        self.shards = self.blocks + self.rest

    def begin(self):
        for shard in self.shards:
            shard.free()
        for shard in self.rest:
            shard.gather()

    def before(self, i, back):
        self.blocks[i].gather()
        following = i - 1 if back else i + 1
        if 0 <= following < len(self.blocks):
            self.blocks[following].start()

    def after(self, i, back):
        if back and self.sync:
            self.blocks[i].reduce()
        self.blocks[i].free()

    def end(self, back):
        for shard in self.shards:
            shard.free()
        for shard in self.rest if back and self.sync else []:
            shard.reduce()

    def clip_gradients(self, most, norm=2):
        grads = [p.grad for p in self.parameters() if p.grad is not None]
        own = np.linalg.norm([0.0, *(np.linalg.norm(g, norm) for g in grads)], norm)
        every = np.empty(self.comm.Get_size())
        self.comm.Allgather(np.array([own]), every)
        length = float(np.linalg.norm(every, norm))
        for g in grads if length > most else []:
            g *= g.dtype.type(most / length)
        return length
        ### END SOLUTION


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
        from course_lib.autograd.tensor import flow

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
            flow(forward(again), grad)
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
        lengths = np.empty(self.comm.Get_size())
        self.comm.Allgather(mine, lengths)
        length = float((lengths**2).sum() ** 0.5 if norm == 2 else lengths.max())
        if length > most:
            for p in self.parameters():
                if p.grad is not None:
                    p.grad = (p.grad * (most / length)).astype(p.grad.dtype)
        return length
