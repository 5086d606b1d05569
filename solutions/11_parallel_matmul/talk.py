# %% [markdown] after="# 11 A matrix product on four ranks" tags=["notes"]
# The grey lines are folded cells; Shift-Enter runs them. There are three questions for the room along the way; the next key press shows the
# answer.

# %% [markdown] after="The pieces" tags=["notes"]
# Let the room name the shapes of $A_1 B$ and of $A_1 B_1$ for 8 x 8 matrices: 2 x 8 and 8 x 8. Do not give away the collectives yet; the
# first two questions are about what follows from these shapes.

# %% [markdown] after="Draw the pieces by row" tags=["notes"]
# Grey is what a rank does not have. B is not in the picture, because every rank gets all of it. Ask who computes row 5 of C: rank 2 alone,
# and it needs nothing from the others to do so.

# %% [markdown] after="Draw the pieces by row" tags=["slide"]
# ## A question for the room
#
# A is split by rows, and B is whole on each rank. Which collective produces the product?

# %% [markdown] tags=["fragment"]
# A gather is enough: each rank has some rows of the product, and they are complete.

# %% [markdown] after="Draw the pieces by reduction" tags=["notes"]
# Rank 1 multiplies 8 x 2 by 2 x 8. The picture shows a quarter of A on each rank, and many conclude that the result is also a quarter of C;
# let them say so before you go on.

# %% [markdown] after="Draw the pieces by reduction" tags=["slide"]
# ## A question for the room
#
# A is split by columns, and B by rows. What does a rank end up with?

# %% [markdown] tags=["fragment"]
# A summand that is as large as the whole product. So the summands have to be added up, and that is a reduce.

# %% [markdown] after="## Four cases" tags=["notes"]
# Everything follows from the shapes of the pieces. Have the room write the shape of a rank's piece next to each matrix, for 8 x 8 matrices.

# %% [markdown] after="Draw the four cases" tags=["notes"]
# The cases of the previous two pictures are 1 and 3. Ask what a rank could multiply in case 4: two rows of A by two columns of B, which is
# a 2 x 2 block of C. Four of sixteen blocks are computed, and the other twelve by nobody.

# %% [markdown] after="Your three answers" tags=["notes"]
# Sharded by columns; gather first; partial. The third one is why part 07 all-reduces the weights' gradients: data parallelism is case 3,
# too.

# %% [markdown] after="Deal out and collect" tags=["notes"]
# Have someone write down rank 2's hand before you run it: 4 and 5, times 3, so 12 and 15. Point out that every rank makes each call,
# including the ranks that pass None; if one rank skips the call, the others wait.

# %% [markdown] after="Draw the cards" tags=["notes"]
# Point at ranks 1 to 3 on the right: they still have their two numbers, because a gather copies. Ask what an all-gather would change in the
# picture: eight numbers on every rank, and more bytes sent.

# %% [markdown] after="## Your turn: by row" tags=["notes"]
# Ask how NumPy lays out a matrix: row by row, so rows 2 and 3 are one block of memory, but columns are not. B may also arrive as a view;
# that is why the solution copies it with `np.ascontiguousarray` before the broadcast.

# %% [markdown] after="Exercise: par_matmul_by_row" tags=["notes"]
# Point at `if rank == 0 else`: it chooses buffers, and never decides who makes a collective call. The usual mistakes are a `Bcast` that
# only rank 0 calls, which is a deadlock, and a broadcast of A, which gives the right product but sends too much.

# %% [markdown] after="## Your turn: by reduction" tags=["notes"]
# Let the room try first: the columns of A are the rows of its transpose. The trap is that `A.T` is only a view with different strides;
# nothing moves in memory until you copy it.

# %% [markdown] after="Exercise: par_matmul_by_reduction" tags=["notes"]
# Follow the shapes: `columns` arrives as (k / size, m), so it is transposed back for the product. Scattering A as it is gives a product
# with the right shape and the wrong numbers. A reduce to rank 0 would do if nobody else needed C.

# %% [markdown] after="## Does it work?" tags=["notes"]
# The first case is square, 8 x 8 x 8, and cannot catch swapped sizes; the second one can. The check also counts bytes: if rank 0 computes
# everything alone, the product is right and the check still fails.

# %% [markdown] after="Count the bytes" tags=["notes"]
# A matrix is 8.4 MB. By row, rank 0 sends B and three quarters of A, 14.7 MB; by reduction, three quarters of both and its share of the
# all-reduce, 25.2 MB. A tall A and a small B favor the split by row; with a short, wide A the product is small, and reduction wins.

# %% [markdown] after="Count the bytes" tags=["slide-50"]
# ## A question for the room
#
# With which of the two methods does rank 0 hold more than the others?

# %% [markdown] tags=["fragment"]
# With both: it starts with the whole matrices. By row, it is also the only one that has the product. A root is a bottleneck, and that is
# why the later parts have none.

# %% [markdown] after="Time both" tags=["notes"]
# This is one core against four: each rank may use one thread, including rank 0 when it works alone. Ask for bets. On a machine with two
# cores, rank 0 alone may well win, and that is not a bug in the code.

# %% [markdown] after="Stop the ranks" tags=["notes"]
# Question 1: work grows with $n^3$ and traffic with $n^2$, so there is always a size beyond which four ranks win. Question 2: fc1 is case
# 1, naive fc2 case 2 (its gradient of X is case 3), Megatron's fc2 case 3 (its gradient of X is case 1). Slice and sum sends twice the
# product, gathering once the matrix: so it is cheaper if C is smaller than half of what would be gathered. Compare parts 03 and 04.
