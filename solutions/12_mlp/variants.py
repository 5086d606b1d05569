"""Answers to part 12: wrong ones with the points that each must lose, and other right ones."""

from grading.authoring.answers import changes, loses, right

# Lines of the solution, and the same in other words: several answers are changes of these.
LAYERS = """
        drawn = dict(bias=False, random=random, dtype=dtype)
        self.layers = [Linear(a, b, **drawn) for a, b in pairwise(dims)]"""
LAYERS_IN_OTHER_WORDS = "        self.layers = [Linear(a, b, bias=False, random=random, dtype=dtype) for a, b in pairwise(dims)]"


@loses(4)
class MLP__tanh_at_the_end(Module):
    """A tanh after the last layer, too."""

    def __init__(self, dims, random, dtype=np.float32):
        self.layers = [Linear(a, b, bias=False, random=random, dtype=dtype) for a, b in pairwise(dims)]

    def forward(self, x):
        for layer in self.layers:
            x = operations.tanh(layer(x))
        return x


@loses(4)
class MLP__no_tanh(Module):
    """A chain of matrices."""

    def __init__(self, dims, random, dtype=np.float32):
        self.layers = [Linear(a, b, bias=False, random=random, dtype=dtype) for a, b in pairwise(dims)]

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


@loses(4)
@changes(LAYERS, LAYERS_IN_OTHER_WORDS, "Linear(a, b, bias=False, random=random, dtype=dtype)", "Linear(a, b, random=random, dtype=dtype)")
class MLP__biases:
    """With biases."""


@loses(4)
@changes("x = operations.tanh(layer(x))", "x = operations.relu(layer(x))")
class MLP__relu:
    """ReLU instead of tanh."""


@loses(4)
@changes("pairwise(dims)", "pairwise(dims[:-1])")
class MLP__one_layer_short:
    """Leaves out the last layer."""


@loses(4)
class MLP__hidden_in_a_dict(Module):
    """Layers in a dict, where no one finds their parameters."""

    def __init__(self, dims, random, dtype=np.float32):
        self.table = dict(enumerate([Linear(a, b, bias=False, random=random, dtype=dtype) for a, b in pairwise(dims)]))

    def forward(self, x):
        for layer in list(self.table.values())[:-1]:
            x = operations.tanh(layer(x))
        return self.table[len(self.table) - 1](x)


@loses(4)
@changes("x = operations.tanh(layer(x))", "x = Tensor(np.tanh(layer(x).data))")
class MLP__cuts_the_graph:
    """Takes the arrays out of the tensors on the way."""


@loses(4)
class MLP__zeros(Module):
    """Weights of zero."""

    def __init__(self, dims, random, dtype=np.float32):
        self.layers = [Linear(a, b, bias=False, random=random, dtype=dtype) for a, b in pairwise(dims)]
        for layer in self.layers:
            layer.weight.data[:] = 0

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = operations.tanh(layer(x))
        return self.layers[-1](x)


@loses(4)
class MLP__one_hidden_size(Module):
    """All hidden layers are as wide as the first one."""

    def __init__(self, dims, random, dtype=np.float32):
        dims = [dims[0], *[dims[1]] * (len(dims) - 2), dims[-1]]
        self.layers = [Linear(a, b, bias=False, random=random, dtype=dtype) for a, b in pairwise(dims)]

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = operations.tanh(layer(x))
        return self.layers[-1](x)


@loses(4)
@changes("dtype=dtype", "dtype=np.float64")
class MLP__float64:
    """Always float64."""


@right
class MLP__sequential(Module):
    """With Sequential and Tanh."""

    def __init__(self, dims, random, dtype=np.float32):
        from course_lib.autograd import Sequential, Tanh

        parts = []
        for a, b in pairwise(dims):
            parts += [Tanh()] * bool(parts) + [Linear(a, b, bias=False, random=random, dtype=dtype)]
        self.net = Sequential(*parts)

    def forward(self, x):
        return self.net(x)


@right
class MLP__parameters(Module):
    """Parameters and matrix products."""

    def __init__(self, dims, random, dtype=np.float32):
        from course_lib.autograd import Parameter

        self.weights = [Parameter((random.standard_normal((a, b)) * np.sqrt(2 / a)).astype(dtype)) for a, b in pairwise(dims)]

    def forward(self, x):
        for w in self.weights[:-1]:
            x = operations.tanh(x @ w)
        return x @ self.weights[-1]


@loses(2)
@changes(
    "total += cross_entropy(logits, y).item() * len(y)",
    "total += cross_entropy(logits, y).item()",
    "return total / samples, right / samples",
    "return total / len(loader), right / samples",
)
def evaluate__mean_of_means():
    """The mean of the batches' means."""


@loses(2)
def evaluate__last_batch(model, loader):
    """Looks at the last batch only."""
    total, right, samples = 0.0, 0, 0
    with no_grad():
        for x, y in loader:
            logits = model(x)
            total = cross_entropy(logits, y).item() * len(y)
            right = int(np.sum(logits.data.argmax(axis=1) == y))
            samples = len(y)
    return total / samples, right / samples


@loses(2)
@changes("return total / samples, right / samples", "return total / samples, 100 * right / samples")
def evaluate__per_cent():
    """The accuracy in per cent."""


@loses(2)
@changes("return total / samples, right / samples", "return right / samples, total / samples")
def evaluate__swapped():
    """Accuracy first."""


@loses(2)
@changes("right += int(np.sum(logits.data.argmax(axis=1) == y))", "right += int(np.sum(logits.data.argmin(axis=1) == y))")
def evaluate__smallest():
    """Takes the smallest logit."""


@loses(2)
@changes(
    "            total += cross_entropy(logits, y).item() * len(y)",
    """
            total += cross_entropy(logits, y).item() * len(y)
            with __import__("contextlib").nullcontext():
                model.weight.data -= 0.01 * (x.T @ (logits.data - np.eye(logits.shape[1])[y]))""",
)
def evaluate__trains():
    """Takes a step on each batch."""


@loses(2)
def evaluate__leaves_gradients(model, loader):
    """Goes backward as well."""
    total, right, samples = 0.0, 0, 0
    if True:
        for x, y in loader:
            logits = model(x)
            loss = cross_entropy(logits, y)
            loss.backward()
            total += loss.item() * len(y)
            right += int(np.sum(logits.data.argmax(axis=1) == y))
            samples += len(y)
    return total / samples, right / samples


@loses(2)
def evaluate__mean_of_accuracies(model, loader):
    """The mean of the batches' means, for the accuracy alone."""
    total, right, samples = 0.0, 0.0, 0
    with no_grad():
        for x, y in loader:
            logits = model(x)
            total += cross_entropy(logits, y).item() * len(y)
            right += np.mean(logits.data.argmax(axis=1) == y)
            samples += len(y)
    return total / samples, right / len(loader)


@right
@changes(
    "    with no_grad():",
    """
    batches = list(loader)
    loader = [(np.concatenate([x for x, _ in batches]), np.concatenate([y for _, y in batches]))]
    with no_grad():""",
)
def evaluate__whole():
    """Everything at once."""


@right
def evaluate__lists(model, loader):
    """Collects, and takes means in the end."""
    losses, hits = [], []
    with no_grad():
        for x, y in loader:
            logits = model(x)
            losses += [cross_entropy(logits, y).item()] * len(y)
            hits += (logits.data.argmax(axis=1) == y).tolist()
    return float(np.mean(losses)), float(np.mean(hits))


@loses(4)
@changes("            optimizer.zero_grad()\n", "")
def train__no_zero_grad():
    """Never forgets a gradient."""


@loses(4)
@changes("            optimizer.lr = lr * (1.0 + (0.3 - 1.0) * len(losses) / last)\n", "")
def train__constant():
    """A constant learning rate."""


@loses(4)
@changes("(0.3 - 1.0) * len(losses) / last", "(0.3 - 1.0) * (len(losses) // len(loader)) / max(epochs - 1, 1)")
def train__by_epoch():
    """The rate falls by epoch."""


@loses(4)
@changes(
    "optimizer.lr = lr * (1.0 + (0.3 - 1.0) * len(losses) / last)",
    "optimizer.lr = lr * (1.0 + (0.3 - 1.0) * len(losses) / (last + 1))",
)
def train__one_step_late():
    """The last step does not reach 0.3."""


@loses(4)
@changes("optimizer.lr = lr * (1.0 + (0.3 - 1.0) * len(losses) / last)", "optimizer.lr = lr * (1.0 + (0.0 - 1.0) * len(losses) / last)")
def train__to_zero():
    """Down to nothing."""


@loses(4)
@changes("            optimizer.step()\n", "")
def train__no_step():
    """Forgets the step."""


@loses(4)
@changes("for _ in range(epochs):", "for _ in range(1):")
def train__one_epoch():
    """Goes through the data once."""


@loses(4)
@changes("losses.append(loss.item())", "losses.append(cross_entropy(model(x), y).item())")
def train__loss_after():
    """The losses after the step."""


@loses(4)
@changes("epochs * len(loader) - 1", "max(epochs * (len(loader.dataset) // loader.batch_size) - 1, 1)")
def train__rounds_down():
    """Counts whole batches only."""


@loses(4)
@changes("epochs * len(loader) - 1", "epochs * (len(loader.dataset) // loader.batch_size + 1) - 1")
def train__one_batch_more():
    """Counts a smaller batch at the end, also where there is none."""


@right
def train__by_hand(model, loader, epochs, lr):
    """Without an optimizer."""
    losses, last = [], epochs * len(loader) - 1
    for _ in range(epochs):
        for x, y in loader:
            rate = lr * (1.0 + (0.3 - 1.0) * len(losses) / last)
            for p in model.parameters():
                p.grad = None
            loss = cross_entropy(model(x), y)
            loss.backward()
            for p in model.parameters():
                p.data -= rate * p.grad
            losses.append(loss.item())
    return losses


@right
@changes(
    "    for _ in range(epochs):",
    """
    rates = lr * np.linspace(1.0, 0.3, last + 1)
    for _ in range(epochs):""",
    "optimizer.lr = lr * (1.0 + (0.3 - 1.0) * len(losses) / last)",
    "optimizer.lr = rates[len(losses)]",
)
def train__linspace():
    """All rates at once."""


@loses(4)
@changes(
    "[Linear(a, b, **drawn) for a, b in pairwise(dims)]",
    "[Linear(d, dims[dims.index(d) + 1], **drawn) for d in dims[:-1]]",
)
class MLP__index_of_a_size:
    """Looks the next width up by the width."""


@loses(4)
class MLP__tanh_by_size(Module):
    """Leaves out tanh where the width is that of the output."""

    def __init__(self, dims, random, dtype=np.float32):
        self.layers = [Linear(a, b, bias=False, random=random, dtype=dtype) for a, b in pairwise(dims)]
        self.classes = dims[-1]

    def forward(self, x):
        """Compute the logits, ``(batch, classes)``, of samples, ``(batch, inputs)``."""
        for layer in self.layers:
            x = layer(x)
            if layer.weight.shape[1] != self.classes:
                x = operations.tanh(x)
        return x


@loses(4)
@changes(
    "[Linear(a, b, **drawn) for a, b in pairwise(dims)]\n",
    "[Linear(a, b, **drawn) for a, b in pairwise(dims)]\n        for layer in self.layers:\n            layer.weight.data = random.standard_normal(layer.weight.shape).astype(dtype)\n",
)
class MLP__standard_normal:
    """Draws weights of its own."""


@loses(4)
@changes(
    "[Linear(a, b, **drawn) for a, b in pairwise(dims)]",
    '[Linear(a, b, **drawn | {"random": np.random.default_rng(0)}) for a, b in pairwise(dims)]',
)
class MLP__fixed_seed:
    """Draws each layer with the same seed."""


@loses(2)
def evaluate__divides_by_the_data_set(model, loader):
    """Divides by the number of samples in the data set."""
    total, right, samples = 0.0, 0, 0
    with no_grad():
        for x, y in loader:
            logits = model(x)
            total += cross_entropy(logits, y).item() * len(y)
            right += int(np.sum(logits.data.argmax(axis=1) == y))
            samples += len(y)
    return total / len(loader.dataset), right / len(loader.dataset)


@loses(2)
def evaluate__one_linear_layer(model, loader):
    """Knows one parameter only."""
    total, right, samples = 0.0, 0, 0
    with no_grad():
        for x, y in loader:
            logits = Tensor(x @ model.parameters()[0].data)
            total += cross_entropy(logits, y).item() * len(y)
            right += int(np.sum(logits.data.argmax(axis=1) == y))
            samples += len(y)
    return total / samples, right / samples


@loses(2)
def evaluate__own_cross_entropy(model, loader):
    """A cross-entropy that overflows."""
    total, right, samples = 0.0, 0, 0
    with no_grad():
        for x, y in loader:
            logits = model(x)
            p = np.exp(logits.data)
            total += float(-np.log(p[np.arange(len(y)), y] / p.sum(axis=1)).sum())
            right += int(np.sum(logits.data.argmax(axis=1) == y))
            samples += len(y)
    return total / samples, right / samples


@loses(4)
@changes(
    "    for _ in range(epochs):\n        for x, y in loader:",
    "    batches = list(loader)\n    for _ in range(epochs):\n        for x, y in batches:",
)
def train__batches_once():
    """Takes all epochs in the first one's order."""


@loses(4)
@changes(
    "            optimizer.zero_grad()\n",
    "",
    "            optimizer.step()\n",
    "            for p in model.parameters():\n                p.data -= optimizer.lr * p.grad\n            p.grad = None\n",
)
def train__last_parameter_reset_only():
    """Resets one gradient only."""


@loses(4)
@changes(
    "SGD(model.parameters(), lr)",
    "SGD([p for p in model.parameters() if p.data.ndim > 1], lr)",
)
def train__weights_only():
    """Updates weights, and no bias."""


@loses(4)
@changes(
    "epochs * len(loader) - 1",
    "epochs * -(-len(loader.dataset) // loader.batch_size) - 1",
)
def train__rounds_up():
    """Counts a last batch that is dropped."""
