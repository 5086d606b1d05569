# %% [markdown] after="# 02 Process groups" tags=["notes"]
# Towards the end there is a slider: it calls your function on the ranks for every value you choose. The grey lines are folded cells;
# Shift-Enter runs them. There are three questions for the room along the way; the next key press shows the answer.

# %% [markdown] after="Each rank is in one row and one column. Along its row (**mp group**) it exchanges activations (its layers' outputs), because the ranks of" tags=["notes"]
# Ask about rank 5: `mp_idx` 1 and `dp_idx` 1. Point out now that `dp_idx` is also the number of the row, and `mp_idx` the number of the
# column. This crossover is what confuses people in the exercise.

# %% [markdown] after="Split in halves" tags=["notes"]
# Ask what rank 0 prints: it is rank 3 of its half, because the keys 0, -1, -2, -3 are sorted in ascending order. Then change the color to
# `rank % 2`. Colors only have to be equal or different; which one is larger does not matter.

# %% [markdown] after="Split in halves" tags=["slide"]
# ## A question for the room
#
# All ranks call Split with color 0 and key -rank. What do you get?

# %% [markdown] tags=["fragment"]
# One group of all ranks, in reverse order: the color says who is in it, the key says in which order.

# %% [markdown] after="## The parts of a layer" tags=["notes"]
# Only one entry in the table is different: fc2 in Megatron's style. Ask for an example: fc1 of 784 by 256 with mp_size 4 is 784 by 64 on
# each rank, in both styles. Both styles hold the same number of weights, so memory for weights is no reason to prefer one of them.

# %% [markdown] after="## The parts of a layer" tags=["slide"]
# ## A question for the room
#
# On a grid of 2 by 4, how many groups is a rank in, apart from the group of all ranks?

# %% [markdown] tags=["fragment"]
# Two: its row, whose ranks share one copy of the model, and its column, whose ranks hold the same part of the model.

# %% [markdown] after="## Your turn" tags=["notes"]
# The typical deadlock here comes from an `if` around one of the two splits, so that only some ranks call it. Every rank has to call both,
# even when mp_size is 1 and the rank is alone in its row.

# %% [markdown] after="Exercise: get_info" tags=["notes"]
# Point out the crossover: the row uses `color=dp_idx`, because that is the number its members share. `key=rank` would work as well. Divide
# with `//`: with `/` a dimension becomes a float, and NumPy refuses to make an array of that shape.

# %% [markdown] after="Check" tags=["notes"]
# Swap color and key in both calls and run it again: the check says that mp_comm has the ranks of dp_comm. The check goes through all four
# grids of eight ranks and all four kinds of layers, so a solution for just one grid does not pass.

# %% [markdown] after="Draw your groups" tags=["notes"]
# The grid in the first picture was 2 by 4, this one is 4 by 2. Ask where rank 6 has gone: from `mp_idx` 2, `dp_idx` 1 to `mp_idx` 0,
# `dp_idx` 3. The boxes are drawn from what the ranks received, so a wrong color would show up.

# %% [markdown] after="Draw your groups" tags=["slide-50"]
# ## A question for the room
#
# What is exchanged along a row, and what along a column?

# %% [markdown] tags=["fragment"]
# Along a row: activations and their gradients, in every layer. Along a column: the gradients of the weights, once per step.

# %% [markdown] tags=["slide"]
# ## More traffic along the rows, or along the columns?

# %% A slider tags=["given"]
# Change mp_size
from ipywidgets import SelectionSlider, interact

from course_lib.traffic import wire_bytes


@interact(mp_size=SelectionSlider(options=[1, 2, 4, 8], value=2))
def grid_of(mp_size):
    found = ranks.call(reach_groups, [dict(size=8, secret=r, mp_size=mp_size, dp_size=8 // mp_size) for r in range(8)])
    rows = sorted({tuple(a[2].tolist()) for a in found})
    columns = sorted({tuple(a[3].tolist()) for a in found})
    weights, batch = 4 * 1024 * 1024, 4 * 60 * 1024
    sent = {
        "sent along a row": wire_bytes("Allgather", mp_size, batch),
        "sent along a column": wire_bytes("Allreduce", 8 // mp_size, weights // mp_size),
        "held": weights // mp_size,
    }
    title = "Activations (row), gradients (column), weights"
    for picture in (
        plots.groups({"mp": rows, "dp": columns}, f"mp_size {mp_size}, dp_size {8 // mp_size}"),
        plots.bars(sent, title, "bytes"),
    ):
        picture.share = 0.5
        display(picture)


# %% [markdown] tags=["notes"]
# Go to 4 and then to 8, and ask about the column's bar first: at 4 it is about 1 MB, at 8 it is gone, because each rank is alone in its
# column. The row's bar is a single all-gather for one layer; a real step has several in each layer, and they grow with the batch.

# %% [markdown] after="Count the bytes" tags=["notes"]
# The bars are 1.75 MB, 750 kB, 250 kB and 0. Two things get smaller together: the gradient, by mp_size, and the ring's factor, by dp_size. The
# price is not on this chart: the activations along the rows, see the slider. Ask what an average over all eight ranks would give with
# mp_size 4: the mean of the gradients of four different weights.

# %% [markdown] after="## Questions worth arguing about" tags=["notes"]
# 1: the row, because it exchanges activations in every layer; with mp_size 4, the numbering puts each row on one machine. 2: nobody knows
# the members until every rank has announced its color. In plain MPI, a rank that does not need a group still makes the call, with
# MPI_UNDEFINED.
