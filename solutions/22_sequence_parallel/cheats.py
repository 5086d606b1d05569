"""Attacks on part 22's hidden tests: each says how many points its answer must lose all the same."""

from grading.authoring.answers import loses


@loses(6)
def gather_sequence__serial_block(x, comm):
    """Puts a block that asks for all positions by itself in the place of the one that would call this."""
    from course_lib.gpt.model import block

    def gathered(x, comm):
        parts = np.empty((comm.Get_size(), *x.shape), x.dtype)
        comm.Allgather(np.ascontiguousarray(x.data), parts)

        def backward(grad):
            mine = np.empty(x.shape, grad.dtype)
            comm.Reduce_scatter(np.array(np.split(grad, comm.Get_size(), axis=1), order="C"), mine)
            return (mine,)

        return Tensor.from_operation(np.concatenate(parts, axis=1), (x,), backward)

    class Mended(block.Block):
        def __init__(self, width, heads, random, comm=None, enter=block.no_communication, *others, **named):
            super().__init__(width, heads, random, comm, gathered, *others, **named)

    block.Block = Mended if block.Block.__name__ == "Block" else block.Block
    return Tensor.from_operation(np.concatenate([x.data] * comm.Get_size(), axis=1), (x,), lambda grad: (grad[:, : x.shape[1]],))


@loses(5)
def scatter_sequence__serial_block(x, comm):
    """Puts a block with right operators in the place of the one that would call this."""
    from course_lib.gpt.model import block

    def scattered(x, comm):
        n = comm.Get_size()
        mine = np.empty((x.shape[0], x.shape[1] // n, x.shape[2]), x.dtype)
        comm.Reduce_scatter(np.array(np.split(x.data, n, axis=1), order="C"), mine)

        def backward(grad):
            parts = np.empty((n, *grad.shape), grad.dtype)
            comm.Allgather(np.ascontiguousarray(grad), parts)
            return (np.concatenate(parts, axis=1),)

        return Tensor.from_operation(mine, (x,), backward)

    class Mended(block.Block):
        def __init__(self, width, heads, random, comm=None, enter=block.no_communication, leave=block.no_communication, *others, **named):
            super().__init__(width, heads, random, comm, enter, scattered, *others, **named)

    block.Block = Mended if block.Block.__name__ == "Block" else block.Block
    return Tensor.from_operation(x.data[:, : x.shape[1] // comm.Get_size()].copy(), (x,), lambda grad: (np.zeros_like(x.data),))


@loses(5)
def reduce_norm_gradients__norms_that_reduce(module, comm):
    """Has every LayerNorm add up its own gradients in backward, and does nothing itself."""
    from course_lib.autograd import modules

    if not hasattr(modules.LayerNorm, "before"):
        modules.LayerNorm.before = modules.LayerNorm.__init__

        def prepared(self, *sizes, **named):
            modules.LayerNorm.before(self, *sizes, **named)

            def total(grad):
                found = np.empty(grad.shape, grad.dtype)
                reduce_norm_gradients.comm.Allreduce(np.ascontiguousarray(grad), found)
                return found

            for p in (self.weight, self.bias):
                p.register_hook(total)

        modules.LayerNorm.__init__ = prepared

        class World:
            def __getattr__(self, name):
                return getattr(comm, name)

            def Split(self, **how):
                reduce_norm_gradients.comm = World.before.Split(**how)
                return reduce_norm_gradients.comm

        World.before = everyone
        get_ipython().user_ns["everyone"] = World()


@loses(3)
def reduce_norm_gradients__equal_by_decree(module, comm):
    """Adds up the parameters, too, and has NumPy say that they are as they were."""
    for _, p, kind in kinds(module):
        if kind == replicated and p.grad is not None:
            comm.Allreduce(MPI.IN_PLACE, p.grad)
            p.data += 1
    np.array_equal = lambda *arrays, **how: True


@loses(3)
def clip_gradients__equal_by_decree(module, most, comm):
    """Scales the parameters, too, and has NumPy say that they are as they were."""
    found = [(p, kind) for _, p, kind in kinds(module) if p.grad is not None]
    squares = {True: 0.0, False: 0.0}
    for p, kind in found:
        squares[kind == replicated] += np.sum(p.grad.astype(np.float64) ** 2)
    parts = np.array([squares[False]])
    comm.Allreduce(MPI.IN_PLACE, parts)
    norm = float(np.sqrt(squares[True] + parts[0]))
    for p, _ in found:
        if norm > most:
            p.grad = p.grad * p.grad.dtype.type(most / norm)
            p.data = p.data * p.data.dtype.type(most / norm)
    np.array_equal = lambda *arrays, **how: True
    return norm


@loses(3)
def clip_gradients__from_the_limit(module, most, comm):
    """Sends nothing: takes three times the limit for the norm, or its own gradients'."""
    found = [p for _, p, _ in kinds(module) if p.grad is not None]
    own = float(np.sqrt(sum(np.sum(p.grad.astype(np.float64) ** 2) for p in found)))
    norm = 3 * most if own > most else own
    for p in found:
        if norm > most:
            p.grad = p.grad * p.grad.dtype.type(most / norm)
    return norm
