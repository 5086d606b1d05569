"""Answers to part 09: wrong ones with the points that each must lose, and other right ones.

Each changes `step` of the solution, which the ranks have from before.
"""

from grading.authoring.answers import loses, right


@loses(7)
class ZeroDPAdam__no_correction(ZeroDPAdam):
    """Forgets the bias correction."""

    def step(self):
        for i, layer in enumerate(self.layers):
            for name in "wb":
                s, g = self.state[i, name], getattr(layer, f"grad_{name}_shard")
                s["m"] = self.beta1 * s["m"] + (1 - self.beta1) * g
                s["v"] = self.beta2 * s["v"] + (1 - self.beta2) * g * g
                setattr(layer, f"{name}_shard", getattr(layer, f"{name}_shard") - self.lr * s["m"] / (np.sqrt(s["v"]) + self.eps))


@loses(10)
class ZeroDPAdam__counts_from_zero(ZeroDPAdam):
    """Counts the step at the end, so the first one divides by zero."""

    def step(self):
        self.t -= 1
        with np.errstate(all="ignore"):
            super().step()
        self.t += 1


@loses(7)
class ZeroDPAdam__counts_layers(ZeroDPAdam):
    """Counts a step for each layer."""

    def step(self):
        layers, state = self.layers, self.state
        for i, layer in enumerate(layers):
            self.layers, self.state = [layer], {(0, n): state[i, n] for n in "wb"}
            super().step()
        self.layers, self.state = layers, state


@loses(10)
class ZeroDPAdam__sgd(ZeroDPAdam):
    """Plain gradient descent."""

    def step(self):
        for layer in self.layers:
            layer.w_shard -= self.lr * layer.grad_w_shard
            layer.b_shard -= self.lr * layer.grad_b_shard


@loses(7)
class ZeroDPAdam__weights_only(ZeroDPAdam):
    """Forgets the biases."""

    def step(self):
        before = [layer.b_shard.copy() for layer in self.layers]
        super().step()
        for layer, b in zip(self.layers, before, strict=True):
            layer.b_shard = b


@loses(7)
class ZeroDPAdam__eps_inside(ZeroDPAdam):
    """Adds eps under the root."""

    def step(self):
        self.t += 1
        for i, layer in enumerate(self.layers):
            for name in "wb":
                s, g = self.state[i, name], getattr(layer, f"grad_{name}_shard")
                s["m"] = self.beta1 * s["m"] + (1 - self.beta1) * g
                s["v"] = self.beta2 * s["v"] + (1 - self.beta2) * g * g
                m, v = s["m"] / (1 - self.beta1**self.t), s["v"] / (1 - self.beta2**self.t)
                setattr(layer, f"{name}_shard", getattr(layer, f"{name}_shard") - self.lr * m / np.sqrt(v + self.eps))


@loses(7)
class ZeroDPAdam__float64(ZeroDPAdam):
    """Computes, and keeps, everything in float64."""

    def step(self):
        for layer in self.layers:
            layer.w_shard, layer.b_shard = layer.w_shard.astype(float), layer.b_shard.astype(float)
        super().step()


@loses(7)
class ZeroDPAdam__clears_the_gradient(ZeroDPAdam):
    """Sets the gradients to zero."""

    def step(self):
        super().step()
        for layer in self.layers:
            layer.grad_w_shard[:] = 0
            layer.grad_b_shard[:] = 0


@loses(10)
class ZeroDPAdam__nothing(ZeroDPAdam):
    """Updates nothing."""

    def step(self):
        self.t += 1


@loses(10)
class ZeroDPAdam__up_the_hill(ZeroDPAdam):
    """Adds instead of subtracting."""

    def step(self):
        self.lr = -abs(self.lr)
        super().step()


@right
class ZeroDPAdam__fresh_arrays(ZeroDPAdam):
    """New arrays in each step, as the formula reads."""

    def step(self):
        self.t += 1
        for (i, name), s in self.state.items():
            layer, g = self.layers[i], getattr(self.layers[i], f"grad_{name}_shard")
            s["m"] = self.beta1 * s["m"] + (1 - self.beta1) * g
            s["v"] = self.beta2 * s["v"] + (1 - self.beta2) * g * g
            m, v = s["m"] / (1 - self.beta1**self.t), s["v"] / (1 - self.beta2**self.t)
            setattr(layer, f"{name}_shard", getattr(layer, f"{name}_shard") - self.lr * m / (np.sqrt(v) + self.eps))


@right
class ZeroDPAdam__folded_rate(ZeroDPAdam):
    """The corrections folded into the learning rate, as section 2 of the paper suggests."""

    def step(self):
        self.t += 1
        root = np.sqrt(1 - self.beta2**self.t)
        rate = self.lr * root / (1 - self.beta1**self.t)
        for (i, name), s in self.state.items():
            g, shard = getattr(self.layers[i], f"grad_{name}_shard"), getattr(self.layers[i], f"{name}_shard")
            s["m"] += ((1 - self.beta1) * (g - s["m"])).astype(g.dtype)
            s["v"] += ((1 - self.beta2) * (g * g - s["v"])).astype(g.dtype)
            shard -= (rate * s["m"] / (np.sqrt(s["v"]) + self.eps * root)).astype(shard.dtype)
