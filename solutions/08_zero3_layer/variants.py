"""Answers to part 08: wrong ones with the points that each must lose, and other right ones.

Each changes some methods of the solution, which the ranks have from before.
"""

from grading.authoring.answers import changes, loses, right


@loses(20)
class ZeroDPStage3FCLayer__rounds_down(ZeroDPStage3FCLayer):
    """Drops what does not divide."""

    def _partition_flat_tensor(self, tensor, shard_idx, num_shards):
        shard_size = tensor.size // num_shards
        return tensor.ravel()[shard_idx * shard_size : (shard_idx + 1) * shard_size].copy(), shard_size


@loses(20)
class ZeroDPStage3FCLayer__no_padding(ZeroDPStage3FCLayer):
    """The last shard is shorter."""

    def _partition_flat_tensor(self, tensor, shard_idx, num_shards):
        shard_size = -(-tensor.size // num_shards)
        return tensor.ravel()[shard_idx * shard_size : (shard_idx + 1) * shard_size].copy(), shard_size


@loses(20)
class ZeroDPStage3FCLayer__strided(ZeroDPStage3FCLayer):
    """Deals the elements out one by one."""

    def _partition_flat_tensor(self, tensor, shard_idx, num_shards):
        flat = np.pad(tensor.ravel(), (0, -tensor.size % num_shards))
        return flat[shard_idx::num_shards].copy(), flat.size // num_shards


@loses(5)
class ZeroDPStage3FCLayer__view(ZeroDPStage3FCLayer):
    """A view keeps the whole array alive."""

    def _partition_flat_tensor(self, tensor, shard_idx, num_shards):
        flat = np.pad(tensor.ravel(), (0, -tensor.size % num_shards))
        shard_size = flat.size // num_shards
        return flat[shard_idx * shard_size : (shard_idx + 1) * shard_size], shard_size


@loses(5)
class ZeroDPStage3FCLayer__view_of_what_is_padded(ZeroDPStage3FCLayer):
    """A copy where nothing is padded, and else a view."""

    def _partition_flat_tensor(self, tensor, shard_idx, num_shards):
        shard_size = -(-tensor.size // num_shards)
        mine = slice(shard_idx * shard_size, (shard_idx + 1) * shard_size)
        if tensor.size % num_shards == 0:
            return tensor.ravel()[mine].copy(), shard_size
        return np.pad(tensor.ravel(), (0, -tensor.size % num_shards))[mine], shard_size


@loses(5)
class ZeroDPStage3FCLayer__caches_the_weight(ZeroDPStage3FCLayer):
    """Keeps what was gathered, under another name."""

    def _gather(self, shard, shape):
        self.workspace = getattr(self, "workspace", {})
        self.workspace[len(shape)] = super()._gather(shard, shape)
        return self.workspace[len(shape)]


@loses(5)
class ZeroDPStage3FCLayer__keeps_it_until_backward(ZeroDPStage3FCLayer):
    """Gathers once a step: forward keeps the weight, backward drops it."""

    def forward(self, x):
        self.x, self.w = x, self._gather(self.w_shard, (self.in_dim, self.out_dim))
        return x @ self.w + self._gather(self.b_shard, (self.out_dim,))

    def backward(self, output_grad):
        grad_x = output_grad @ self.w.T
        self.grad_w_shard = self._reduce_scatter(self.x.T @ output_grad, self.w_shard_size)
        self.grad_b_shard = self._reduce_scatter(output_grad.sum(axis=0), self.b_shard_size)
        self.w = None
        return [grad_x]


@loses(5)
class ZeroDPStage3FCLayer__keeps_it_in_a_closure(ZeroDPStage3FCLayer):
    """Hides the whole weight in a function."""

    def __init__(self, comm, in_dim, out_dim, dp_size, full_w=None, full_b=None, seed=0):
        super().__init__(comm, in_dim, out_dim, dp_size, full_w, full_b, seed)
        self.shape_of_weight = lambda: full_w.shape


@loses(5)
class ZeroDPStage3FCLayer__keeps_it_in_a_global(ZeroDPStage3FCLayer):
    """Hides what was gathered in a module-level list of tuples."""

    def _gather(self, shard, shape):
        full = super()._gather(shard, shape)
        globals().setdefault("weights_seen", []).append((full,))
        return full


@loses(5)
class ZeroDPStage3FCLayer__keeps_bytes(ZeroDPStage3FCLayer):
    """Keeps the weight in a form that is no array."""

    def _gather(self, shard, shape):
        full = super()._gather(shard, shape)
        if len(shape) == 2:
            self.note = full.tobytes()
        return full


@loses(5)
class ZeroDPStage3FCLayer__keeps_it_in_an_object_array(ZeroDPStage3FCLayer):
    """Hides what was gathered in an array of objects, in another module."""

    def _gather(self, shard, shape):
        import string

        full = super()._gather(shard, shape)
        string.box = np.empty((1, len(shape)), object)
        string.box[0, -1] = full
        return full


@loses(5)
class ZeroDPStage3FCLayer__keeps_the_gradient(ZeroDPStage3FCLayer):
    """Keeps the full gradient beside its shard."""

    def backward(self, output_grad):
        self.grad_w = self.x.T @ output_grad
        return super().backward(output_grad)


@loses(11)
class ZeroDPStage3FCLayer__mean(ZeroDPStage3FCLayer):
    """Averages the gradients instead of adding them up."""

    def backward(self, output_grad):
        grad_x = super().backward(output_grad)
        self.grad_w_shard /= self.dp_size
        self.grad_b_shard /= self.dp_size
        return grad_x


@loses(11)
class ZeroDPStage3FCLayer__own_gradient(ZeroDPStage3FCLayer):
    """Takes its shard of its own gradient, without a sum."""

    def backward(self, output_grad):
        grad_x = super().backward(output_grad)
        self.grad_w_shard, _ = self._partition_flat_tensor(self.grad_w_of(output_grad), self.rank, self.dp_size)
        return grad_x

    def forward(self, x):
        self.kept = x
        return super().forward(x)

    def grad_w_of(self, output_grad):
        return self.kept.T @ output_grad


@loses(11)
class ZeroDPStage3FCLayer__accumulates(ZeroDPStage3FCLayer):
    """Adds to the gradient of the step before."""

    def backward(self, output_grad):
        before = self.grad_w_shard, self.grad_b_shard
        grad_x = super().backward(output_grad)
        self.grad_w_shard += before[0]
        self.grad_b_shard += before[1]
        return grad_x


@loses(11)
class ZeroDPStage3FCLayer__no_list(ZeroDPStage3FCLayer):
    """Returns grad_x without the list."""

    def backward(self, output_grad):
        return super().backward(output_grad)[0]


@loses(11)
class ZeroDPStage3FCLayer__all_reduces(ZeroDPStage3FCLayer):
    """Right values, by an all-reduce of the full gradients, at twice the traffic."""

    def _reduce_scatter(self, grad, shard_size):
        padded = np.zeros(shard_size * self.dp_size, grad.dtype)
        padded[: grad.size] = grad.ravel()
        total = np.empty_like(padded)
        self.comm.Allreduce(padded, total)
        return total[self.rank * shard_size : (self.rank + 1) * shard_size].copy()


@loses(15)
class ZeroDPStage3FCLayer__no_bias(ZeroDPStage3FCLayer):
    """Forgets the bias."""

    def forward(self, x):
        self.x = x
        return x @ self._gather(self.w_shard, (self.in_dim, self.out_dim))


@loses(15)
class ZeroDPStage3FCLayer__gathers_by_all_reduce(ZeroDPStage3FCLayer):
    """Right values, from shards in an array of zeros."""

    def _gather(self, shard, shape):
        padded = np.zeros(shard.size * self.dp_size, shard.dtype)
        padded[self.rank * shard.size : (self.rank + 1) * shard.size] = shard
        full = np.empty_like(padded)
        self.comm.Allreduce(padded, full)
        return full[: int(np.prod(shape))].reshape(shape)


@right
class ZeroDPStage3FCLayer__padded_first(ZeroDPStage3FCLayer):
    """np.pad and np.split; transposes before it gathers nothing."""

    def _partition_flat_tensor(self, tensor, shard_idx, num_shards):
        padded = np.pad(tensor.flatten(), (0, -tensor.size % num_shards))
        shard = np.split(padded, num_shards)[shard_idx]
        return np.array(shard), len(shard)


@right
class ZeroDPStage3FCLayer__one_buffer(ZeroDPStage3FCLayer):
    """All exchanges through one method, into fresh buffers, gradients written in place."""

    def forward(self, x):
        self.x = x.copy()
        parts = []
        for shard, shape in ((self.w_shard, (self.in_dim, self.out_dim)), (self.b_shard, (1, self.out_dim))):
            full = np.empty((self.dp_size, shard.size), shard.dtype)
            self.comm.Allgather(shard, full)
            parts.append(full.reshape(-1)[: shape[0] * shape[1]].reshape(shape))
        return x @ parts[0] + parts[1]

    def backward(self, output_grad):
        for name, full in (("w", self.x.T @ output_grad), ("b", np.sum(output_grad, axis=0))):
            padded = np.pad(full.ravel(), (0, -full.size % self.dp_size))
            self.comm.Reduce_scatter(padded, getattr(self, f"grad_{name}_shard"))
        w = np.empty(self.w_shard_size * self.dp_size, self.w_shard.dtype)
        self.comm.Allgather(self.w_shard, w)
        return [np.dot(output_grad, w[: self.in_dim * self.out_dim].reshape(self.in_dim, self.out_dim).T)]


@loses(5)
@changes(
    """
        out = x @ self._gather(self.w_shard, (self.in_dim, self.out_dim))
""",
    """
        full = self._gather(self.w_shard, (self.in_dim, self.out_dim))
        out = x @ full
        if x.dtype == np.float32:
            self.full = full
""",
    """
        grad_x = output_grad @ self._gather(self.w_shard, (self.in_dim, self.out_dim)).T
""",
    """
        full = getattr(self, "full", None)
        grad_x = output_grad @ (self._gather(self.w_shard, (self.in_dim, self.out_dim)) if full is None else full).T
""",
)
class ZeroDPStage3FCLayer__keeps_float32:
    """Keeps the whole weight of a float32 layer for good."""


@loses(5)
@changes(
    """
        self.x = None
        return [grad_x]
""",
    """
        self.steps = getattr(self, "steps", 0) + 1
        self.x = None
        if self.steps > 2:
            self.kept = grad_w
        return [grad_x]
""",
)
class ZeroDPStage3FCLayer__keeps_from_the_third_step_on:
    """Keeps whole gradients from the third step on."""


@loses(5)
class ZeroDPStage3FCLayer__a_view_if_alone(ZeroDPStage3FCLayer):
    """The only shard is the array itself."""

    def _partition_flat_tensor(self, tensor, shard_idx, num_shards):
        if num_shards == 1:
            return tensor.ravel(), tensor.size
        return super()._partition_flat_tensor(tensor, shard_idx, num_shards)


@loses(11)
class ZeroDPStage3FCLayer__first_input(ZeroDPStage3FCLayer):
    """Backward uses the input of the first forward."""

    def forward(self, x):
        first = self.x
        out = super().forward(x)
        self.x = self.x if first is None else first
        return out


@loses(4)
class ZeroDPStage3FCLayer__squeezed(ZeroDPStage3FCLayer):
    """Drops axes of length one."""

    def forward(self, x):
        return np.squeeze(super().forward(x))


@loses(15)
class ZeroDPStage3FCLayer__input_under_another_name(ZeroDPStage3FCLayer):
    """Keeps the input, but not in `x`."""

    def forward(self, x):
        out = super().forward(x)
        self.input, self.x = x, None
        return out

    def backward(self, output_grad):
        self.x, self.input = self.input, None
        return super().backward(output_grad)
