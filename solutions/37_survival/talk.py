# %% [markdown] after="# 37 Training that survives" tags=["notes"]
# The picture: rank 2 has fallen silent for half a second, and all others wait for it. The grey lines are folded cells; Shift-Enter runs them.
# There are three questions for the room; the next key press shows the answer.

# %% [markdown] after="In data parallel training, all ranks wait for the slowest in every step. With checkpoints ([part 27](27_checkpoint.ipynb)), a run that has" tags=["notes"]
# Stress the second half: the silent rank does not know. It is not dead, it is late, and what it says when it is back is old. A crash would be
# easier.

# %% [markdown] after="Draw a silent rank" tags=["notes"]
# The others wait, half a second, for nothing but one rank. No error, as rank 2 can still come: silent is not a deadlock.

# %% [markdown] after="Draw a silent rank" tags=["slide"]
# ## A question for the room
#
# Rank 0 has waited for rank 2 for ten seconds. Is rank 2 gone, or slow?

# %% [markdown] tags=["fragment"]
# Nobody can tell, however long rank 0 waits (Fischer, Lynch and Paterson, 1985). So a deadline is only a decision to go on. What is right must
# not depend on it: a rank that was taken for gone may be back the next moment, and must do no harm.

# %% [markdown] after="## Your turn: DiLoCo" tags=["notes"]
# The paper has H = 500, AdamW inside, and Nesterov with learning rate 0.7 outside. With H = 1 and the two plain optimizers it is data
# parallel training. Ask what each rank keeps: the weights after the last exchange, a second copy.

# %% [markdown] after="Exercise: DiLoCo" tags=["notes"]
# Three lines matter: the difference, back to the start, the outer step. Without the second one, each rank steps from its own weights.

# %% [markdown] after="## Messages that nobody waits for" tags=["notes"]
# This is the model of the rest: messages are late, never lost, never wrong. Say that TCP is nearly that. A collective cannot be built without
# waiting; a message can.

# %% [markdown] after="Send, and listen for a while" tags=["notes"]
# Rank 2 has sent to ranks 0 and 1, and falls silent before it sends to rank 3. So rank 3 does not hear it, the two others do. Rank 2 hears all:
# their messages were there when it came back. Who has the truth?

# %% [markdown] after="## Your turn: hear" tags=["notes"]
# Draw two ranks with different numbers. Old messages: forget. Newer ones: keep. This one rule is what keeps a rank that was away from
# spoiling a step that is over.

# %% [markdown] after="Exercise: hear" tags=["notes"]
# Two waits: for all, until the deadline; then for enough, with patience. The minority waits in the second, and ends with an error.

# %% [markdown] after="## Your turn: agree" tags=["notes"]
# Play it with four people and two proposals, first without, then with a silent one. Then ask for the case in which deciding by most of those
# heard goes wrong: two pairs, and two people who do not hear each other.

# %% [markdown] after="## Your turn: agree" tags=["slide"]
# ## A question for the room
#
# Why two thirds? Four ranks, and three are enough. What goes wrong if two are?

# %% [markdown] tags=["fragment"]
# Two pairs that do not see each other would both decide. With two thirds, any two groups that are enough share more than a third of all
# ranks, so what one has decided is the most frequent proposal that the other hears.

# %% [markdown] after="Exercise: agree" tags=["notes"]
# Eight lines. There is no leader, no list of who is in, no timer: nothing here can go wrong because of a clock. The message after the
# decision is the one that everybody forgets.

# %% [markdown] after="## Your turn: survive" tags=["notes"]
# Why the second round: a difference that one rank lacks must not count, or that rank is out. Why a copy: it could also catch up by itself,
# step by step, but it would compute what nobody needs any more.

# %% [markdown] after="Exercise: FaultTolerantDiLoCo" tags=["notes"]
# Point at `saved`: it is the start of the step, and serves twice, for the difference and for whoever joins. The answer is given while
# listening, not after the step: perhaps the step cannot end without the one who asks.

# %% [markdown] after="## Who took part when, and what it costs" tags=["notes"]
# Take guesses before you run it. With two silent ranks, two are left of four: that is no majority.

# %% [markdown] after="Draw who was in" tags=["notes"]
# The loop that trains does not know who is there. A missing rank costs a deadline in each step. The high bar is where two were silent: the
# others stood still until one was back. The loss shows none of it.

# %% [markdown] after="Draw who was in" tags=["slide-50"]
# ## A question for the room
#
# Rank 2 was away for five steps. Which samples were never trained?

# %% [markdown] tags=["fragment"]
# Its own of these steps, and what it trained just before it noticed: its work was thrown away, and its place in the list of samples is the
# peer's. No sample is trained twice. Whether a few that are left out matter depends on how many there are.

# %% [markdown] after="Count the bytes" tags=["notes"]
# Bytes fall as 1/H. The loss is after the same number of inner steps; with few of them, a large H learns more slowly. In the paper, with
# thousands of steps, H = 500 loses next to nothing.

# %% [markdown] after="## Questions worth arguing about" tags=["notes"]
# For 1: two of seven, as five are more than 14/3. With four of seven, what a rank hears could miss most of those who decided. For 2: it
# can help while it is young; asynchronous methods weigh it down with age. Ten steps later, it points from where the model no longer is.
