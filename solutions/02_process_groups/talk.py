# %% [markdown] after="# 02 Process groups" tags=["notes"]
# The slider runs your groups on the ranks, for every value that you choose. The grey lines are folded cells: Shift-Enter runs them. Three
# questions for the room come on the way, each with its answer on the next key.

# %% [markdown] after="Split in halves" tags=["slide"]
# ## A question for the room
#
# All ranks call Split with color 0 and key -rank. What comes out?

# %% [markdown] tags=["fragment"]
# One group of all ranks, in reverse order: the color says who, the key says in which order.

# %% [markdown] after="## The parts of a layer" tags=["slide"]
# ## A question for the room
#
# On a grid of 2 by 4, how many groups is a rank in, beside that of all?

# %% [markdown] tags=["fragment"]
# Two: its row, with which it shares a copy of the model, and its column, with which it shares the same part of it.

# %% [markdown] after="Draw your groups" tags=["slide-50"]
# ## A question for the room
#
# Which exchange goes along a row, and which along a column?

# %% [markdown] tags=["fragment"]
# Along a row: activations and their gradients, in every layer. Along a column: the gradients of weights, once a step.

# %% [markdown] tags=["slide"]
# ## More along the rows, or along the columns?

# %% A slider tags=["given"]
# Change mp_size
from ipywidgets import SelectionSlider, interact

from course_lib.traffic import wire_bytes


@interact(mp_size=SelectionSlider(options=[1, 2, 4, 8], value=2))
def grid_of(mp_size):
    found = ranks.call(look, [dict(size=8, secret=r, mp_size=mp_size, dp_size=8 // mp_size) for r in range(8)])
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
