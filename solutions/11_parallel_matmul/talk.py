# %% [markdown] after="# 11 A matrix product on four ranks" tags=["notes"]
# The grey lines are folded cells: Shift-Enter runs them. Three questions for the room come on the way, each with its answer on the next
# key.

# %% [markdown] after="Draw the pieces by row" tags=["slide"]
# ## A question for the room
#
# A by rows, B whole on each rank. Which exchange makes the product?

# %% [markdown] tags=["fragment"]
# None but a gather: each rank has some rows of the product, complete.

# %% [markdown] after="Draw the pieces by reduction" tags=["slide"]
# ## A question for the room
#
# A by columns, B by rows. What does a rank have?

# %% [markdown] tags=["fragment"]
# A summand of the whole product, as large as the product. So they must be added: a reduce.

# %% [markdown] after="Count the bytes" tags=["slide-50"]
# ## A question for the room
#
# In which of them does rank 0 hold more than the others?

# %% [markdown] tags=["fragment"]
# In both: it has the whole matrices at first and the whole product at last. A root is a bottleneck; that is why later parts have none.
