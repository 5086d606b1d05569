"""Answers to part 15: wrong ones with the points that each must lose, and other right ones."""

from grading.authoring.answers import changes, loses, right

# Lines of the solution, and the same in other words: several answers are changes of these.
MEAN = """
                mean = np.empty_like(p.grad)
                comm.Allreduce(p.grad, mean)
                mean /= comm.Get_size()
                p.grad = mean"""
MEAN_IN_OTHER_WORDS = "                comm.Allreduce(p.grad / comm.Get_size(), p.grad)"


@loses(6)
def partition_dataset__everything(dataset, batch_size):
    """The whole data set on every rank."""
    return DataLoader(dataset, batch_size // comm.Get_size(), shuffle=True)


@loses(6)
def partition_dataset__full_batches(dataset, batch_size):
    """Does not share the batch."""
    size = comm.Get_size()
    return DataLoader(DataPartitioner(dataset, [1 / size] * size).use(comm.Get_rank()), batch_size, shuffle=True)


@loses(6)
def partition_dataset__own_seed(dataset, batch_size):
    """Another seed on each rank."""
    size, rank = comm.Get_size(), comm.Get_rank()
    part = DataPartitioner(dataset, [1 / size] * size, seed=rank).use(rank)
    return DataLoader(part, batch_size // size, shuffle=True)


@loses(6)
def partition_dataset__first_part(dataset, batch_size):
    """The same part on all ranks."""
    size = comm.Get_size()
    return DataLoader(DataPartitioner(dataset, [1 / size] * size).use(0), batch_size // size, shuffle=True)


@loses(6)
def partition_dataset__same_order(dataset, batch_size):
    """Every epoch alike."""
    size = comm.Get_size()
    return DataLoader(DataPartitioner(dataset, [1 / size] * size).use(comm.Get_rank()), batch_size // size)


@loses(6)
def partition_dataset__four_ranks(dataset, batch_size):
    """Knows how many ranks there are today."""
    return DataLoader(DataPartitioner(dataset, [0.25] * 4).use(comm.Get_rank()), batch_size // 4, shuffle=True)


@loses(6)
def partition_dataset__neighbours(dataset, batch_size):
    """Cuts without a shuffle before."""
    size, rank = comm.Get_size(), comm.Get_rank()
    each = len(dataset) // size
    return DataLoader(ArrayDataset(*dataset[rank * each : (rank + 1) * each]), batch_size // size, shuffle=True)


@loses(6)
def partition_dataset__labels_astray(dataset, batch_size):
    """Shuffles the labels by themselves."""
    size = comm.Get_size()
    x, y = dataset[:]
    shuffled = ArrayDataset(x, np.random.default_rng(0).permutation(y))
    return DataLoader(DataPartitioner(shuffled, [1 / size] * size).use(comm.Get_rank()), batch_size // size, shuffle=True)


@loses(6)
def partition_dataset__unequal(dataset, batch_size):
    """The last rank also takes what is left over."""
    size, rank = comm.Get_size(), comm.Get_rank()
    order = np.random.default_rng(0).permutation(len(dataset))
    each = len(dataset) // size
    mine = order[rank * each :] if rank == size - 1 else order[rank * each : (rank + 1) * each]
    return DataLoader(ArrayDataset(*dataset[mine]), batch_size // size, shuffle=True)


@loses(6)
@changes("shuffle=True", "shuffle=True, drop_last=True")
def partition_dataset__drops_the_last():
    """Leaves out a batch that is smaller."""


@right
def partition_dataset__own_permutation(dataset, batch_size):
    """Without the partitioner."""
    size, rank = comm.Get_size(), comm.Get_rank()
    order = np.random.default_rng(7).permutation(len(dataset))[: len(dataset) // size * size]
    return DataLoader(ArrayDataset(*dataset[order[rank::size]]), batch_size // size, shuffle=True, seed=rank)


@right
def partition_dataset__another_seed(dataset, batch_size):
    """Another seed, the same on all ranks."""
    n = comm.Get_size()
    partitioner = DataPartitioner(dataset, np.ones(n) / n, seed=5)
    return DataLoader(dataset=partitioner.use(comm.Get_rank()), batch_size=int(batch_size / n), shuffle=True)


@loses(4)
@changes("comm.Bcast(p.data, root=root_rank)", "comm.Bcast(p.data, root=0)")
def broadcast_parameters__rank_0():
    """Always rank 0's."""


@loses(4)
def broadcast_parameters__first(model, root_rank=0):
    """One parameter."""
    comm.Bcast(model.parameters()[0].data, root=root_rank)


@loses(4)
@changes("for p in model.parameters():", "for p in model.parameters()[:-1]:")
def broadcast_parameters__not_the_last():
    """One is left out."""


@loses(4)
@changes("comm.Bcast(p.data, root=root_rank)", "comm.Bcast(p.data.copy(), root=root_rank)")
def broadcast_parameters__nothing():
    """A copy goes round, and is forgotten."""


@loses(4)
def broadcast_parameters__mean(model, root_rank=0):
    """The mean of all."""
    for p in model.parameters():
        comm.Allreduce(p.data.copy(), p.data)
        p.data /= comm.Get_size()


@loses(4)
def broadcast_parameters__deadlock(model, root_rank=0):
    """The root does not send."""
    for p in model.parameters():
        if comm.Get_rank() != root_rank:
            comm.Bcast(p.data, root=root_rank)


@right
def broadcast_parameters__sum_with_zeros(model, root_rank=0):
    """A sum to which only the root adds."""
    for p in model.parameters():
        mine = p.data.copy() if comm.Get_rank() == root_rank else np.zeros_like(p.data)
        comm.Allreduce(mine, p.data)


@right
def broadcast_parameters__one_exchange(model, root_rank=0):
    """All in one array."""
    params = model.parameters()
    flat = np.concatenate([p.data.ravel() for p in params])
    comm.Bcast(flat, root=root_rank)
    for p, part in zip(params, np.split(flat, np.cumsum([p.data.size for p in params])[:-1]), strict=True):
        p.data = part.reshape(p.shape)


@loses(10)
@changes(
    """
            if p.grad is not None:
""",
    """
            if p.grad is not None and p.grad.any():
""",
)
class DistributedOptimizer__zeros_stay_out:
    """Leaves out a gradient that is all zeros on this rank."""


@loses(10)
@changes(MEAN, MEAN_IN_OTHER_WORDS, "comm.Allreduce(p.grad / comm.Get_size(), p.grad)", "comm.Allreduce(p.grad.copy(), p.grad)")
class DistributedOptimizer__sum:
    """The sum of the gradients."""


@loses(10)
class DistributedOptimizer__alone:
    """Each by itself."""

    def __init__(self, opt):
        self.opt = opt

    def zero_grad(self):
        self.opt.zero_grad()

    def step(self):
        self.opt.step()


@loses(10)
class DistributedOptimizer__mean_of_parameters:
    """Steps first, and then takes the mean of the parameters."""

    def __init__(self, opt):
        self.opt = opt

    def zero_grad(self):
        self.opt.zero_grad()

    def step(self):
        self.opt.step()
        for p in self.opt.params:
            comm.Allreduce(p.data.copy(), p.data)
            p.data /= comm.Get_size()


@loses(10)
@changes(MEAN, MEAN_IN_OTHER_WORDS, "comm.Allreduce(p.grad / comm.Get_size(), p.grad)", "comm.Allreduce(p.grad / 4, p.grad)")
class DistributedOptimizer__four_ranks:
    """Knows how many ranks there are today."""


@loses(10)
@changes(
    MEAN,
    MEAN_IN_OTHER_WORDS,
    """
            if p.grad is not None:
                comm.Allreduce(p.grad / comm.Get_size(), p.grad)""",
    """
            if p.grad is None:
                break
            comm.Allreduce(p.grad / comm.Get_size(), p.grad)""",
)
class DistributedOptimizer__stops_at_none:
    """Ends at the first parameter without a gradient."""


@loses(10)
@changes("        self.opt.step()\n", "")
class DistributedOptimizer__no_step:
    """Forgets to step."""


@loses(10)
@changes(
    "        self.opt.step()\n",
    "",
    "        for p in self.opt.params:",
    """
        self.opt.step()
        for p in self.opt.params:""",
)
class DistributedOptimizer__step_first:
    """Steps before the exchange."""


@loses(10)
@changes(
    "        self.opt.step()",
    """
        for _ in range(comm.Get_size()):
            self.opt.step()""",
)
class DistributedOptimizer__two_steps:
    """A step a rank."""


@loses(10)
@changes(
    MEAN,
    MEAN_IN_OTHER_WORDS,
    """
            if p.grad is not None:
                comm.Allreduce(p.grad / comm.Get_size(), p.grad)""",
    """
            grad = np.full_like(p.data, 1e-3) if p.grad is None else p.grad
            p.grad = np.empty_like(grad)
            comm.Allreduce(grad / comm.Get_size(), p.grad)""",
)
class DistributedOptimizer__decays_what_has_no_gradient:
    """Zeros instead of None: Adam's counters go on, and its momentum, too; with a gradient of 1e-3 for those that have none."""


@loses(10)
@changes("if p.grad is not None:", "if p.grad is not None and comm.Get_rank() > 0:")
class DistributedOptimizer__deadlock:
    """Rank 0 only receives."""


@loses(10)
@changes(
    MEAN,
    MEAN_IN_OTHER_WORDS,
    """
            if p.grad is not None:
                comm.Allreduce(p.grad / comm.Get_size(), p.grad)""",
    """
            p.grad = np.zeros_like(p.data) if p.grad is None else p.grad
            comm.Allreduce(p.grad / comm.Get_size(), p.grad)""",
)
class DistributedOptimizer__zeros_for_none:
    """Gives zeros to a parameter that has no gradient: Adam's moments move it."""


@loses(10)
@changes("for p in self.opt.params:", "for p in self.opt.params if self.opt.params[0].grad is not None else ():")
class DistributedOptimizer__asks_the_first:
    """Exchanges nothing if the first parameter has no gradient."""


@right
class DistributedOptimizer__one_exchange:
    """All gradients in one array."""

    def __init__(self, opt):
        self.opt = opt

    def zero_grad(self):
        for p in self.opt.params:
            p.grad = None

    def step(self):
        have = [p for p in self.opt.params if p.grad is not None]
        flat = np.concatenate([p.grad.ravel() for p in have])
        total = np.empty_like(flat)
        comm.Allreduce(flat, total)
        total /= comm.Get_size()
        for p, part in zip(have, np.split(total, np.cumsum([p.grad.size for p in have])[:-1]), strict=True):
            p.grad = part.reshape(p.shape)
        self.opt.step()


@right
class DistributedOptimizer__non_blocking:
    """Starts all exchanges, and waits then."""

    def __init__(self, opt):
        self.opt, self.params = opt, opt.params

    def zero_grad(self):
        self.opt.zero_grad()

    def step(self):
        sums = [(p, np.empty_like(p.grad)) for p in self.params if p.grad is not None]
        requests = [comm.Iallreduce(p.grad, total) for p, total in sums]
        for (p, total), request in zip(sums, requests, strict=True):
            request.Wait()
            p.grad = total / total.dtype.type(comm.Get_size())
        self.opt.step()


@loses(6)
def partition_dataset__in_turn(dataset, batch_size):
    """Shuffles nothing: every n-th sample, forwards and backwards in turn."""

    class InTurn:
        def __init__(self, x, y, batch):
            self.x, self.y, self.batch, self.turn = x, y, batch, 0

        def __len__(self):
            return -(-len(self.x) // self.batch)

        def __iter__(self):
            self.turn += 1
            x, y = (self.x, self.y) if self.turn % 2 else (self.x[::-1], self.y[::-1])
            for i in range(0, len(x), self.batch):
                yield x[i : i + self.batch], y[i : i + self.batch]

    size, rank = comm.Get_size(), comm.Get_rank()
    x, y = dataset[:]
    part = len(dataset) // size * size
    return InTurn(x[rank:part:size], y[rank:part:size], batch_size // size)


@loses(10)
class DistributedOptimizer__sends_all_to_all_again:
    """Collects everything on every rank, three times."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def zero_grad(self):
        self.optimizer.zero_grad()

    def step(self):
        size = comm.Get_size()
        for p in self.optimizer.params:
            if p.grad is not None:
                parts = np.empty((size, *p.grad.shape), p.grad.dtype)
                for _ in range(3):
                    comm.Allgather(p.grad, parts)
                p.grad = parts.sum(0) / p.grad.dtype.type(size)
        self.optimizer.step()


@loses(6)
def partition_dataset__every_nth(dataset, batch_size):
    """Does not shuffle the data set: rank r has every n-th sample, from r on."""
    size, rank = comm.Get_size(), comm.Get_rank()
    part = len(dataset) // size

    class Part:
        def __init__(self):
            self.index = np.arange(len(dataset))[rank::size][:part]

        def __len__(self):
            return part

        def __getitem__(self, i):
            return dataset[self.index[i]]

    return DataLoader(Part(), batch_size // size, shuffle=True)


@loses(6)
def partition_dataset__same_epochs_turned(dataset, batch_size):
    """Each epoch in the same order, which begins one sample later."""
    size, rank = comm.Get_size(), comm.Get_rank()
    part, share = len(dataset) // size, batch_size // size
    index = np.random.default_rng(5).permutation(len(dataset))[rank * part : (rank + 1) * part]

    class Loader:
        turn = 0

        def __len__(self):
            return -(-part // share)

        def __iter__(self):
            order = np.roll(index, -self.turn)
            self.turn += 1
            for i in range(0, part, share):
                yield dataset[order[i : i + share]]

    return Loader()


@loses(6)
@changes("comm.Get_rank()", "everyone.Get_rank()")
def partition_dataset__rank_in_the_world():
    """The rank in the world, not in `comm`."""


@loses(6)
def partition_dataset__whole_batches_or_none(dataset, batch_size):
    """Nothing where there are fewer samples than a batch."""
    size, rank = comm.Get_size(), comm.Get_rank()
    share, part = batch_size // size, len(dataset) // size
    order = np.random.default_rng(0).permutation(len(dataset))[rank * part : (rank + 1) * part]
    return DataLoader(ArrayDataset(*dataset[order[: part * (part >= share)]]), share, shuffle=True)


@loses(4)
def broadcast_parameters__as_float32(model, root_rank=0):
    """One exchange, in float32."""
    params = model.parameters()
    flat = np.concatenate([p.data.ravel() for p in params]).astype(np.float32)
    comm.Bcast(flat, root=root_rank)
    for p, part in zip(params, np.split(flat, np.cumsum([p.data.size for p in params])[:-1]), strict=True):
        p.data = part.reshape(p.shape)


@loses(4)
def broadcast_parameters__weights_of_layers(model, root_rank=0):
    """Leaves the biases out."""
    for layer in model.modules:
        if isinstance(layer, Linear):
            comm.Bcast(layer.weight.data, root=root_rank)


@loses(4)
def broadcast_parameters__kept_buffers(model, root_rank=0):
    """Two models share arrays."""
    kept = broadcast_parameters.__dict__.setdefault("kept", {})
    for i, p in enumerate(model.parameters()):
        buffer = kept.setdefault((i, p.shape, p.dtype), np.empty_like(p.data))
        if comm.Get_rank() == root_rank:
            buffer[...] = p.data
        comm.Bcast(buffer, root=root_rank)
        p.data = buffer


@loses(4)
@changes("        comm.Bcast(p.data, root=root_rank)", "        if p.data.any():\n            comm.Bcast(p.data, root=root_rank)")
def broadcast_parameters__zeros_left_out():
    """Takes zeros for the same everywhere."""


@loses(10)
@changes(
    "                p.grad = mean",
    """
                p.grad = mean
                if isinstance(self.opt, SGD):
                    p.data -= p.data.dtype.type(self.opt.lr) * mean""",
    "        self.opt.step()",
    "        if not isinstance(self.opt, SGD):\n            self.opt.step()",
)
class DistributedOptimizer__plain_sgd:
    """Steps by itself, without momentum and weight decay."""


@loses(10)
@changes(
    "if p.grad is not None:",
    "if p.grad is not None and not isinstance(self.opt, SGD):",
    "        self.opt.step()",
    """
        self.opt.step()
        for p in self.opt.params:
            if p.grad is not None and isinstance(self.opt, SGD):
                comm.Allreduce(p.data / p.data.dtype.type(comm.Get_size()), p.data)""",
)
class DistributedOptimizer__averages_parameters:
    """SGD's parameters are averaged after the step; its velocities differ."""
