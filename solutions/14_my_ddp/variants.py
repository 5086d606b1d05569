"""Answers to part 14: wrong ones with the points that each must lose, and other right ones."""

from grading.authoring.answers import changes, loses, right

# The solution waits for its buckets here; several answers are changes of these lines.
WAIT = """
            request.Wait()
            flat /= comm.Get_size()
"""
LAUNCH = """
        while len(self.started) < len(self.buckets):
            bucket = self.buckets[len(self.started)]
            if not all(q in self.final for q in bucket):
                break
            self.start(bucket)
"""
CLOSE = """
            if held >= bucket_bytes:
                self.buckets.append([])
                held = 0
            self.buckets[-1].append(p)
            held += p.data.nbytes
"""


@loses(15)
@changes("            comm.Bcast(p.data, root=0)\n", "")
class MyDP__no_broadcast:
    """Each rank goes on with its own model."""


@loses(15)
@changes("comm.Bcast(p.data, root=0)", "comm.Bcast(p.data, root=comm.Get_size() - 1)")
class MyDP__last_rank_wins:
    """The last rank's model."""


@loses(15)
@changes(
    "            comm.Bcast(p.data, root=0)",
    """
            mean = np.empty_like(p.data)
            comm.Allreduce(p.data, mean)
            p.data = mean / comm.Get_size()""",
)
class MyDP__mean_of_the_models:
    """Begins with the mean of all models."""


@loses(15)
@changes(
    "            comm.Bcast(p.data, root=0)",
    """
            if len(p.shape) > 1:
                comm.Bcast(p.data, root=0)""",
)
class MyDP__only_used_ones:
    """Broadcasts weights with more than one row: biases are zero anyway, are they not?"""


@loses(12)
@changes("            flat /= comm.Get_size()\n", "")
class MyDP__sum:
    """The sum instead of the mean."""


@loses(12)
@changes("flat /= comm.Get_size()", "flat /= 4")
class MyDP__four_ranks:
    """Knows how many ranks there are today."""


@loses(15)
@changes("p.grad = mean.reshape(p.shape)", "pass")
class MyDP__means_stay_in_the_bucket:
    """The means are computed and then forgotten."""


@loses(12)
@changes(
    WAIT,
    """
            flat /= comm.Get_size()
            request.Wait()
""",
)
class MyDP__average_before_waiting:
    """Divides what is still in flight."""


@loses(15)
@changes("            request.Wait()\n", "")
class MyDP__never_waits:
    """Starts all exchanges and waits for none."""


@loses(1)
@changes(
    "        self.started.append((bucket, flat, comm.Iallreduce(MPI.IN_PLACE, flat)))",
    """
        self.started.append((bucket, flat, comm.Iallreduce(MPI.IN_PLACE, flat)))
        self.started[-1][2].Wait()""",
)
class MyDP__waits_at_once:
    """Right numbers, but a rank that computes faster waits in each hook for the others."""


@loses(2)
@changes(
    """
        for bucket in self.buckets[len(self.started) :]:
            self.start(bucket)
""",
    "",
)
class MyDP__forgets_the_last_bucket:
    """What is not full at the end of backward never starts."""


@loses(2)
@changes(
    LAUNCH,
    """
        bucket = next(b for b in self.buckets if any(q is p for q in b))
        if all(q in self.final for q in bucket):
            self.start(bucket)
""",
    "        for bucket in self.buckets[len(self.started) :]:\n",
    "        for bucket in [b for b in self.buckets if not any(b is s[0] for s in self.started)]:\n",
)
class MyDP__buckets_by_arrival:
    """Starts a bucket as soon as it is full, whatever the other ranks do."""


@loses(2)
@changes("if held >= bucket_bytes:", "if True:")
class MyDP__one_per_parameter:
    """Every bucket has one gradient."""


@loses(2)
@changes("if held >= bucket_bytes:", "if not self.buckets or 0 < bucket_bytes < held + p.data.nbytes or not bucket_bytes:")
class MyDP__closes_too_early:
    """Closes a bucket before it has that many bytes."""


@loses(3)
@changes("if held >= bucket_bytes:", "if not self.buckets or not bucket_bytes:")
class MyDP__one_bucket:
    """One bucket of all gradients."""


@loses(2)
@changes("            for p in bucket:\n", "            for p in reversed(bucket):\n")
class MyDP__unpacks_in_another_order:
    """Cuts a bucket in another order than it was filled."""


@loses(5)
@changes("for p in reversed(model.parameters()):", "for p in model.parameters():")
class MyDP__buckets_from_the_first_layer:
    """The first bucket has the first layer's gradients, which come last."""


@loses(15)
@changes(
    "        self.final, self.started = {}, []\n",
    "",
    "self.final, self.started = model, [], {}, []",
    "self.final, self.started = model, [], {}, []",
)
class MyDP__once:
    """Works in the first backward only."""


@loses(5)
@changes("                if p in self.final:\n                    p.grad", "                p.grad")
class MyDP__zeros_for_the_unused:
    """Gives zeros to a parameter without a gradient: an optimizer with moments would move it."""


@loses(15)
@changes("if not self.final:", "if len(self.final) == len(self.model.parameters()) - 1:")
class MyDP__counts_all_parameters:
    """Waits for the hook of every parameter: the unused one's never comes."""


@loses(2)
@changes(
    "            parts.append(grad.ravel())",
    "            parts += [grad.ravel()] if p in self.final else []",
    "        flat = np.concatenate(parts)",
    "        flat = np.concatenate([*parts, np.zeros(0, bucket[0].dtype)])",
)
class MyDP__no_place_for_the_unused:
    """Leaves out a gradient that is not there, and then cuts the bucket as if it were."""


@loses(15)
class MyDP__no_hooks(Module):
    """Only the start."""

    def __init__(self, model):
        self.model = model
        for p in model.parameters():
            comm.Bcast(p.data, root=0)

    def forward(self, x):
        return self.model(x)


@loses(5)
class MyDP__after_backward(Module):
    """Exchanges when all gradients are there."""

    def __init__(self, model):
        self.model, self.waiting = model, False
        for p in model.parameters():
            comm.Bcast(p.data, root=0)
            p.register_hook(self.wait)

    def wait(self, grad):
        from course_lib.autograd import after_backward

        if not self.waiting:
            self.waiting = True
            after_backward(self.average)

    def average(self):
        self.waiting = False
        for p in self.model.parameters():
            if p.grad is not None:
                mean = np.empty_like(p.grad)
                comm.Allreduce(p.grad, mean)
                p.grad = mean / p.grad.dtype.type(comm.Get_size())

    def forward(self, x):
        return self.model(x)


@loses(5)
@changes(
    "        flat = np.concatenate(parts)\n",
    "        flat = np.concatenate(parts)\n        comm.Iallreduce(flat, np.empty_like(flat)).Wait()\n",
)
class MyDP__twice:
    """Exchanges each bucket twice."""


@loses(14)
@changes("flat = np.concatenate(parts)", "flat = np.concatenate(parts).astype(float)")
class MyDP__double_precision:
    """Gradients in float64, whatever the parameters are."""


@loses(15)
@changes(
    "            p.register_hook(lambda grad, p=p: self.ready(p, grad))",
    """
            if len(p.shape) > 1:
                p.register_hook(lambda grad, p=p: self.ready(p, grad))""",
)
class MyDP__weights_only:
    """No hooks for biases."""


@loses(15)
@changes(
    "comm.Iallreduce(MPI.IN_PLACE, flat)))",
    "comm.Iallreduce(MPI.IN_PLACE, flat) if comm.Get_rank() else comm.Irecv(flat, MPI.PROC_NULL)))",
)
class MyDP__deadlock:
    """Rank 0 does not take part."""


@right
class MyDP__views(Module):
    """Buckets are arrays that stay, and counters say what they still lack."""

    def __init__(self, model, bucket_bytes=0):
        self.inner, self.open, groups = model, None, [[]]
        params = list(model.parameters())[::-1]
        for p in params:
            comm.Bcast(p.data)
            groups[-1].append(p)
            if sum(q.data.nbytes for q in groups[-1]) >= bucket_bytes:
                groups.append([])
        self.groups = [tuple(group) for group in groups if group]
        self.flats = [np.zeros(sum(p.data.size for p in g), g[0].dtype) for g in self.groups]
        for b, group in enumerate(self.groups):
            at = 0
            for p in group:
                view = self.flats[b][at : at + p.data.size].reshape(p.shape)
                p.register_hook(lambda grad, b=b, p=p, view=view: self.arrived(b, p, view, grad))
                at += p.data.size

    def arrived(self, b, p, view, grad):
        if self.open is None:
            self.open, self.given, self.requests = [len(group) for group in self.groups], [], []
            for flat in self.flats:
                flat[:] = 0
            after_backward(self.end)
        view[:] = grad
        self.given.append((p, view))
        self.open[b] -= 1
        self.go(lambda b: not self.open[b])

    def go(self, may):
        while len(self.requests) < len(self.flats) and may(len(self.requests)):
            flat = self.flats[len(self.requests)]
            self.requests.append(comm.Iallreduce(MPI.IN_PLACE, flat))

    def end(self):
        self.go(lambda b: True)
        for request in self.requests:
            while not request.Test():
                pass
        for p, view in self.given:
            p.grad = view / p.dtype.type(comm.Get_size())
        self.open = None

    def forward(self, x):
        return self.inner(x)


@loses(2)
@changes(
    "for bucket in self.buckets[len(self.started) :]:\n            self.start(bucket)",
    "for bucket in self.buckets[len(self.started) :]:\n            if bucket_is_used(bucket, self.final):\n                self.start(bucket)",
    "    def ready(self, p, grad):",
    "    def ready(self, p, grad):\n        global bucket_is_used\n        bucket_is_used = lambda bucket, final: any(p in final for p in bucket)",
)
class MyDP__no_bucket_of_zeros:
    """Leaves out a bucket none of whose parameters has a gradient, which other ranks may have."""


@right
@changes(
    "        self.started.append((bucket, flat, comm.Iallreduce(MPI.IN_PLACE, flat)))",
    """
        total = np.empty_like(flat)
        mine = flat / flat.dtype.type(comm.Get_size())
        self.started.append((bucket, total, mine, comm.Iallreduce(mine, total)))""",
    "for bucket, flat, request in self.started:",
    "for bucket, flat, _, request in self.started:",
    "            flat /= comm.Get_size()\n",
    "",
)
class MyDP__divides_first:
    """Divides before the sum."""


@loses(3)
class MyDP__old_exercise(Module):
    """The solution before this part had non-blocking calls and buckets: it keeps all points but those."""

    def __init__(self, model):
        self.model = model
        for p in model.parameters():
            comm.Bcast(p.data, root=0)
            p.register_hook(self.average)

    def average(self, grad):
        """Return the mean over the ranks."""
        mean = np.empty_like(grad)
        comm.Allreduce(grad, mean)
        mean /= comm.Get_size()
        return mean

    def forward(self, x):
        """Return the model's output for this rank's samples."""
        return self.model(x)


@loses(5)
class MyDP__old_exercise_twice(Module):
    """The same with two hooks for each parameter."""

    def __init__(self, model):
        self.model = model
        for p in model.parameters():
            comm.Bcast(p.data, root=0)
            p.register_hook(self.average)
            p.register_hook(self.average)

    def average(self, grad):
        mean = np.empty_like(grad)
        comm.Allreduce(grad, mean)
        return mean / comm.Get_size()

    def forward(self, x):
        return self.model(x)


@loses(3)
class MyDP__in_place(Module):
    """Changes the gradient itself."""

    def __init__(self, model):
        self.inner = model
        for p in model.parameters():
            comm.Bcast(p.data)
            p.register_hook(self.average)

    def average(self, grad):
        comm.Allreduce(MPI.IN_PLACE, grad)
        grad /= comm.Get_size()

    def forward(self, x):
        return self.inner(x)


@loses(3)
class MyDP__fresh_arrays(Module):
    """Takes rank 0's parameters by a sum with zeros, and divides before the sum."""

    def __init__(self, model):
        self.module = model
        for _, p in model.named_parameters():
            mine = p.data if comm.Get_rank() == 0 else np.zeros_like(p.data)
            p.data = np.empty_like(mine)
            comm.Allreduce(mine, p.data)
            p.register_hook(lambda grad: self.average(grad / grad.dtype.type(comm.Get_size())))

    def average(self, part):
        mean = np.empty_like(part)
        comm.Allreduce(part, mean)
        return mean

    def forward(self, x):
        return self.module(x)


@loses(3)
class MyDP__first_half(Module):
    """Starts each exchange in the hook, and waits at the end; no buckets."""

    def __init__(self, model):
        self.model, self.started = model, []
        for p in model.parameters():
            comm.Bcast(p.data, root=0)
            p.register_hook(self.begin)

    def begin(self, grad):
        from course_lib.autograd import after_backward

        if not self.started:
            after_backward(self.finish)
        self.started.append((grad, comm.Iallreduce(MPI.IN_PLACE, grad)))

    def finish(self):
        for grad, request in self.started:
            request.Wait()
            grad /= comm.Get_size()
        self.started = []

    def forward(self, x):
        return self.model(x)


@loses(20)
class MyDP__ready_made(DistributedDataParallel):
    """Part 13's wrapper under another name."""


@loses(20)
class MyDP__ready_made_inside(Module):
    """Part 13's wrapper inside a module of its own."""

    def __init__(self, model):
        self.inner = DistributedDataParallel(model, comm)

    def forward(self, x):
        return self.inner(x)


@loses(20)
class MyDP__ready_made_kept(DistributedDataParallel):
    """Takes hold of the wrapper's parts before the test."""

    def __init__(self, model, begin=DistributedDataParallel.__init__):
        begin(self, model, comm)


@loses(2)
@changes("if held >= bucket_bytes:", "if not self.buckets or held > bucket_bytes:")
class MyDP__closes_at_more_than:
    """A bucket that has exactly that many bytes stays open."""


@loses(2)
@changes("if held >= bucket_bytes:", "if held >= bucket_bytes and (bucket_bytes or not self.buckets or len(self.buckets[-1]) > 1):")
class MyDP__pairs_by_default:
    """Two gradients at a time where each is to go by itself."""


@loses(2)
@changes(
    "                if p in self.final:\n                    p.grad",
    "                if p in self.final or mean.any():\n                    p.grad",
)
class MyDP__other_ranks_gradients:
    """A parameter that this rank has not used gets a gradient where others have used it."""


@loses(15)
@changes(
    "return self.model(x)",
    """comm.Barrier()
        return self.model(x)""",
)
class MyDP__barrier_in_forward:
    """All ranks meet before each forward."""


@loses(10)
@changes("parts.append(grad.ravel())", "parts.append(np.nan_to_num(grad.ravel()))")
class MyDP__no_nan:
    """Makes numbers of NaN."""


@loses(10)
@changes("p.grad = mean.reshape(p.shape)", "p.grad = mean.reshape(p.shape) if mean.any() else None")
class MyDP__zeros_are_none:
    """Takes a mean of zeros for none."""


@loses(2)
@changes(
    "self.final.get(p, np.zeros_like(p.data))",
    "self.final.get(p, self.last.get(p, np.zeros_like(p.data)))",
    "self.final, self.started = {}, []\n",
    "self.last, self.final, self.started = self.final, {}, []\n",
    "self.final, self.started = model, [], {}, []",
    "self.final, self.started = model, [], {}, []\n        self.last = {}",
)
class MyDP__gradient_of_the_last_step:
    """Sends the gradient of the step before for a parameter that this step has not used."""


@loses(2)
@changes("self.final.get(p, np.zeros_like(p.data))", "self.final.get(p, np.zeros_like(p.data) if p.grad is None else p.grad)")
class MyDP__stale_gradient:
    """Sends what is left in p.grad for a parameter that this step has not used."""


@loses(2)
@changes(
    "                if p in self.final:\n                    p.grad",
    "                if p in self.final or p.grad is not None:\n                    p.grad",
)
class MyDP__mean_for_the_unused:
    """Overwrites what is left in p.grad of a parameter that this step has not used."""


@loses(12)
@changes(
    "self.model, self.buckets, self.final, self.started = model, [], {}, []",
    "self.model, self.final, self.started = model, {}, []\n        MyDP.buckets = []",
)
class MyDP__buckets_of_the_class:
    """Keeps the buckets on the class: those of the last wrapped model."""


@loses(12)
@changes(
    "self.model, self.buckets, self.final, self.started = model, [], {}, []",
    "self.model, self.buckets = model, []\n        MyDP.final, MyDP.started = {}, []",
    "        self.final, self.started = {}, []",
    "        MyDP.final, MyDP.started = {}, []",
)
class MyDP__gradients_of_the_class:
    """Keeps gradients and requests on the class: two models in one backward mix them up."""


@loses(1)
@changes(
    """            self.start(bucket)

""",
    """            self.start(bucket)
        if len(self.final) == self.used:
            for _, _, request in self.started:
                request.Wait()

""",
    "        self.final, self.started = {}, []\n",
    "        self.used = len(self.final)\n        self.final, self.started = {}, []\n",
    "self.final, self.started = model, [], {}, []",
    "self.final, self.started = model, [], {}, []\n        self.used = 0",
)
class MyDP__waits_in_the_last_hook:
    """From the second step on, waits in the last hook instead of after backward."""


@loses(1)
@changes(
    """            self.start(bucket)

""",
    """            self.start(bucket)
        if p is self.model.parameters()[2]:
            for _, _, request in self.started:
                request.Wait()

""",
)
class MyDP__waits_in_the_lowest_hook:
    """Waits in the hook of the lowest layer's weight."""
