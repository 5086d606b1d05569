"""Answers to part 14: wrong ones with the points that each must lose, and other right ones."""

from grading.authoring.answers import loses, right


@loses(15)
class MyDP__no_broadcast(Module):
    """Each rank goes on with its own model."""

    def __init__(self, model):
        self.model = model
        for p in model.parameters():
            p.register_hook(self.average)

    def average(self, grad):
        mean = np.empty_like(grad)
        comm.Allreduce(grad, mean)
        return mean / comm.Get_size()

    def forward(self, x):
        return self.model(x)


@loses(15)
class MyDP__last_rank_wins(Module):
    """The last rank's model."""

    def __init__(self, model):
        self.model = model
        for p in model.parameters():
            comm.Bcast(p.data, root=comm.Get_size() - 1)
            p.register_hook(self.average)

    def average(self, grad):
        mean = np.empty_like(grad)
        comm.Allreduce(grad, mean)
        return mean / comm.Get_size()

    def forward(self, x):
        return self.model(x)


@loses(15)
class MyDP__mean_of_the_models(Module):
    """Begins with the mean of all models."""

    def __init__(self, model):
        self.model = model
        for p in model.parameters():
            mean = np.empty_like(p.data)
            comm.Allreduce(p.data, mean)
            p.data = mean / comm.Get_size()
            p.register_hook(self.average)

    def average(self, grad):
        mean = np.empty_like(grad)
        comm.Allreduce(grad, mean)
        return mean / comm.Get_size()

    def forward(self, x):
        return self.model(x)


@loses(15)
class MyDP__only_used_ones(Module):
    """Broadcasts weights with more than one row: biases are zero anyway, are they not?"""

    def __init__(self, model):
        self.model = model
        for p in model.parameters():
            if len(p.shape) > 1:
                comm.Bcast(p.data, root=0)
            p.register_hook(self.average)

    def average(self, grad):
        mean = np.empty_like(grad)
        comm.Allreduce(grad, mean)
        return mean / comm.Get_size()

    def forward(self, x):
        return self.model(x)


@loses(10)
class MyDP__sum(Module):
    """The sum instead of the mean."""

    def __init__(self, model):
        self.model = model
        for p in model.parameters():
            comm.Bcast(p.data, root=0)
            p.register_hook(self.average)

    def average(self, grad):
        total = np.empty_like(grad)
        comm.Allreduce(grad, total)
        return total

    def forward(self, x):
        return self.model(x)


@loses(10)
class MyDP__four_ranks(Module):
    """Knows how many ranks there are today."""

    def __init__(self, model):
        self.model = model
        for p in model.parameters():
            comm.Bcast(p.data, root=0)
            p.register_hook(self.average)

    def average(self, grad):
        total = np.empty_like(grad)
        comm.Allreduce(grad, total)
        return total / 4

    def forward(self, x):
        return self.model(x)


@loses(15)
class MyDP__forgets_to_return(Module):
    """The hook's result is lost."""

    def __init__(self, model):
        self.model = model
        for p in model.parameters():
            comm.Bcast(p.data, root=0)
            p.register_hook(self.average)

    def average(self, grad):
        mean = np.empty_like(grad)
        comm.Allreduce(grad, mean)
        mean /= comm.Get_size()

    def forward(self, x):
        return self.model(x)


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
class MyDP__twice(Module):
    """Exchanges each gradient twice."""

    def __init__(self, model):
        self.model = model
        for p in model.parameters():
            comm.Bcast(p.data, root=0)
            p.register_hook(self.average)
            p.register_hook(self.average)

    def average(self, grad):
        mean = np.empty_like(grad)
        comm.Allreduce(grad, mean)
        mean /= comm.Get_size()
        return mean

    def forward(self, x):
        return self.model(x)


@loses(5)
class MyDP__double_precision(Module):
    """Gradients in float64, whatever the parameters are."""

    def __init__(self, model):
        self.model = model
        for p in model.parameters():
            comm.Bcast(p.data, root=0)
            p.register_hook(self.average)

    def average(self, grad):
        mean = np.empty(grad.shape)
        comm.Allreduce(grad.astype(float), mean)
        return mean / comm.Get_size()

    def forward(self, x):
        return self.model(x)


@loses(15)
class MyDP__weights_only(Module):
    """No hooks for biases."""

    def __init__(self, model):
        self.model = model
        for p in model.parameters():
            comm.Bcast(p.data, root=0)
            if len(p.shape) > 1:
                p.register_hook(self.average)

    def average(self, grad):
        mean = np.empty_like(grad)
        comm.Allreduce(grad, mean)
        mean /= comm.Get_size()
        return mean

    def forward(self, x):
        return self.model(x)


@loses(15)
class MyDP__deadlock(Module):
    """Rank 0 does not take part."""

    def __init__(self, model):
        self.model = model
        for p in model.parameters():
            comm.Bcast(p.data, root=0)
            p.register_hook(self.average)

    def average(self, grad):
        mean = grad.copy()
        if comm.Get_rank() > 0:
            comm.Allreduce(grad, mean)
            mean /= comm.Get_size()
        return mean

    def forward(self, x):
        return self.model(x)


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
    def __init__(self, model):
        self.inner = DistributedDataParallel(model, comm)

    def forward(self, x):
        return self.inner(x)


@loses(20)
class MyDP__ready_made_kept(DistributedDataParallel):
    """Takes hold of the wrapper's parts before the test."""

    def __init__(self, model, begin=DistributedDataParallel.__init__):
        begin(self, model, comm)
