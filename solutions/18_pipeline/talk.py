# %% Draw four ranks after="# 18 A pipeline" tags=["given"]
# Draw four ranks
from course_lib.sim.schedule import schedules

schedules.draw({"The whole batch passes through four ranks": ["F0 B0"] * 4})

# %% [markdown] after="# 18 A pipeline" tags=["notes"]
# The grey lines are folded cells; Shift-Enter runs them. There are three questions for the room along the way; the next key press shows the
# answer.

# %% [markdown] after="In **pipeline parallel** training, a rank holds only some of the layers: with 4 ranks and 8 layers, rank 0 has layers 0 and 1, rank 1 has" tags=["notes"]
# Take care with the comparison: 8 MiB is for one sample, so from five samples on, the activation is larger than a weight. But it is sent
# once at each boundary between ranks, and not once per layer.

# %% [markdown] after="## A worked example: a message" tags=["notes"]
# Let everyone write down two times for each case: when rank 0 continues, and when rank 1 has the activation. Remind them that both ranks
# first wait for their own input.

# %% [markdown] after="A message" tags=["notes"]
# In the first case the message is there at 12.57 ms and rank 1 asks for it at 17.75 ms: nobody waits. In the second case rank 1 asks at
# 10.73 ms and gets it at 19.6 ms. A buffered send saves the sender from waiting, never the receiver.

# %% [markdown] after="A message" tags=["slide"]
# ## A question for the room
#
# What is sent from rank to rank?

# %% [markdown] tags=["fragment"]
# Activations on the way forward, their gradients on the way back. No weights, and no weight gradients.

# %% [markdown] after="What a rank sends also stays in its own storage until you take it out. And the message takes up memory on the sender until the receiver" tags=["notes"]
# Ask what comes first on a middle rank: sending the activation or waiting for the gradient. The other way round, every rank waits, and the
# simulator says so. Even a correct loop leaves most ranks idle most of the time; that is what this part is about.

# %% [markdown] after="Exercise: part2_training_loop" tags=["notes"]
# The branches on `rank` are the whole pipeline; between them it is a loop for one device. Point at the order near the end: the gradient is
# sent before the update, so that the next rank can start. The other order costs 1 ms out of 76 on four ranks.

# %% [markdown] after="Check" tags=["notes"]
# The one-rank case comes first. That rank is both the first and the last: it goes through both branches and sends no message. Among the
# other cases is the one from the introduction, four ranks with eight layers.

# %% [markdown] after="Draw the pipeline" tags=["notes"]
# Follow the one box down and back up: no two ranks are ever in forward or backward at the same time; only updates overlap with other work.
# Ask which rank waits longest between its two boxes, and which does not wait at all: the first, and the last.

# %% [markdown] after="Draw the pipeline" tags=["slide"]
# ## A question for the room
#
# Four ranks work one after the other. How busy is each of them at best?

# %% [markdown] tags=["fragment"]
# A quarter of the time. Micro-batches are the way out: part 19.

# %% [markdown] after="Draw the utilization by ranks" tags=["notes"]
# 81, 39, 18 and 7%. The times are more striking: the step takes 66 ms on one rank and 90 ms on eight. The layers are still computed one
# after the other, and each boundary between ranks adds two messages.

# %% [markdown] after="Draw the utilization by layers" tags=["notes"]
# Ask what limit it approaches, and why it starts so low. The input and six messages take 19.5 ms however many layers there are; with 32
# layers they hardly matter, and 22% is close to the limit: a quarter of the 95% of the peak that matrix products reach, 23.75%.

# %% [markdown] after="Draw the memory" tags=["notes"]
# Each rank needs less, but with eight ranks it is 1.75 GiB, not an eighth of 6.78. Every rank still works on all 64 samples, whose
# activation takes 512 MiB, and every rank needs a few of those for whatever it is computing.

# %% [markdown] after="Draw the memory" tags=["slide-50"]
# ## A question for the room
#
# Then what is such a pipeline good for?

# %% [markdown] tags=["fragment"]
# It saves memory: no two ranks hold the same layer. And it sends little.

# %% [markdown] after="Draw sixteen ranks" tags=["notes"]
# Point at the long transfer between ranks 7 and 8, and back again: that is where the message leaves the NVLink domain, and it
# takes 12 instead of 1.8 ms. MFU is 4.3%. Ask how to fill the hatched part: by cutting the batch into micro-batches, which is part 19.

# %% [markdown] after="Slow down a stage" tags=["notes"]
# Let the room predict before you open the cell. T grows from 76 to 104 ms, by the slow rank's extra time only; the bubble fraction falls from
# 81 to 79%, and MFU from 17.6 to 12.8%. So a bubble fraction alone does not say how well a step does. In part 19 the same cell looks worse.

# %% [markdown] after="Stop the rank" tags=["notes"]
# Question 1: one rank in four computes at a time; input and messages take the rest. Question 2: with 128 samples, MFU is 17.6 instead of
# 17.6%. Question 3: each rank peaks as its own backward begins, and the loss gives the last rank no more than the others receive.
