# %% Draw the quarters after="# 27 Checkpoints, and resuming after a crash" tags=["given"]
# Draw the quarters
moments = np.arange(56 * 124).reshape(56, 124)  # 6,944 numbers
plots.holdings(moments, np.split(moments, 4), "An Adam moment in a checkpoint: each rank writes a quarter")

# %% [markdown] after="# 27 Checkpoints, and resuming after a crash" tags=["notes"]
# The grey lines are folded cells; Shift-Enter runs them. There are three questions for the room along the way; the next key press shows the
# answer. The killed run takes a few seconds.

# %% [markdown] after="A run on thousands of devices fails every few hours: Llama 3's, on 16,384 GPUs, was interrupted 466 times in 54 days (Grattafiori et al.," tags=["notes"]
# Ask what else a real run must save: the state of the random generators, the position in the data, the learning rate schedule. Here the
# step is enough, because the texts are drawn from the seed and the step.

# %% [markdown] after="Look at the parts" tags=["notes"]
# Each rank prints the sizes of three arrays: 1,736 numbers each, a quarter of the model's 6,944. The moments exist only in parts. The
# parameters are also there in full on each rank, but it is enough to write one quarter from each.

# %% [markdown] after="Look at the parts" tags=["slide"]
# ## A question for the room
#
# With plain data parallelism, all ranks have the same state. Who writes what?

# %% [markdown] tags=["fragment"]
# Each rank writes a part of its own: then all disks and networks work at once, and no rank has to wait for one that writes it all.

# %% [markdown] after="## A worked example: half a file" tags=["notes"]
# Let the room guess what is left: 5 and 6, and the old list is gone. `os.replace` is a single step only within one file system, so the new
# file must be next to the old one, not in `/tmp`.

# %% [markdown] after="Crash while writing" tags=["notes"]
# Point at the three printed lines one by one: half of the new list, the old list, the new list. Opening with "w" emptied the old file
# before the first number was written.

# %% [markdown] after="## Your turn: save" tags=["notes"]
# Put four things in order with the room: write the parts, wait for all ranks, replace the index, remove the old files. Then let a rank die
# between any two of them, and ask which checkpoint is left.

# %% [markdown] after="Exercise: save" tags=["notes"]
# The all-gather of the lengths is also the barrier: when it returns, all parts are written. The step in the names keeps new files from
# overwriting old ones. The last barrier keeps the docstring's promise on every rank: nobody returns while rank 0 is still removing files.

# %% [markdown] after="Check save" tags=["slide-50"]
# ## A question for the room
#
# Why do we need a barrier before the index, and what could happen without one?

# %% [markdown] tags=["fragment"]
# The index would list a file that a slow rank has not written yet. If that rank dies now, the old checkpoint is lost, too.

# %% [markdown] after="## Your turn: load" tags=["notes"]
# Do an example: ten numbers, saved by four ranks, loaded by three. c is 4, so the ranks get four, four and two numbers, and must read from
# files whose parts have other lengths.

# %% [markdown] after="Exercise: load" tags=["notes"]
# `first` and `last` count within one file; if `first < last` is false, the file has nothing for this rank and is not opened. Point at
# `path`: it is always what was opened last, so the error names the right file. Files that the index does not list may be left over from an
# interrupted save.

# %% [markdown] after="## A rank is killed" tags=["notes"]
# Ask from which step the three ranks continue: 30, so steps 30 to 36 are computed again. After signal 9, no `except` and no `finally` runs;
# the program cannot save at the last moment.

# %% [markdown] after="Train from the last checkpoint on" tags=["notes"]
# Starting and resuming use the same function; the first `if` makes the difference. Ask about the file with the losses: it is only appended
# to, so steps 30 to 36 will be in it twice.

# %% [markdown] after="Kill, and go on" tags=["notes"]
# This takes a few seconds. The message about the lost rank is what we want to see; `restart` then starts three new processes. Three and
# four both divide the twelve texts of a step. Let the room choose another step for the kill: which one costs the most, which nothing?

# %% [markdown] after="Draw the losses" tags=["notes"]
# Two curves, one on top of the other; the title says how far apart they are. Point at 30 to 36, which were computed twice. If nothing is
# drawn, the ranks share no disk with the notebook.

# %% [markdown] after="Draw the losses" tags=["slide-50"]
# ## A question for the room
#
# Three ranks took over from four. Why does the loss not show it?

# %% [markdown] tags=["fragment"]
# A step takes the same twelve texts, whichever rank has them, so the mean gradient is the same up to rounding.

# %% [markdown] after="## Questions worth arguing about" tags=["notes"]
# For 1: the system may put the index on disk before the parts, so files need an `os.fsync` before the rename. For 2: the usual rule is the
# square root of 2 × saving time × time between failures, here about 38 minutes.
