"""Two-layer perceptron of the course, on one rank or with sharded weights.

Forward and backward are written out explicitly, and short enough to read in one sitting:

    x (batch, in_dim) → fc1 → ReLU → fc2 → logits (batch, 10) → softmax cross-entropy, mean over the batch

A fully connected layer comes in three shardings: replicated (`ReplicatedLinear`), naive (`NaiveLinear`), and Megatron's pair
(`ColumnParallelLinear`, `RowParallelLinear`; Shoeybi et al., 2019, "Megatron-LM", section 3). The student writes their
communication: the layers take an object that has the functions of parts 03 to 07 as attributes (see `functions`).
"""

from __future__ import annotations

import numpy as np

from course_lib import students
from course_lib.memory import track


class ReplicatedLinear:
    """Fully connected layer ``x @ w + b``, whole on every rank.

    Parameters
    ----------
    w, b : numpy.ndarray
        The weight, shape ``(in_dim, out_dim)``, and the bias, ``(out_dim,)``.
    grad_w, grad_b : numpy.ndarray
        Of the same shapes; `backward` writes the gradients to them.
    """

    def __init__(self, w: np.ndarray, b: np.ndarray, grad_w: np.ndarray, grad_b: np.ndarray):
        self.w, self.b, self.grad_w, self.grad_b = w, b, grad_w, grad_b

    def forward(self, x: np.ndarray) -> np.ndarray:
        """Output of the layer, ``(batch, out_dim)``, for its input, ``(batch, in_dim)``."""
        self.x = x
        out = track("activations", x @ self.w)
        out += self.b
        return out

    def backward(self, grad: np.ndarray, need_grad_x: bool = True) -> np.ndarray | None:
        """Gradient of the input, ``(batch, in_dim)``, from that of the output; fills grad_w and grad_b."""
        np.matmul(self.x.T, grad, out=self.grad_w)
        np.sum(grad, axis=0, out=self.grad_b)
        self.x = None  # the activation is no longer needed
        return track("activations", grad @ self.w.T) if need_grad_x else None


class ColumnParallelLinear(ReplicatedLinear):
    """First layer in both styles: a rank holds ``out_dim / mp_size`` columns of the weight.

    Every rank has the whole input and keeps its part of the output, so nothing is communicated. As it is the first layer, the
    gradient of its input is not needed.
    """


class NaiveLinear(ReplicatedLinear):
    """Second layer in naive style: columns again, so input and output have to be gathered.

    Parameters
    ----------
    functions : object
        The student's functions, see `course_lib.students`.
    mp_comm : Communicator
        This rank's model parallel group.
    """

    def __init__(self, w, b, grad_w, grad_b, functions: object, mp_comm):
        super().__init__(w, b, grad_w, grad_b)
        self.group = mp_comm, mp_comm.Get_size()
        self.collect_input = students.get(functions, "naive_collect_forward_input")
        self.collect_output = students.get(functions, "naive_collect_forward_output")
        self.collect_grad_output = students.get(functions, "naive_collect_backward_output")
        self.collect_grad_x = students.get(functions, "naive_collect_backward_x")

    def forward(self, x: np.ndarray) -> np.ndarray:
        """Whole output, ``(batch, out_dim)``, from this rank's part of the input, ``(batch, in_dim / mp_size)``."""
        whole = track("activations", self.collect_input(x, *self.group))
        return track("activations", self.collect_output(super().forward(whole), *self.group))

    def backward(self, grad: np.ndarray) -> np.ndarray:
        """This rank's part of the input's gradient, ``(batch, in_dim / mp_size)``, from the whole gradient of the output."""
        comm, mp_size = self.group
        part = track("activations", self.collect_grad_output(grad, comm.Get_rank(), mp_size))
        grad_x = super().backward(part)
        return track("activations", self.collect_grad_x(grad_x, comm, mp_size))


class RowParallelLinear(ReplicatedLinear):
    """Second layer in Megatron style: a rank holds ``in_dim / mp_size`` rows of the weight.

    Its input is already split like its rows. Each rank's product is one summand of the output; the bias is added once, to the
    sum.

    Parameters
    ----------
    functions, mp_comm : object, Communicator
        As for `NaiveLinear`.
    """

    def __init__(self, w, b, grad_w, grad_b, functions: object, mp_comm):
        super().__init__(w, b, grad_w, grad_b)
        self.group = mp_comm, mp_comm.Get_size()
        self.collect_input = students.get(functions, "megatron_collect_forward_input")
        self.collect_output = students.get(functions, "megatron_collect_forward_output")
        self.collect_grad_output = students.get(functions, "megatron_collect_backward_output")
        self.collect_grad_x = students.get(functions, "megatron_collect_backward_x")

    def forward(self, x: np.ndarray) -> np.ndarray:
        """Whole output, ``(batch, out_dim)``, from this rank's part of the input, ``(batch, in_dim / mp_size)``."""
        self.x = self.collect_input(x, *self.group)
        summand = track("activations", self.x @ self.w)
        out = track("activations", self.collect_output(summand, *self.group))
        out += self.b
        return out

    def backward(self, grad: np.ndarray) -> np.ndarray:
        """This rank's part of the input's gradient, ``(batch, in_dim / mp_size)``, from the whole gradient of the output."""
        comm, mp_size = self.group
        grad_x = super().backward(self.collect_grad_output(grad, comm.Get_rank(), mp_size))
        return self.collect_grad_x(grad_x, comm, mp_size)


def softmax_cross_entropy(logits: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray]:
    """Mean loss over the batch, and its gradient.

    Parameters
    ----------
    logits : numpy.ndarray
        ``(batch, classes)``.
    labels : numpy.ndarray
        int, ``(batch,)``.

    Returns
    -------
    loss : float
    grad : numpy.ndarray
        Gradient of the mean loss with respect to the logits, same shape and dtype.
    """
    rows = np.arange(len(labels))
    shifted = logits - logits.max(axis=1, keepdims=True)  # avoids overflow in exp
    exp = np.exp(shifted)
    total = exp.sum(axis=1, keepdims=True)
    loss = float(np.mean(np.log(total[:, 0]) - shifted[rows, labels]))
    grad = track("activations", exp)
    grad /= total
    grad[rows, labels] -= 1
    grad /= len(labels)
    return loss, grad


class MLP:
    """Two-layer perceptron: fc1, ReLU and fc2, with the weights of this rank's place in the grid.

    Parameters
    ----------
    dims : (int, int, int)
        Inputs, hidden units and classes, such as ``(784, 256, 10)``.
    comm : Communicator
        All ``mp_size * dp_size`` ranks.
    functions : object
        The student's functions; not used on a single rank.
    mp_size, dp_size : int
        The grid, numbered row by row.
    megatron : bool
        Megatron style instead of naive.
    seed : int
        Seed of the whole weights, which are the same in every grid; a rank keeps its part.
    dtype : data type
        float32, or float64 to study rounding.

    Raises
    ------
    ValueError
        `mp_size` does not divide a dimension that it must divide.
    MissingFunction
        A function is missing.
    """

    def __init__(self, dims, comm, functions, mp_size=1, dp_size=1, megatron=False, seed=0, dtype=np.float32):
        check_dims(dims, mp_size, megatron)
        self.dims = dims
        self.mp_size, self.dp_size = mp_size, dp_size
        self.mp_idx, self.mp_comm, self.dp_comm = 0, None, None
        shapes = [(dims[0], dims[1]), (dims[1], dims[2])]
        if mp_size * dp_size > 1:
            get_info = students.get(functions, "get_info")
            for i, (fan_in, fan_out) in enumerate(shapes):
                place = get_info(comm, comm.Get_rank(), mp_size, dp_size, i == 0, megatron, fan_in, fan_out)
                self.mp_idx, _, self.mp_comm, self.dp_comm, *shapes[i] = place
                check_part(shapes[i], (fan_in, fan_out), mp_size, f"fc{i + 1}")
        self.collect_weight_grad = students.get(functions, "collect_weight_grad") if dp_size > 1 else None

        # All weights are in one flat array, and all biases in another, and so are their gradients: a single update, and one
        # exchange each, for the whole model.
        sizes = [int(np.prod(shape)) for shape in shapes]
        self.weights, self.grad_weights = np.empty(sum(sizes), dtype), np.empty(sum(sizes), dtype)
        widths = [shape[1] for shape in shapes]
        self.biases, self.grad_biases = np.zeros(sum(widths), dtype), np.empty(sum(widths), dtype)
        for kind, arrays in (("parameters", (self.weights, self.biases)), ("gradients", (self.grad_weights, self.grad_biases))):
            for array in arrays:
                track(kind, array)
        places = (slice(sizes[0]), slice(widths[0])), (slice(sizes[0], None), slice(widths[0], None))
        parts = []
        for shape, (matrix, row) in zip(shapes, places, strict=True):
            w, grad_w = self.weights[matrix].reshape(shape), self.grad_weights[matrix].reshape(shape)
            parts.append((w, self.biases[row], grad_w, self.grad_biases[row]))
        self._draw([p[0] for p in parts], seed)
        if mp_size == 1:
            self.fc1, self.fc2 = ReplicatedLinear(*parts[0]), ReplicatedLinear(*parts[1])
        else:
            second = RowParallelLinear if megatron else NaiveLinear
            self.fc1, self.fc2 = ColumnParallelLinear(*parts[0]), second(*parts[1], functions, self.mp_comm)

    def _draw(self, weights: list[np.ndarray], seed: int) -> None:
        """Draw the whole weights (He et al., 2015, section 2.2), and keep this rank's part."""
        random = np.random.default_rng(seed)
        for fc, w in enumerate(weights):
            fan_in, fan_out = self.dims[fc], self.dims[fc + 1]
            rows, columns = w.shape
            start = self.mp_idx * rows if rows < fan_in else 0, self.mp_idx * columns if columns < fan_out else 0
            scale = np.sqrt(2 / fan_in)
            for row in range(fan_in):  # row by row, so that a rank never holds the whole weight
                values = random.standard_normal(fan_out) * scale
                if start[0] <= row < start[0] + rows:
                    w[row - start[0]] = values[start[1] : start[1] + columns]

    def forward(self, x: np.ndarray) -> np.ndarray:
        """Logits, ``(batch, classes)``, the same on all ranks of the model parallel group."""
        self.hidden = self.fc1.forward(x)
        np.maximum(self.hidden, 0, out=self.hidden)
        return self.fc2.forward(self.hidden)

    def backward(self, grad: np.ndarray) -> None:
        """Compute the gradients from that of the logits, and average them over the data parallel group."""
        grad_hidden = self.fc2.backward(grad)
        grad_hidden *= np.sign(self.hidden, out=self.hidden)  # ReLU passes the gradient where its input was positive
        self.fc1.backward(grad_hidden, need_grad_x=False)
        if self.dp_size > 1:
            averaged = self.collect_weight_grad(self.grad_weights, self.grad_biases, self.dp_comm)
            self.mean_weights, self.mean_biases = (track("communication buffers", g) for g in averaged)
        else:
            self.mean_weights, self.mean_biases = self.grad_weights, self.grad_biases

    def update(self, lr: float) -> None:
        """Take one step of plain gradient descent, in place."""
        for values, grad in ((self.weights, self.mean_weights), (self.biases, self.mean_biases)):
            np.multiply(grad, grad.dtype.type(lr), out=grad)
            values -= grad
        self.mean_weights = self.mean_biases = None

    def step(self, x: np.ndarray, labels: np.ndarray, lr: float) -> float:
        """Take a training step; return the mean loss over this rank's part of the batch, before it."""
        loss, grad = softmax_cross_entropy(self.forward(x), labels)
        self.backward(grad)
        self.update(lr)
        return loss


def check_dims(dims: tuple[int, int, int], mp_size: int, megatron: bool) -> None:
    """Raise ValueError unless layers of these sizes can be split over `mp_size` ranks."""
    shared = [("hidden units", dims[1])] + ([] if megatron else [("classes (naive style splits the output, too)", dims[2])])
    for what, size in shared:
        if size % mp_size:
            raise ValueError(
                f"mp_size={mp_size} does not divide the {size} {what}: each rank of a model parallel group holds an equal part."
            )


def check_part(part: list[int], whole: tuple[int, int], mp_size: int, name: str) -> None:
    """Raise ValueError unless `mp_size` parts of this shape make up the weight."""
    if part[0] * part[1] * mp_size != whole[0] * whole[1]:
        raise ValueError(
            f"get_info gives each of {mp_size} ranks a part of shape {tuple(part)} of {name}, whose weight has shape {whole}: "
            "the parts do not make up the weight. Look at part 02 again."
        )
