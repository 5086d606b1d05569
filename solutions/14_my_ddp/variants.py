"""Answers to part 14: wrong ones with the points that each must lose, and other right ones."""

from grading.authoring.answers import changes, loses, right

# Lines of the solution, and the same in other words: several answers are changes of these.
MEAN = """
        mean /= comm.Get_size()
        return mean"""
MEAN_IN_OTHER_WORDS = "        return mean / comm.Get_size()"
AVERAGE = """
        mean = np.empty_like(grad)
        comm.Allreduce(grad, mean)
        mean /= comm.Get_size()
        return mean"""


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


@loses(10)
@changes(
    AVERAGE,
    """
        total = np.empty_like(grad)
        comm.Allreduce(grad, total)
        return total""",
)
class MyDP__sum:
    """The sum instead of the mean."""


@loses(10)
@changes(
    AVERAGE,
    """
        total = np.empty_like(grad)
        comm.Allreduce(grad, total)
        return total / 4""",
)
class MyDP__four_ranks:
    """Knows how many ranks there are today."""


@loses(15)
@changes("        return mean\n", "")
class MyDP__forgets_to_return:
    """The hook's result is lost."""


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
    "            p.register_hook(self.average)",
    """
            p.register_hook(self.average)
            p.register_hook(self.average)""",
)
class MyDP__twice:
    """Exchanges each gradient twice."""


@loses(5)
@changes(
    AVERAGE,
    """
        mean = np.empty(grad.shape)
        comm.Allreduce(grad.astype(float), mean)
        return mean / comm.Get_size()""",
)
class MyDP__double_precision:
    """Gradients in float64, whatever the parameters are."""


@loses(15)
@changes(
    "            p.register_hook(self.average)",
    """
            if len(p.shape) > 1:
                p.register_hook(self.average)""",
)
class MyDP__weights_only:
    """No hooks for biases."""


@loses(15)
@changes(
    """
        mean = np.empty_like(grad)
        comm.Allreduce(grad, mean)
        mean /= comm.Get_size()""",
    """
        mean = grad.copy()
        if comm.Get_rank() > 0:
            comm.Allreduce(grad, mean)
            mean /= comm.Get_size()""",
)
class MyDP__deadlock:
    """Rank 0 does not take part."""


@right
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


@right
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


@right
class MyDP__non_blocking(Module):
    """Starts each exchange in the hook, and waits at the end."""

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
