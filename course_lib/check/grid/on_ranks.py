"""Functions that the check of part 02 runs on the ranks, with the student's `get_info`; see `grid.process_groups`."""

from __future__ import annotations

import numpy as np

from course_lib.engine.namespace import student

ANSWER = "mp_idx, dp_idx, mp_comm, dp_comm, part_in_dim, part_out_dim"


def reach_groups(size, secret, mp_size, dp_size, is_fc1=True, is_megatron_mp=False, in_dim=8, out_dim=8, place=None):
    """Call `get_info` on the first `size` ranks, and exchange this rank's `secret` in both of its groups.

    The ranks have the order of their `place`, if it is given.

    What counts is whom a group really reaches, so each group is returned as the secrets of its members. Ranks that this grid does not need
    return None; an answer without six values is returned as it is.
    """
    from course_lib.collectives import Communicator

    everyone = Communicator()
    me = everyone.Get_rank() if place is None else place
    part = everyone.Split(color=int(me >= size), key=me)
    if me >= size:
        return None
    answer = student("get_info")(part, part.Get_rank(), mp_size, dp_size, is_fc1, is_megatron_mp, in_dim, out_dim)
    if not isinstance(answer, (tuple, list)) or len(answer) != 6:
        return answer
    mp_idx, dp_idx, mp_comm, dp_comm, part_in_dim, part_out_dim = answer
    members = []
    for name, group in (("mp_comm", mp_comm), ("dp_comm", dp_comm)):
        if not hasattr(group, "Allgather"):
            raise TypeError(f"get_info must return {ANSWER}, in this order; got {group!r} instead of {name}.")
        found = np.empty(group.Get_size(), np.int64)
        group.Allgather(np.array([secret], np.int64), found)
        members.append(found)
    return mp_idx, dp_idx, *members, part_in_dim, part_out_dim
