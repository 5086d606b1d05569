"""Train the perceptron on any grid of ranks, with the student's communication functions.

From a shell: ``mpiexec -n 4 python -m course_lib.training --mp-size 2 --dp-size 2 --megatron-mp``
(see `__main__`). From a notebook: make a `TrainingRun` on each rank, and call its `steps`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from course_lib import datasets, memory, students, traffic, zero
from course_lib.layers import MLP, check_dims
from course_lib.training.data import read_shared

MAX_TRAINING_RANKS = 8


class TrainingConfigError(ValueError):
    """The settings are inconsistent, or do not fit the data; the message says which."""


@dataclass(frozen=True)
class Config:
    """Model, grid and training settings.

    Parameters
    ----------
    mp_size, dp_size : int
        Number of ranks in a model parallel and in a data parallel group.
    megatron : bool
        Megatron-style model parallelism instead of naive.
    data : str
        "digits", "mnist" or "fashion-mnist".
    epochs : int
    batch_size : int
        Samples per step, over all ranks.
    lr : float, optional
        Learning rate; by default 0.15 for plain gradient descent, and 0.003 for Adam.
    hidden : int
        Hidden units.
    seed : int
        Seed of the weights and of the order of the samples.
    optimizer : str
        "sgd", plain gradient descent; or "adam", the student's optimizer, for mp_size 1.
    zero : int
        The stage of ZeRO, 0 to 3; stages 1 to 3 need Adam.
    dtype : str
        "float32", or "float64" to study rounding.

    Raises
    ------
    TrainingConfigError
        The sizes are inconsistent; the message says which.
    """

    mp_size: int = 1
    dp_size: int = 1
    megatron: bool = False
    data: str = "digits"
    epochs: int = 1
    batch_size: int = 24
    lr: float | None = None
    hidden: int = 256
    seed: int = 0
    optimizer: str = "sgd"
    zero: int = 0
    dtype: str = "float32"

    def __post_init__(self):
        if self.lr is None:
            object.__setattr__(self, "lr", {"sgd": 0.15, "adam": 0.003}.get(self.optimizer, 0.0))
        if self.optimizer not in ("sgd", "adam"):
            raise TrainingConfigError(f"optimizer must be sgd or adam; got {self.optimizer!r}.")
        if self.zero not in zero.STAGES:
            raise TrainingConfigError(f"zero, the stage of ZeRO, must be 0 to 3; got {self.zero}.")
        if self.zero and self.optimizer != "adam":
            raise TrainingConfigError(
                f"ZeRO stage {self.zero} shards Adam's state, but plain gradient descent has none: choose the optimizer adam."
            )
        if self.optimizer == "adam" and self.mp_size > 1:
            what = f"ZeRO stage {self.zero} is" if self.zero else "Adam and the stages of ZeRO are"
            raise TrainingConfigError(f"{what} for data parallel training, with mp_size 1; got mp_size={self.mp_size}.")
        for name in ("mp_size", "dp_size", "epochs", "batch_size", "hidden"):
            if getattr(self, name) < 1:
                raise TrainingConfigError(f"{name} must be at least 1; got {getattr(self, name)}.")
        if not self.lr > 0:
            raise TrainingConfigError(f"lr must be positive; got {self.lr}.")
        if self.mp_size * self.dp_size > MAX_TRAINING_RANKS:
            raise TrainingConfigError(
                f"mp_size={self.mp_size} and dp_size={self.dp_size} need {self.ranks} ranks; this part uses at most {MAX_TRAINING_RANKS}."
            )
        if self.batch_size % self.dp_size:
            raise TrainingConfigError(
                f"dp_size={self.dp_size} does not divide the batch of {self.batch_size} samples: every rank takes the same number."
            )
        try:
            check_dims((1, self.hidden, 10), self.mp_size, self.megatron)
        except ValueError as error:
            raise TrainingConfigError(error) from None

    @property
    def ranks(self) -> int:
        """Number of ranks of the grid."""
        return self.mp_size * self.dp_size

    @property
    def name(self) -> str:
        """Name in figures, such as "Megatron mp 2, dp 4"."""
        style = "" if self.mp_size == 1 else "Megatron " if self.megatron else "naive "
        stage = f", ZeRO stage {self.zero}" if self.optimizer == "adam" else ""
        return f"{style}mp {self.mp_size}, dp {self.dp_size}{stage}"


def batch_order(n: int, batch_size: int, dp_size: int, random: np.random.Generator) -> np.ndarray:
    """Order n samples so that every grid trains on the same batches.

    Rank d of a data parallel group gets the d-th of `dp_size` equal slices (part 01) and cuts it into batches. So the slices are
    filled such that the ranks' t-th batches together are the t-th global batch; samples that do not fill a batch are left out.

    Returns
    -------
    numpy.ndarray
        int64, shape ``(n // batch_size * batch_size,)``: indices of the samples.

    Raises
    ------
    TrainingConfigError
        There are fewer samples than one batch.

    Examples
    --------
    >>> one, two = (batch_order(9, 4, d, np.random.default_rng(0)) for d in (1, 2))
    >>> sorted(one[:4].tolist()) == sorted([*two[:2].tolist(), *two[4:6].tolist()])
    True
    """
    steps = n // batch_size
    if not steps:
        raise TrainingConfigError(f"a batch of {batch_size} is larger than the data set, which has {n} samples.")
    order = random.permutation(n)[: steps * batch_size]
    return np.ascontiguousarray(order.reshape(steps, dp_size, -1).swapaxes(0, 1)).ravel()


class TrainingRun:
    """One rank's part of a training run.

    Parameters
    ----------
    config : Config
    functions : object
        The student's functions, see `course_lib.students`; not used on a single rank.
    comm : Communicator
        The ``mp_size * dp_size`` ranks of the grid.

    Attributes
    ----------
    total : int
        Number of steps in all epochs together.
    model : MLP or zero.ZeroModel
    """

    def __init__(self, config: Config, functions: object, comm):
        if comm.Get_size() != config.ranks:
            raise ValueError(
                f"mp_size={config.mp_size} and dp_size={config.dp_size} need {config.ranks} ranks; there are {comm.Get_size()}."
            )
        self.config, self.functions, self.comm = config, functions, comm
        memory.reuse_freed()
        data = read_shared(config.data, comm)
        random = np.random.default_rng(config.seed + 1)
        order = batch_order(len(data.x_train), config.batch_size, config.dp_size, random)
        mine, labels = order, data.y_train[order]
        if config.ranks > 1:
            split_data = students.get(functions, "split_data")
            mine, labels = split_data(order, labels, config.mp_size, config.dp_size, comm.Get_rank())
        self.x, self.y = data.x_train[mine], labels  # pixels; each batch is scaled when it is used
        self.x_test, self.y_test = data.x_test, data.y_test
        self.dims = data.x_train.shape[1], config.hidden, 10
        self.model = self._new_model()
        self._each = config.batch_size // config.dp_size
        batches = len(order) // config.batch_size
        self._batches = np.concatenate([np.arange(batches), *(random.permutation(batches) for _ in range(config.epochs - 1))])
        self.total, self._done, self._moved = len(self._batches), 0, {}

    def _new_model(self) -> MLP | zero.ZeroModel:
        c = self.config
        if c.optimizer == "adam":
            return zero.ZeroModel(self.dims, self.comm, c.zero, self.functions, c.lr, c.seed, c.dtype)
        return MLP(self.dims, self.comm, self.functions, c.mp_size, c.dp_size, c.megatron, c.seed, c.dtype)

    def steps(self, count: int) -> list[float]:
        """Train for `count` more steps, or as many as are left; collective.

        Returns
        -------
        list of float
            The mean loss over the whole batch before each step, the same on all ranks.
        """
        chosen = self._batches[self._done : self._done + count].tolist()
        losses, step, lr, each = [], self.model.step, self.config.lr, self._each
        traffic.reset()
        for batch in chosen:
            rows = slice(batch * each, (batch + 1) * each)
            losses.append(step(self._numbers(self.x[rows]), self.y[rows], lr))
        for e in traffic.entries():  # before the losses are exchanged, which is not part of the model
            calls, payload = self._moved.get((e.operation, e.ranks), (0, 0))
            self._moved[e.operation, e.ranks] = calls + e.calls, payload + e.payload
        self._done += len(chosen)
        return (_sum_over_ranks(self.model.dp_comm, losses) / self.config.dp_size).tolist() if self.config.dp_size > 1 else losses

    def _numbers(self, pixels: np.ndarray) -> np.ndarray:
        """Convert images to the model's input."""
        return datasets.scaled(pixels).astype(self.config.dtype, copy=False)

    def moved(self) -> list[tuple]:
        """Messages of this rank per step: (operation, ranks, calls, payload in bytes), as counted by `traffic`."""
        done = max(self._done, 1)
        return [(name, list(ranks), calls / done, payload / done) for (name, ranks), (calls, payload) in self._moved.items()]

    def accuracy(self) -> float:
        """Fraction of the test images classified correctly; collective. Each copy of the model evaluates its share."""
        copy, copies = (self.model.dp_comm.Get_rank(), self.config.dp_size) if self.config.dp_size > 1 else (0, 1)
        x, y, right = self.x_test[copy::copies], self.y_test[copy::copies], 0
        for start in range(0, len(x), 1000):
            logits = self.model.forward(self._numbers(np.ascontiguousarray(x[start : start + 1000])))
            right += int(np.sum(logits.argmax(axis=1) == y[start : start + 1000]))
        if copies > 1:
            right = _sum_over_ranks(self.model.dp_comm, [right])[0]
        return float(right) / len(self.y_test)

    def memory(self, turns: int = 3) -> dict[str, int]:
        """Peak memory of a rank by kind, in bytes, in two steps of a new model; collective.

        Parameters
        ----------
        turns : int
            Number of measurements; tracemalloc also counts occasional allocations of caches and other threads, so the smallest is used.

        Returns
        -------
        dict of str to int
            The kinds of `course_lib.memory`, and under "true peak" the peak seen by tracemalloc.
        """
        batch = self._numbers(self.x[: self._each]), self.y[: self._each]
        accounts = [memory.account_of_steps(self._new_model, *batch, self.config.lr) for _ in range(turns)]
        return accounts[-1].peak | {"true peak": min(held.true_peak for held in accounts)}


def _sum_over_ranks(comm, values: list[float]) -> np.ndarray:
    total = np.empty(len(values))
    comm.Allreduce(np.array(values, float), total)
    return total
