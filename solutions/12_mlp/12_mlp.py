# ---
# jupyter:
#   course:
#     ranks: 1
# ---

# %% [markdown] tags=["slide"]
# # 12 A perceptron with a framework
#
# **You will build** `MLP`, `evaluate` and `train`: a multi-layer perceptron and its training loop, written with a framework small enough to
# read.
#
# *{points} points. About 40 minutes.*

# %% Start the rank tags=["given"]
import numpy as np

from course_lib import cluster, plots
from course_lib.check.data.perceptron import PerceptronCheck

ranks = cluster.start(1)

# %% Set up the rank tags=["given", "skip"]
# %%px
from itertools import pairwise

import numpy as np

from course_lib import datasets
from course_lib.autograd import SGD, ArrayDataset, DataLoader, Linear, Module, Tensor, cross_entropy, no_grad, operations

data = datasets.classification()

# %% [markdown] tags=["slide"]
# You can work out a gradient by hand, as for the layer in part 08. A framework finds it for you: every operation on a `Tensor` records its
# inputs and how a gradient flows back through it. `loss.backward()` then goes back through all the operations, the last one first, and
# leaves each parameter's gradient in its `grad`. The whole framework is in `course_lib/autograd`, some 880 lines of code in 11 files;
# parts 13 to 15 make it train on several ranks.
#
# ## A worked example: automatic gradients
#
# For $L = \sum_i \tanh(w_i x_i)$ the gradient is $\partial L / \partial w_i = x_i\,(1 - \tanh^2(w_i x_i))$. The framework gives the same
# result.

# %% A gradient
# %%px
w, x = Tensor(np.linspace(-2, 2, 41), requires_grad=True), 1.5
loss = operations.tanh(w * x).sum()
loss.backward()
curves = {"by hand": x * (1 - np.tanh(w.data * x) ** 2), "by backward": w.grad}

# %% Draw the gradient tags=["folded", "slide"]
plots.lines(ranks.pull("curves")[0], "The gradient of tanh(1.5 w)", "w", "gradient", at=np.linspace(-2, 2, 41))

# %% [markdown] tags=["slide"]
# A `Module` is a function with parameters. It may be a single layer such as `Linear(inputs, outputs, bias, random)`, or be built from other
# modules, which it keeps as attributes or in a list that is an attribute. `parameters()` finds all the parameters in it.
#
# `Linear` also takes a `dtype`. `operations.tanh(x)` is the hyperbolic tangent. `cross_entropy(logits, labels)` is the mean loss of a
# batch, as a Tensor; `t.data` is the array in a Tensor, and `t.item()` the number in a Tensor that has only one. Inside `with no_grad():`,
# nothing is recorded for backward. `SGD(parameters, lr)` has `zero_grad()`, which clears the gradients, and `step()`, which takes a step.
# The outputs of the last layer, one number per class, are the *logits*. The *cross-entropy* is minus the logarithm of the probability that
# their softmax gives to the right class. An *epoch* is one pass through the data.

# %% [markdown] tags=["slide"]
# ## Your turn: the network
#
# $$ x \to W_0 \to \tanh \to W_1 \to \tanh \to \dots \to W_{n-1} \to \text{logits} $$


# %% Exercise: MLP tags=["exercise", "slide-50"]
# %%px
class MLP(Module):
    """A perceptron: n linear layers without biases, with tanh between them.

    Parameters
    ----------
    dims : sequence of int
        n + 1 numbers: inputs, hidden units ..., classes.
    random, dtype : numpy.random.Generator, data type
        Passed on to `Linear`, which draws its weights.
    """

    def __init__(self, dims, random, dtype=np.float32):
        ### BEGIN SOLUTION
        drawn = dict(bias=False, random=random, dtype=dtype)
        self.layers = [Linear(a, b, **drawn) for a, b in pairwise(dims)]
        ### END SOLUTION

    def forward(self, x):
        """Compute the logits, ``(batch, classes)``, of samples, ``(batch, inputs)``."""
        ### BEGIN SOLUTION
        for layer in self.layers[:-1]:
            x = operations.tanh(layer(x))
        return self.layers[-1](x)
        ### END SOLUTION


# %% [markdown] tags=["slide-50"]
# ## Your turn: how good is it?


# %% Exercise: evaluate tags=["exercise"]
# %%px
def evaluate(model, loader):
    """Return the loss and the accuracy of a model.

    Parameters
    ----------
    model, loader : Module, DataLoader
        The loader yields batches of samples and labels; the last one may be smaller.

    Returns
    -------
    loss, accuracy : float
        The mean cross-entropy over all samples, and the fraction of samples whose
        label has the largest logit.
    """
    ### BEGIN SOLUTION
    total, right, samples = 0.0, 0, 0
    with no_grad():
        for x, y in loader:
            logits = model(x)
            total += cross_entropy(logits, y).item() * len(y)
            right += int(np.sum(logits.data.argmax(axis=1) == y))
            samples += len(y)
    return total / samples, right / samples
    ### END SOLUTION


# %% [markdown] tags=["slide-50"]
# ## Your turn: training
#
# The learning rate falls linearly, from `1.0 * lr` in the very first step to `0.3 * lr` in the last.


# %% Exercise: train tags=["exercise", "slide-50"]
# %%px
def train(model, loader, epochs, lr):
    """Train a model with plain gradient descent.

    Parameters
    ----------
    model, loader : Module, DataLoader
        ``len(loader)`` is the number of batches.
    epochs : int
        Passes through the loader; there are at least two steps in total.
    lr : float
        Learning rate of the first step; you can change an `SGD`'s ``lr`` between steps.

    Returns
    -------
    list of float
        The loss on each step's batch, before the step.
    """
    ### BEGIN SOLUTION
    optimizer, losses, last = SGD(model.parameters(), lr), [], epochs * len(loader) - 1
    for _ in range(epochs):
        for x, y in loader:
            optimizer.lr = lr * (1.0 + (0.3 - 1.0) * len(losses) / last)
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses
    ### END SOLUTION


# %% [markdown] tags=["slide-50"]
# ## Does it work?

# %% Check tags=["given"]
check = PerceptronCheck("MLP, evaluate and train", ranks)
check.mlp((6, 5, 4, 3), 7)
check.evaluate(10, 4)
for epochs in (3, 1):
    check.train(10, 4, epochs, 0.5)
check.passed()

# %% [markdown] tags=["slide"]
# ## See it learn
#
# The data are synthetic: 10,000 samples with 1024 features in 32 classes, 2,000 of them held out for testing. The loss on those shows what
# the model has learned rather than memorized.

# %% Train the perceptron tags=["experiment"]
# %%px
model = MLP((1024, 256, 256, 256, 32), np.random.default_rng(0))
held_out = DataLoader(ArrayDataset(data.x_test, data.y_test), 500)
before = evaluate(model, held_out)
loader = DataLoader(ArrayDataset(data.x_train, data.y_train), 64, shuffle=True)
losses = train(model, loader, epochs=5, lr=0.1)
text = "test loss and accuracy before: {:.3f}, {:.3f}; after: {:.3f}, {:.3f}"
print(text.format(*before, *evaluate(model, held_out)))

# %% Draw the loss tags=["folded", "slide"]
plots.losses({"training": ranks.pull("losses")[0]}, "Loss of each step, five epochs")

# %% [markdown] tags=["skip"]
# <details><summary><b>In the wild</b></summary>
#
# - PyTorch has the same names: `torch.nn.Module`, `Linear`, `loss.backward()`, `optimizer.zero_grad()`, `torch.no_grad()`. `nn.Linear` keeps
#   its weight as (outputs, inputs), the transpose of ours. Layers in an ordinary list are not found there: use `nn.ModuleList`.
# - Your learning rate is `torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.3, total_iters=steps - 1)`.
# - JAX has no `backward` and no `grad` attribute: `jax.value_and_grad(loss)(parameters, x, y)` is a function that returns both.
# - Megatron-LM and DeepSpeed use PyTorch's autograd.
#
# </details>

# %% [markdown] tags=["slide"]
# ## Questions worth arguing about
#
# 1. `backward` needs the output of every tanh. How much memory does that take for a batch of 64, on top of the weights and their gradients?
# 2. In which order do the gradients of the four weights become final? (Part 14 makes use of this.)
#
# The last cell stops the rank.

# %% [markdown] tags=["skip"]
# ## Hidden tests
#
# Hidden tests run when your notebook is graded. They use other numbers of layers, samples and epochs.

# %% Test: MLP tags=["test"] points=4
### BEGIN HIDDEN TESTS
check = PerceptronCheck("MLP", ranks, show=False)
for layers in (1, 2, 3, 5):
    for dtype in (np.float64, np.float32):
        check.mlp(check.sizes(layers + 1, 2, 9), int(check.random.integers(3, 12)), dtype)
check.mlp((5, 3, 3, 4, 3, 3, 4), 6)  # sizes that repeat
### END HIDDEN TESTS

# %% Test: evaluate tags=["test"] points=2
### BEGIN HIDDEN TESTS
check = PerceptronCheck("evaluate", ranks, show=False)
for batch in (1, 4, 7, 50):
    check.evaluate(4 * int(check.random.integers(5, 9)) + 1, batch)
check.evaluate(23, 4, factor=1000.0)
check.evaluate(23, 4, drop_last=True)
### END HIDDEN TESTS

# %% Test: train tags=["test"] points=4
### BEGIN HIDDEN TESTS
check = PerceptronCheck("train", ranks, show=False)
for batch, epochs, whole, more in ((3, 1, 4, 0), (5, 2, 3, 1), (8, 4, 2, 0), (20, 2, 0, 11)):  # with and without a smaller last batch
    samples = batch * whole + int(check.random.integers(more, batch) if more else 0)
    check.train(samples, batch, epochs, float(check.random.uniform(0.2, 1.0)))
check.train(14, 4, 3, 0.5, shuffle=True, seed=int(check.random.integers(2**31)))
check.train(14, 4, 2, 0.5, drop_last=True)
### END HIDDEN TESTS

# %% Stop the rank tags=["given"]
ranks.stop()
