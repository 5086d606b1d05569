"""Answers to part 13: wrong ones with the points that each must lose, and other right ones."""

from grading.authoring.answers import changes, loses, right


@loses(4)
def rank_batches__all_of_them(loader, rank, size):
    """Every rank the same."""
    return list(loader)


@loses(4)
def rank_batches__one_more(loader, rank, size):
    """The first ranks get one more."""
    return [batch for i, batch in enumerate(loader) if i % size == rank]


@loses(4)
def rank_batches__blocks(loader, rank, size):
    """Neighbours."""
    each = len(loader) // size
    return list(loader)[rank * each : (rank + 1) * each]


@loses(4)
@changes("i % size", "(i + 1) % size")
def rank_batches__next_rank():
    """Begins with rank 1."""


@loses(4)
def rank_batches__shuffles_again(loader, rank, size):
    """Goes through the loader for each batch: each time another order."""
    return [list(loader)[i * size + rank] for i in range(len(loader) // size)]


@loses(4)
@changes("last = len(loader) // size * size", "last = (len(loader) - 1) // size * size")
def rank_batches__drops_always():
    """Drops the last round, also where it is whole."""


@loses(4)
def rank_batches__samples(loader, rank, size):
    """Shares each batch."""
    return [(x[rank::size], y[rank::size]) for x, y in loader]


@loses(4)
def rank_batches__four_ranks(loader, rank, size):
    """Knows how many ranks there are today."""
    last = len(loader) // 4 * 4
    return [batch for i, batch in enumerate(loader) if i < last and i % 4 == rank]


@loses(4)
@changes("i % size == rank", "i % size == comm.Get_rank()")
def rank_batches__its_own_rank():
    """Takes the communicator's rank."""


@loses(4)
@changes("last = len(loader) // size * size", "last = len(loader.dataset) // loader.batch_size // size * size")
def rank_batches__whole_batches():
    """Counts whole batches only."""


@right
def rank_batches__generator(loader, rank, size):
    """Keeps no batches."""
    batches = iter(loader)
    for _ in range(len(loader) // size):
        for other in range(size):
            batch = next(batches)
            if other == rank:
                yield batch


@right
def rank_batches__slice(loader, rank, size):
    """A slice with a step."""
    return list(loader)[rank : len(loader) // size * size : size]


@loses(4)
def rank_batches__keeps_the_first_epoch(loader, rank, size):
    """The second epoch's order is the first one's."""
    if not hasattr(loader, "batches"):
        loader.batches = list(loader)
    return loader.batches[rank : len(loader) // size * size : size]


@loses(4)
def rank_batches__own_loader(loader, rank, size):
    """A loader of its own begins with another order."""
    loader = DataLoader(loader.dataset, loader.batch_size, loader.shuffle)
    return list(loader)[rank : len(loader) // size * size : size]


@loses(4)
def rank_batches__looks_twice(loader, rank, size):
    """Goes through the loader once more, so that the next epoch is another one."""
    last = len(loader) // size * size
    mine = [batch for i, batch in enumerate(loader) if i < last and i % size == rank]
    assert len(mine) == len(list(loader)) // size
    return mine


@loses(4)
@changes("last = len(loader)", "last = -(-len(loader.dataset) // loader.batch_size)")
def rank_batches__counts_samples():
    """Counts a smaller last batch that the loader omits."""


@loses(4)
@changes("i < last", "(i < last or comm.Get_rank())")
def rank_batches__right_on_rank_0():
    """Rank 0's process omits what is left over, the others do not."""


@loses(6)
def check_parameter_closeness__yes(model):
    """Always."""
    return True


@loses(6)
def check_parameter_closeness__first_parameter(model):
    """Looks at one parameter."""
    p = model.parameters()[0]
    everyone = np.empty((size, *p.shape), p.dtype) if rank == 0 else None
    comm.Gather(p.data, everyone, root=0)
    return bool(np.allclose(everyone, p.data)) if rank == 0 else None


@loses(6)
def check_parameter_closeness__last_parameter(model):
    """Forgets what the earlier ones said."""
    for p in model.parameters():
        everyone = np.empty((size, *p.shape), p.dtype) if rank == 0 else None
        comm.Gather(p.data, everyone, root=0)
        close = bool(np.allclose(everyone, p.data)) if rank == 0 else None
    return close


@loses(6)
@changes("close = close and bool(np.allclose(everyone, p.data))", "close = close and bool(np.allclose(everyone[1], p.data))")
def check_parameter_closeness__one_rank():
    """Looks at rank 1."""


@loses(6)
def check_parameter_closeness__mean(model):
    """Compares the mean."""
    close = True
    for p in model.parameters():
        mean = np.empty_like(p.data)
        comm.Allreduce(p.data, mean)
        close = close and bool(np.allclose(mean / size, p.data))
    return close


@loses(6)
@changes("close = close and bool(np.allclose(everyone, p.data))", "close = close and bool(np.all(everyone == p.data))")
def check_parameter_closeness__exact():
    """No rounding allowed."""


@loses(6)
@changes("close = close and bool(np.allclose(everyone, p.data))", "close = close and bool(np.all(everyone - p.data < 1e-6))")
def check_parameter_closeness__signed():
    """Without the absolute value."""


@loses(6)
@changes("close = close and bool(np.allclose(everyone, p.data))", "close = close and bool(np.abs((everyone - p.data).sum()) < 1e-6)")
def check_parameter_closeness__sum_of_differences():
    """Differences that cancel."""


@loses(6)
@changes("close = close and bool(np.allclose(everyone, p.data))", "close = close and bool(np.allclose(everyone, p.data, atol=1e-3))")
def check_parameter_closeness__loose():
    """A tolerance that small weights do not notice."""


@loses(6)
def check_parameter_closeness__by_itself(model):
    """Compares what rank 0 has with what rank 0 has."""
    return all(np.allclose(p.data, p.data) for p in model.parameters())


@loses(6)
def check_parameter_closeness__any(model):
    """One parameter that is close is enough."""
    close = []
    for p in model.parameters():
        everyone = np.empty((size, *p.shape), p.dtype) if rank == 0 else None
        comm.Gather(p.data, everyone, root=0)
        close.append(rank == 0 and bool(np.allclose(everyone, p.data)))
    return any(close)


@loses(6)
def check_parameter_closeness__makes_them_close(model):
    """Broadcasts rank 0's into the others."""
    close = True
    for p in model.parameters():
        mine = p.data.copy()
        comm.Bcast(p.data, root=0)
        bad, all_bad = np.array([not np.allclose(mine, p.data)], int), np.empty(1, int)
        comm.Allreduce(bad, all_bad)
        close = close and not all_bad[0]
    return bool(close)


@loses(6)
def check_parameter_closeness__deadlock(model):
    """Rank 0 does not send."""
    close = True
    for p in model.parameters():
        if rank:
            comm.Gather(p.data, None, root=0)
    return close


@loses(6)
@changes("np.allclose(everyone, p.data)", "np.allclose(everyone, p.data, rtol=1e-3)")
def check_parameter_closeness__rtol():
    """A hundred times NumPy's tolerance."""


@loses(6)
@changes("np.allclose(everyone, p.data)", "np.allclose(everyone, p.data, atol=0)")
def check_parameter_closeness__no_atol():
    """Rounding differences from zero are no longer close."""


@loses(6)
@changes("np.allclose(everyone, p.data)", "np.abs(everyone - p.data).max() < 2e-6")
def check_parameter_closeness__absolute():
    """One tolerance for values of any size."""


@loses(6)
@changes("np.allclose(everyone, p.data)", "np.allclose(everyone, p.data, equal_nan=True)")
def check_parameter_closeness__equal_nan():
    """NaN is close to NaN."""


@loses(6)
@changes("np.allclose(everyone, p.data)", "np.allclose(everyone[1:], everyone[:-1])")
def check_parameter_closeness__neighbors():
    """Compares each rank with the next one, not with rank 0."""


@loses(6)
@changes("np.allclose(everyone, p.data)", "np.allclose(everyone, everyone.mean(axis=0))")
def check_parameter_closeness__from_mean():
    """Compares all with their mean."""


@loses(6)
@changes("np.allclose(everyone, p.data)", "np.allclose(np.sort(everyone.reshape(size, -1)), np.sort(p.data, axis=None))")
def check_parameter_closeness__in_any_order():
    """Sorts the values first."""


@loses(6)
@changes("np.allclose(everyone, p.data)", "np.allclose(everyone[:, [0, -1]], p.data[[0, -1]])")
def check_parameter_closeness__borders():
    """Looks at the first and last rows only."""


@loses(6)
@changes("for p in model.parameters():", "for p in (p for p in model.parameters() if len(p.shape) == 2):")
def check_parameter_closeness__weights_only():
    """Leaves the biases out."""


@right
def check_parameter_closeness__everyone(model):
    """Broadcasts rank 0's, and asks all ranks."""
    far = np.zeros(1, int)
    for p in model.parameters():
        reference = p.data.copy()
        comm.Bcast(reference, root=0)
        far += not np.allclose(p.data, reference)
    total = np.empty(1, int)
    comm.Allreduce(far, total)
    return total[0] == 0


@right
def check_parameter_closeness__flat(model):
    """One exchange."""
    flat = np.concatenate([p.data.ravel() for p in model.parameters()])
    everyone = np.empty((size, flat.size), flat.dtype)
    comm.Allgather(flat, everyone)
    return all(np.allclose(other, everyone[0]) for other in everyone)
