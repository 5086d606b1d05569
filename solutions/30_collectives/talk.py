# %% [markdown] after="# 30 Your own collectives" tags=["notes"]
# Part 00 used the collectives; today the room sees what is inside. The grey lines are folded cells; Shift-Enter runs them. There are three
# questions for the room along the way; the next key press shows the answer.

# %% [markdown] after="A ring of four ranks, as in part 00. Each array is cut into four pieces. In each step, a rank sends one piece to the next and gets one" tags=["notes"]
# Go back to the slider, and have someone point at the pieces: in step 1 rank 0 sends piece 0, in step 2 piece 3, which it has just added to.

# %% [markdown] after="Draw a ring" tags=["notes"]
# Dark pieces are complete. After three steps there is one on each rank, and three more steps copy them. Every rank sends and receives in
# every step: no link is ever idle.

# %% [markdown] after="Draw a ring" tags=["slide"]
# ## A question for the room
#
# With a hundred ranks in place of four: how much more does each rank send?

# %% [markdown] tags=["fragment"]
# From 1.5 times the array to 1.98 times. The bytes hardly grow, but the steps do, from 6 to 198: each one costs a latency.

# %% [markdown] after="## Messages" tags=["notes"]
# Ask for a show of hands: does 10 work, does 100,000 work? MPI promises neither; it only promises that a receive that comes in time is
# served.

# %% [markdown] after="Send first, then receive" tags=["notes"]
# Read the message aloud: it names the call in which each rank waits. With plain MPI, four processes would hang here. If the error is gone
# with fewer numbers, the program is still wrong.

# %% [markdown] after="`comm.Sendrecv(sent, dest, recvbuf=received, source=source)` does both at the same time, so nobody waits for a rank that waits." tags=["notes"]
# Draw it on the board for four ranks: 0-1 and 2-3, then 0-2 and 1-3. After step 1, each rank has the sum of two ranks; after step 2, of four.

# %% [markdown] after="All-reduce by recursive doubling" tags=["notes"]
# `result` is being sent while `received` fills up: one array cannot do both. With three ranks, rank 2's first partner would be rank 3, which
# is not there; real libraries let the extra ranks hand their array to a neighbour first.

# %% [markdown] after="## Your turn: reduce-scatter in a ring" tags=["notes"]
# Work backwards on the board: piece r must arrive on rank r in the last step, so it has to set out from rank r + 1, n - 1 steps earlier.
# So rank r begins with piece r - 1.

# %% [markdown] after="Exercise: ring_reduce_scatter" tags=["notes"]
# Point at the two indices: what a rank adds to in one step is what it sends in the next. The slips to expect: piece r first, as in the
# picture; a size that four does not divide; `np.zeros` without a dtype.

# %% [markdown] after="Check ring_reduce_scatter" tags=["slide-50"]
# ## A question for the room
#
# Does the order of the additions depend on the piece?

# %% [markdown] tags=["fragment"]
# Yes: piece r starts on rank r + 1 and collects the others in ring order. So the pieces round differently, but all ranks get the same bits,
# because each piece is finished on one rank and then only copied.

# %% [markdown] after="## Your turn: all-gather, and both together" tags=["notes"]
# The same loop, with a copy in place of the addition. Ask who has which part after one step: rank r has its own and that of rank r - 1.

# %% [markdown] after="Exercise: ring_all_gather" tags=["notes"]
# The part that came in one step is the part that goes in the next. Sending one's own part in every step is the commonest slip.

# %% [markdown] after="Exercise: ring_all_reduce" tags=["notes"]
# Two calls. The padding must go, and the shape must come back. Ask for the steps with one rank: none, and the result still has to be a copy.

# %% [markdown] after="## Your turn: a broadcast along a tree" tags=["notes"]
# Let four people in the room play it: one knows a word and whispers it to a second, then both whisper to the others. Two rounds, not three.

# %% [markdown] after="Exercise: tree_broadcast" tags=["notes"]
# Point at `place`: it makes the root rank 0, whoever it is. The order of the root's children matters: the child that has a child of its own
# must be served in time.

# %% [markdown] after="Exercise: tree_broadcast" tags=["slide-50"]
# ## A question for the room
#
# The ring sends to neighbours only. Why is a chain a bad broadcast, though each rank sends just once?

# %% [markdown] tags=["fragment"]
# Because every rank waits for the whole array before it passes it on: n - 1 messages, one after the other. Cut into many pieces, a chain
# becomes a pipeline, and is as fast as one message.

# %% [markdown] after="## Your turn: all-to-all in pairs" tags=["notes"]
# Draw four ranks in a circle. In step 1 all arrows go one place on, in step 2 two places, in step 3 three: in every step each rank has one
# arrow out and one in.

# %% [markdown] after="Exercise: pairwise_all_to_all" tags=["notes"]
# The row for oneself needs no message. Ask what the loop `for dest in range(n)` would do: all arrows point at rank 0 first.

# %% [markdown] after="## Your turn: choose" tags=["notes"]
# Four ranks: six latencies and 1.5 arrays against two latencies and two arrays, so the ring is faster from 8 alpha beta on. Two ranks: the
# ring has one more latency and as many bytes, so never.

# %% [markdown] after="Exercise: choose" tags=["notes"]
# Three lines. The model leaves out the additions, of which the ring also has fewer: it adds up (n - 1) / n of an array, recursive doubling
# log2 n whole ones.

# %% [markdown] after="## What it costs, and a race" tags=["notes"]
# Before the picture: how many arrows? Four ranks times six steps for the ring, and three for the tree.

# %% [markdown] after="Trace the ring and the tree" tags=["notes"]
# Zoom into the tree at the end: the rank that is served last waits through both steps. On a laptop with two cores, ranks also wait for a
# core, so the steps are not equally long.

# %% [markdown] after="First the bytes that a rank sends. Then a race: your ring, recursive doubling, and MPICH's `Allreduce`, in C. Which is fastest at 4 MB?" tags=["notes"]
# Collect the guesses on the board, with names.

# %% [markdown] after="Count the bytes" tags=["notes"]
# Two whole arrays against six quarters. With 64 ranks, it would be six arrays against two.

# %% [markdown] after="Run the race" tags=["notes"]
# It takes a few seconds. Each time is the slowest rank's, and the median of 15 repetitions.

# %% [markdown] after="Draw the race" tags=["notes"]
# Left: six latencies against two. Right: bytes and additions decide. MPICH switches algorithms, too; look for the bend in its line. The
# model's lines lie below the points on the right, because additions and copies are missing from it.

# %% [markdown] after="## Questions worth arguing about" tags=["notes"]
# For 1: cut the array into pieces; while a rank receives piece k, it passes on piece k - 1. For 2: replicas whose parameters differ in one
# bit take different steps from then on, and drift apart without an error.
