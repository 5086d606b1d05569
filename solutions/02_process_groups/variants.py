"""Answers to part 02: wrong ones with the points that each must lose, and other right ones."""

from grading.authoring.answers import loses, right


@loses(10)
def get_info__color_and_key_swapped(comm, rank, mp_size, dp_size, is_fc1, is_megatron_mp, in_dim, out_dim):
    """The key is what members share, the color the order: the two groups change places."""
    mp_idx, dp_idx = rank % mp_size, rank // mp_size
    mp_comm = comm.Split(color=mp_idx, key=dp_idx)
    dp_comm = comm.Split(color=dp_idx, key=mp_idx)
    rows = is_megatron_mp and not is_fc1
    return mp_idx, dp_idx, mp_comm, dp_comm, in_dim // mp_size if rows else in_dim, out_dim if rows else out_dim // mp_size


@loses(15)
def get_info__dp_major(comm, rank, mp_size, dp_size, is_fc1, is_megatron_mp, in_dim, out_dim):
    """Numbers the grid column by column."""
    mp_idx, dp_idx = rank // dp_size, rank % dp_size
    mp_comm = comm.Split(color=dp_idx, key=mp_idx)
    dp_comm = comm.Split(color=mp_idx, key=dp_idx)
    rows = is_megatron_mp and not is_fc1
    return mp_idx, dp_idx, mp_comm, dp_comm, in_dim // mp_size if rows else in_dim, out_dim if rows else out_dim // mp_size


@loses(15)
def get_info__indices_swapped(comm, rank, mp_size, dp_size, is_fc1, is_megatron_mp, in_dim, out_dim):
    """The two indices are exchanged everywhere."""
    dp_idx, mp_idx = rank % mp_size, rank // mp_size
    mp_comm = comm.Split(color=dp_idx, key=rank)
    dp_comm = comm.Split(color=mp_idx, key=rank)
    rows = is_megatron_mp and not is_fc1
    return mp_idx, dp_idx, mp_comm, dp_comm, in_dim // mp_size if rows else in_dim, out_dim if rows else out_dim // mp_size


@loses(10)
def get_info__reverse_order(comm, rank, mp_size, dp_size, is_fc1, is_megatron_mp, in_dim, out_dim):
    """The right groups, in the wrong order."""
    mp_idx, dp_idx = rank % mp_size, rank // mp_size
    mp_comm = comm.Split(color=dp_idx, key=-rank)
    dp_comm = comm.Split(color=mp_idx, key=-rank)
    rows = is_megatron_mp and not is_fc1
    return mp_idx, dp_idx, mp_comm, dp_comm, in_dim // mp_size if rows else in_dim, out_dim if rows else out_dim // mp_size


@loses(10)
def get_info__whole_world(comm, rank, mp_size, dp_size, is_fc1, is_megatron_mp, in_dim, out_dim):
    """Does not split: both groups are all ranks."""
    mp_idx, dp_idx = rank % mp_size, rank // mp_size
    rows = is_megatron_mp and not is_fc1
    return mp_idx, dp_idx, comm, comm, in_dim // mp_size if rows else in_dim, out_dim if rows else out_dim // mp_size


@loses(5)
def get_info__always_columns(comm, rank, mp_size, dp_size, is_fc1, is_megatron_mp, in_dim, out_dim):
    """Splits Megatron's second layer by columns, too."""
    mp_idx, dp_idx = rank % mp_size, rank // mp_size
    mp_comm = comm.Split(color=dp_idx, key=mp_idx)
    dp_comm = comm.Split(color=mp_idx, key=dp_idx)
    return mp_idx, dp_idx, mp_comm, dp_comm, in_dim, out_dim // mp_size


@loses(5)
def get_info__naive_rows(comm, rank, mp_size, dp_size, is_fc1, is_megatron_mp, in_dim, out_dim):
    """Splits the second layer by rows in both styles."""
    mp_idx, dp_idx = rank % mp_size, rank // mp_size
    mp_comm = comm.Split(color=dp_idx, key=mp_idx)
    dp_comm = comm.Split(color=mp_idx, key=dp_idx)
    if is_fc1:
        return mp_idx, dp_idx, mp_comm, dp_comm, in_dim, out_dim // mp_size
    return mp_idx, dp_idx, mp_comm, dp_comm, in_dim // mp_size, out_dim


@loses(5)
def get_info__true_division(comm, rank, mp_size, dp_size, is_fc1, is_megatron_mp, in_dim, out_dim):
    """Divides with /, so the dimension is a float."""
    mp_idx, dp_idx = rank % mp_size, rank // mp_size
    mp_comm = comm.Split(color=dp_idx, key=mp_idx)
    dp_comm = comm.Split(color=mp_idx, key=dp_idx)
    rows = is_megatron_mp and not is_fc1
    return mp_idx, dp_idx, mp_comm, dp_comm, in_dim / mp_size if rows else in_dim, out_dim if rows else out_dim / mp_size


@loses(5)
def get_info__both_dimensions(comm, rank, mp_size, dp_size, is_fc1, is_megatron_mp, in_dim, out_dim):
    """Splits rows and columns."""
    mp_idx, dp_idx = rank % mp_size, rank // mp_size
    mp_comm = comm.Split(color=dp_idx, key=mp_idx)
    dp_comm = comm.Split(color=mp_idx, key=dp_idx)
    return mp_idx, dp_idx, mp_comm, dp_comm, in_dim // mp_size, out_dim // mp_size


@loses(20)
def get_info__deadlock(comm, rank, mp_size, dp_size, is_fc1, is_megatron_mp, in_dim, out_dim):
    """Only the first rank of each row takes part in the second Split."""
    mp_idx, dp_idx = rank % mp_size, rank // mp_size
    mp_comm = dp_comm = comm.Split(color=dp_idx, key=mp_idx)
    if mp_idx == 0:
        dp_comm = comm.Split(color=mp_idx, key=dp_idx)
    rows = is_megatron_mp and not is_fc1
    return mp_idx, dp_idx, mp_comm, dp_comm, in_dim // mp_size if rows else in_dim, out_dim if rows else out_dim // mp_size


@loses(20)
def get_info__visible_sizes(comm, rank, mp_size, dp_size, is_fc1, is_megatron_mp, in_dim, out_dim):
    """Right only for the grid and the layer of the visible check."""
    mp_idx, dp_idx = rank % 4, rank // 4
    return mp_idx, dp_idx, comm.Split(dp_idx, mp_idx), comm.Split(mp_idx, dp_idx), 8, 2


@loses(20)
def get_info__five_values(comm, rank, mp_size, dp_size, is_fc1, is_megatron_mp, in_dim, out_dim):
    """Forgets a value."""
    mp_idx, dp_idx = rank % mp_size, rank // mp_size
    return mp_idx, dp_idx, comm.Split(dp_idx, mp_idx), comm.Split(mp_idx, dp_idx), in_dim


@right
def get_info__rank_as_key(comm, rank, mp_size, dp_size, is_fc1, is_megatron_mp, in_dim, out_dim):
    """The rank itself is a good key, and divmod finds both indices."""
    dp_idx, mp_idx = divmod(rank, mp_size)
    mp_comm, dp_comm = comm.Split(dp_idx, rank), comm.Split(mp_idx, rank)
    if not is_megatron_mp or is_fc1:
        return mp_idx, dp_idx, mp_comm, dp_comm, in_dim, out_dim // mp_size
    return mp_idx, dp_idx, mp_comm, dp_comm, in_dim // mp_size, out_dim


@right
def get_info__indices_from_groups(comm, rank, mp_size, dp_size, is_fc1, is_megatron_mp, in_dim, out_dim):
    """Lets the groups tell the indices; dp first; equal keys keep the order."""
    dp_comm = comm.Split(color=rank % mp_size)
    mp_comm = comm.Split(color=rank // mp_size)
    parts = {True: (in_dim // mp_size, out_dim), False: (in_dim, out_dim // mp_size)}[bool(is_megatron_mp and not is_fc1)]
    return (mp_comm.Get_rank(), dp_comm.Get_rank(), mp_comm, dp_comm, *parts)


@loses(10)
def get_info__key_is_world_rank(comm, rank, mp_size, dp_size, is_fc1, is_megatron_mp, in_dim, out_dim):
    """Orders the groups by the world's ranks."""
    mp_idx, dp_idx = rank % mp_size, rank // mp_size
    me = Communicator().Get_rank()
    mp_comm, dp_comm = comm.Split(dp_idx, me), comm.Split(mp_idx, me)
    rows = is_megatron_mp and not is_fc1
    return mp_idx, dp_idx, mp_comm, dp_comm, in_dim // mp_size if rows else in_dim, out_dim if rows else out_dim // mp_size


@loses(15)
def get_info__world_rank_everywhere(comm, rank, mp_size, dp_size, is_fc1, is_megatron_mp, in_dim, out_dim):
    """Takes the rank of the world for that of comm."""
    rank = Communicator().Get_rank()
    mp_idx, dp_idx = rank % mp_size, rank // mp_size
    mp_comm, dp_comm = comm.Split(dp_idx, mp_idx), comm.Split(mp_idx, dp_idx)
    rows = is_megatron_mp and not is_fc1
    return mp_idx, dp_idx, mp_comm, dp_comm, in_dim // mp_size if rows else in_dim, out_dim if rows else out_dim // mp_size


@loses(5)
def get_info__parts_by_shift(comm, rank, mp_size, dp_size, is_fc1, is_megatron_mp, in_dim, out_dim):
    """Divides by powers of two only."""
    mp_idx, dp_idx = rank % mp_size, rank // mp_size
    mp_comm, dp_comm = comm.Split(dp_idx, mp_idx), comm.Split(mp_idx, dp_idx)
    part_in_dim, part_out_dim, n = in_dim, out_dim, mp_size
    while n > 1:
        if is_megatron_mp and not is_fc1:
            part_in_dim //= 2
        else:
            part_out_dim //= 2
        n //= 2
    return mp_idx, dp_idx, mp_comm, dp_comm, part_in_dim, part_out_dim


@loses(5)
@changes(
    "in_dim // mp_size",
    "int(np.float32(in_dim) / mp_size)",
    "out_dim // mp_size",
    "int(np.float32(out_dim) / mp_size)",
)
def get_info__float32():
    """Rounds large dimensions."""


@loses(5)
@changes("out_dim // mp_size", "max(2, out_dim // mp_size)")
def get_info__two_columns():
    """Gives each rank two columns at least."""
