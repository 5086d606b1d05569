# %% [markdown] after="# 10 Unified training" tags=["notes"]
# Train one grid live; the others take a minute. The grey lines are folded cells: Shift-Enter runs them. Three questions for the room come
# on the way, each with its answer on the next key.

# %% [markdown] after="Draw the loss" tags=["slide"]
# ## A question for the room
#
# All grids train the same model. Are their losses equal to the last bit?

# %% [markdown] tags=["fragment"]
# No: sums in another order round otherwise. They agree to about six digits in float32.

# %% [markdown] after="Draw the losses" tags=["slide"]
# ## A question for the room
#
# Which grid for a model that does not fit on one device?

# %% [markdown] tags=["fragment"]
# Along mp, or ZeRO: data parallelism alone holds all of it everywhere.

# %% [markdown] after="Draw the traffic" tags=["slide-50"]
# ## A question for the room
#
# When does it pay to have more ranks along mp, and when along dp?

# %% [markdown] tags=["fragment"]
# mp sends activations, which grow with the batch; dp sends gradients, which grow with the weights. And mp sends in every layer, so it
# wants the fast links.
