"""Check of part 12's perceptron against the same mathematics in NumPy.

`run_mlp` and `call_train_or_evaluate` run on the rank, `PerceptronCheck` in the notebook's kernel.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from course_lib.autograd import ArrayDataset, DataLoader, Linear, cross_entropy
from course_lib.check import Check
from course_lib.engine.namespace import student


def run_mlp(dims, weights, x, y, seed):
    """Run `MLP` on the rank: shapes it draws, logits and gradients for given weights, and whether its weights are those of `Linear`."""
    MLP, random, again = student("MLP"), *(np.random.default_rng(seed) for _ in range(2))
    for _ in range(2):  # the second model gets other weights from the same generator
        model = MLP(tuple(dims), random, x.dtype)
        drawn = [p.data.copy() for p in model.parameters()]
        linear = [Linear(*w.shape, bias=False, random=again, dtype=x.dtype).weight.data for w in weights]
    same = all(np.array_equal(a, b) and a.dtype == x.dtype for a, b in zip(drawn, linear, strict=False))
    if [w.shape for w in drawn] != [w.shape for w in weights]:
        return [w.shape for w in drawn], None, None, same  # the check reports it
    for p, w in zip(model.parameters(), weights, strict=True):
        p.data = w.copy()
    model(x[::-1])
    logits = model(x)
    cross_entropy(logits, y).backward()
    return [w.shape for w in drawn], logits.data, [p.grad for p in model.parameters()], same


def call_train_or_evaluate(w, x, y, batch, epochs=0, lr=0.0, more=None):
    """Run `train` on the rank (`evaluate` if there are no epochs) for one layer: its result, the weight, and whether grad is left alone.

    The last row of the weight is the layer's bias (x ends in a one). Both have gradients from before; `more` are arguments of the loader.
    """
    model, loader = Linear(len(w) - 1, w.shape[1], dtype=w.dtype), DataLoader(ArrayDataset(x[:, :-1], y), batch, **(more or {}))
    model.weight.data, model.bias.data = w[:-1].copy(), w[-1].copy()
    before = [np.ones_like(p.data) for p in model.parameters()]
    for p, grad in zip(model.parameters(), before, strict=True):
        p.grad = grad.copy()
    answer = student("train")(model, loader, epochs, lr) if epochs else student("evaluate")(model, loader)
    same = all(p.grad is not None and np.array_equal(p.grad, g) for p, g in zip(model.parameters(), before, strict=True))
    return answer, np.vstack([model.weight.data, model.bias.data]), same


def softmax_loss(logits: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cross-entropy of each sample, and the gradient of its mean."""
    logits = logits - logits.max(axis=1, keepdims=True)
    total = np.exp(logits).sum(axis=1, keepdims=True)
    soft = np.exp(logits) / total
    return np.log(total[:, 0]) - logits[np.arange(len(y)), y], (soft - np.eye(logits.shape[1])[y]) / len(y)


class PerceptronCheck(Check):
    """A `Check` of the perceptron, its evaluation and its training, on the one rank of `ranks`."""

    def __init__(self, what: str, ranks, *, show: bool = True):
        super().__init__(what, show=show)
        self.ranks = ranks

    def mlp(self, dims: Sequence[int], batch: int, dtype: type = np.float64) -> None:
        """Check forward and backward of `MLP` with drawn weights."""
        seed = int(self.random.integers(2**31))
        normal, self.case = self.random.standard_normal, f"dims {tuple(dims)}, a batch of {batch}, {np.dtype(dtype)}"
        weights = [(normal(dims[i : i + 2]) / np.sqrt(dims[i])).astype(dtype) for i in range(len(dims) - 1)]
        x, y, rtol = normal((batch, dims[0])).astype(dtype), self.random.integers(0, dims[-1], batch), float(8192 * np.finfo(dtype).eps)
        given = dict(dims=list(dims), weights=weights, x=x, y=y, seed=seed)
        shapes, logits, grads, same = self.ranks.call(run_mlp, given, show=self.show)[0]
        if [tuple(s) for s in shapes] != [w.shape for w in weights]:
            cause = "biases, one layer too many, or layers that are not in a list"
            self.fail(f"parameters of shapes {shapes} were drawn, expected {[w.shape for w in weights]}", cause)
        if not same:
            cause = "random= or dtype= not passed on to Linear"
            self.fail("the weights are not those that Linear draws with this generator and dtype, layer by layer", cause)
        outputs, linear = [x], x
        for i, w in enumerate(weights):
            outputs.append(outputs[-1] @ w if i == len(weights) - 1 else np.tanh(outputs[-1] @ w))
            linear = linear @ w
        cause = "one tanh too many (after the last layer) or too few"
        known = {"the result with one more tanh after the last layer": np.tanh(outputs[-1]), "the result without any tanh": linear}
        self.array(logits, outputs[-1], name="the logits", rank=0, rtol=rtol, cause=cause, instead=known)
        grad = softmax_loss(logits, y)[1].astype(dtype)
        for i in reversed(range(len(weights))):
            self.array(grads[i], outputs[i].T @ grad, name=f"the gradient of layer {i}", rank=0, rtol=rtol, scale=1.0)
            grad = grad @ weights[i].T * (1 - outputs[i] ** 2)
        self.covers("dtypes", "sizes", "repetition", "results")

    def evaluate(self, samples: int, batch: int, factor: float = 1.0, drop_last: bool = False) -> None:
        """Check the loss and the accuracy that `evaluate` returns, for logits that are larger by a factor."""
        (w, x, y), self.case = self._problem(samples), f"{samples} samples in batches of {batch}, drop_last={drop_last}"
        w, more = factor * w, dict(drop_last=drop_last)
        answer, after, clean = self.ranks.call(call_train_or_evaluate, dict(w=w, x=x, y=y, batch=batch, more=more), show=self.show)[0]
        samples -= samples % batch * drop_last
        x, y = x[:samples], y[:samples]
        logits = x @ w
        loss, accuracy = self.tuple(answer, 2, name="evaluate", rank=0)
        each, right = softmax_loss(logits, y)[0], logits.argmax(axis=1) == y
        for name, got, values in (("the loss", loss, each), ("the accuracy", accuracy, right.astype(float))):
            parts = [values[start : start + batch] for start in range(0, samples, batch)]
            known = {
                "the mean of the batches' means, although the last batch is smaller": [np.mean([part.mean() for part in parts])],
                "the sum over all samples, not the mean": [values.sum()],
                "the sum of the batches' means": [np.sum([part.mean() for part in parts])],
                "the sum over all samples, divided by the number of batches": [values.sum() / len(parts)],
                "the value of the last batch": [parts[-1].mean()],
                "the value of the first batch": [parts[0].mean()],
            }
            cause = "argmax without axis=1" if name == "the accuracy" else "a mean of means, or a sum"
            self.numbers(got, [values.mean()], name=name, rank=0, rtol=1e-12, cause=cause, instead=known)
        if not clean or not np.array_equal(after, w):
            self.fail("evaluate changes the gradients or the weights", "a missing no_grad, or a training step")
        self.covers("sizes", "repetition", "arguments")

    def train(self, samples: int, batch: int, epochs: int, lr: float, **more) -> None:
        """Check the losses that `train` returns, and the weight after training."""
        (w, x, y), self.case = self._problem(samples), f"{samples} samples in batches of {batch}, {epochs} epochs, lr {lr}"
        self.case += "".join(f", {name}={value}" for name, value in more.items())
        given = dict(w=w, x=x, y=y, batch=batch, epochs=epochs, lr=lr, more=more)
        losses, after, _ = self.ranks.call(call_train_or_evaluate, given, show=self.show)[0]
        steps, cause = (
            epochs * (samples // batch if more.get("drop_last") else -(-samples // batch)),
            "gradients not reset before backward, gradients reset before the step, or a wrong learning rate",
        )
        loader = DataLoader(ArrayDataset(np.arange(samples), np.arange(samples)), batch, **more)
        rows = [each for _ in range(epochs) for each, _ in loader]

        def losses_with(rate, keep=0.0):
            """Losses and final weight for the learning rate `rate(step)`, if each step keeps the fraction `keep` of the old gradient."""
            weight, total, found = w, 0.0, []
            for step, batch_rows in enumerate(rows):
                each, grad = softmax_loss(x[batch_rows] @ weight, y[batch_rows])
                found.append(each.mean())
                total = keep * total + x[batch_rows].T @ grad
                weight = weight - rate(step) * total
            return found, weight

        def right(step):
            return lr * (1 - 0.7 * step / (steps - 1))

        known = {
            "the result of a rate that falls with step / steps; the last of n steps is number n - 1": losses_with(
                lambda s: lr * (1 - 0.7 * s / steps)
            ),
            "the result of a rate that is one step ahead": losses_with(lambda s: lr * (1 - 0.7 * (s + 1) / steps)),
            "the result of a rate that restarts in each epoch": losses_with(
                lambda s: lr * (1 - 0.7 * (s % (steps // epochs)) / max(steps // epochs - 1, 1))
            ),
            "the result of a rate that is computed from the previous step's rate, not from lr": losses_with(
                lambda s: lr * np.prod([right(k) / lr for k in range(s + 1)])
            ),
            "the result of a constant rate": losses_with(lambda s: lr),
            "the result of a rate that falls to 0.7 of lr, or to 0": losses_with(lambda s: lr * (1 - s / (steps - 1))),
            "the result of gradients that are never reset": losses_with(right, 1.0),
        }
        want, last = losses_with(right)
        if not isinstance(losses, list):
            self.fail(f"train must return a list; got {type(losses).__name__}")
        if len(losses) != steps:
            more, less = "a list kept from the previous call, or two losses per step", "a return inside the loop, or a skipped step"
            cause = more if len(losses) > steps else less
            self.fail(f"the list of losses has {len(losses)} numbers, expected one for each of {steps} steps", cause)
        lists = {what: np.array(numbers) for what, (numbers, _) in known.items()}
        self.numbers(losses, want, name="the list of losses", rank=0, cause=cause, instead=lists)
        weights = {what: weight for what, (_, weight) in known.items()}
        self.array(after, last, name="the weight after training", rank=0, rtol=1e-9, cause=cause, instead=weights)
        self.covers("sizes", "repetition")

    def _problem(self, samples: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Draw a weight, samples and labels; most samples are classified correctly, so that no wrong accuracy matches by chance."""
        w, x = self.random.standard_normal((5, 4)), self.random.standard_normal((samples, 5))
        x[:, -1] = 1.0
        return w, x, np.where(self.random.random(samples) < 0.5, (x @ w).argmax(axis=1), self.random.integers(0, 4, samples))
