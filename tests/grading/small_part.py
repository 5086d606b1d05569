"""A part with one exercise and two ranks only: each hand-in starts them anew."""

ONE = """# ---
# jupyter:
#   course:
#     ranks: 2
# ---

# %% Start tags=["given"]
from course_lib import cluster
from course_lib.check import Check
ranks = cluster.start(2)

# %% Set up tags=["given"]
# %%px
import numpy as np
from course_lib.collectives import Communicator
comm = Communicator()

# %% An example
# %%px
print(comm.Get_rank())

# %% First tags=["exercise"]
# %%px
def first(x):
    ### BEGIN SOLUTION
    total = np.empty_like(x)
    comm.Allreduce(x, total)
    return total
    ### END SOLUTION

# %% Try it tags=["experiment"]
# %%px
print(first(np.ones(2)))

# %% Test first tags=["test"] points=10
### BEGIN HIDDEN TESTS
check = Check("first", show=False)
for _ in range(2):
    xs = [check.random.standard_normal(5) for _ in range(2)]
    for r, found in enumerate(ranks.call("first", [dict(x=x) for x in xs])):
        check.array(found, sum(xs), name="the sum", rank=r)
### END HIDDEN TESTS
"""
