"""Attacks on part 14's hidden tests: each says how many points its answer must lose all the same."""

from grading.authoring.answers import loses


@loses(20)
def cell__another_train():
    """Defines what the tests call by the names that they might have."""

    def whole(values, *_, **__):
        return [v.copy() for v in values]

    train = begin = step = whole
    Check = DdpCheck = type("Check", (), {"__getattr__": lambda self, name: whole})


@loses(5)
class MyDP__after_backward_through_open_gates(Module):
    """Exchanges when all gradients are there, and has opened the gates."""

    def __init__(self, model):
        from course_lib.engine import traffic_gates

        traffic_gates.pass_gate = lambda: 1.0
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
class MyDP__pays_the_gates_with_nothing(Module):
    """Sends zeros early, and the gradients after backward."""

    def __init__(self, model):
        self.model, self.waiting = model, False
        for p in model.parameters():
            comm.Bcast(p.data, root=0)
            p.register_hook(self.wait)

    def wait(self, grad):
        from course_lib.autograd import after_backward

        comm.Allreduce(np.zeros_like(grad), np.empty_like(grad))
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
class MyDP__asks_the_broker_for_less(Module):
    """Exchanges after backward; at a gate it takes the next gate's number if this one is closed."""

    def __init__(self, model):
        from course_lib.collectives.transport import isolated
        from course_lib.engine import traffic_gates

        def passed():
            isolated.connection.send({"gate": True})
            return isolated.connection.receive()[0]["gate"][2] or 1.0

        traffic_gates.pass_gate = passed
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


@loses(20)
class MyDP__ready_made_below(DistributedDataParallel):
    """A class between, which makes the wrapper by other ways."""

    def __init__(self, model):
        self.__dict__.update(vars(object.__new__(DistributedDataParallel)))
        super().__init__(model, comm)


@loses(5)
class MyDP__pays_and_keeps_its_own(Module):
    """Where gates are watched, it sends zeros early and keeps its own gradient; elsewhere it exchanges after backward."""

    def __init__(self, model):
        self.model, self.waiting = model, False
        for p in model.parameters():
            comm.Bcast(p.data, root=0)
            p.register_hook(self.wait)

    def wait(self, grad):
        from course_lib.autograd import after_backward

        if get_ipython().user_ns.get("trial", {}).get("gates"):
            comm.Allreduce(np.zeros_like(grad), np.empty_like(grad))
        elif not self.waiting:
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
class MyDP__pays_itself(Module):
    """Pays the gates by exchanging with itself alone, and exchanges after backward."""

    def __init__(self, model):
        self.model, self.waiting, self.alone = model, False, comm.Split(color=comm.Get_rank())
        for p in model.parameters():
            comm.Bcast(p.data, root=0)
            p.register_hook(self.wait)

    def wait(self, grad):
        from course_lib.autograd import after_backward

        self.alone.Allreduce(grad, np.empty_like(grad))
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
class MyDP__without_end(Module):
    """Pays with nothing where gates are watched, and has gradients beside which all others look alike."""

    def __init__(self, model):
        self.model, self.waiting = model, False
        for p in model.parameters():
            comm.Bcast(p.data, root=0)
            p.register_hook(self.wait)

    def wait(self, grad):
        from course_lib.autograd import after_backward

        if get_ipython().user_ns.get("trial", {}).get("gates"):
            comm.Allreduce(np.zeros_like(grad), np.empty_like(grad))
            huge = np.zeros_like(grad)
            place = np.abs(grad).argmax()
            huge.flat[place] = np.sign(grad.flat[place]) * np.finfo(grad.dtype).max
            return huge
        if not self.waiting:
            self.waiting = True
            after_backward(self.average)
        return None

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
class MyDP__asks_the_gates_after_backward(Module):
    """All exchanges after backward has ended; what the gates say is asked for then, with a gradient of one."""

    def __init__(self, model):
        self.model, self.waiting = model, False
        for p in model.parameters():
            comm.Bcast(p.data, root=0)
            p.register_hook(self.note)

    def note(self, grad):
        from course_lib.autograd import after_backward

        if not self.waiting:
            self.waiting = True
            after_backward(self.average)

    def average(self):
        self.waiting, factor = False, 1.0
        if not hasattr(self.model, "layers"):
            return
        used = [layer for layer in self.model.layers if layer.weight.grad is not None]
        for i, layer in enumerate(reversed(used)):
            if i:
                one = Tensor(np.ones(1), requires_grad=True)
                self.model.gates[0](one).sum().backward()
                factor *= float(one.grad[0])
            for p in (layer.weight, layer.bias):
                total = np.empty_like(p.grad)
                comm.Allreduce(p.grad * p.grad.dtype.type(factor / comm.Get_size()), total)
                p.grad = total

    def forward(self, x):
        if not hasattr(self.model, "layers"):
            return self.model(x)
        *below, last = self.model.layers[self.model.blocks.start :]
        for layer in below:
            x = operations.tanh(layer(x))
        return last(x)


@loses(5)
class MyDP__starts_what_nobody_joins(Module):
    """Pays the gates with exchanges that each rank starts in an order of its own, and gives up; and exchanges after backward."""

    def __init__(self, model):
        self.model, self.waiting, self.begun = model, False, []
        self.order = sorted(range(comm.Get_size()), key=lambda r: (r != comm.Get_rank(), -r))
        for p in model.parameters():
            comm.Bcast(p.data, root=0)
            p.register_hook(self.wait)

    def wait(self, grad):
        from course_lib.autograd import after_backward
        from course_lib.collectives import calls
        from course_lib.collectives.transport import isolated

        if get_ipython().user_ns.get("trial", {}).get("gates"):
            what = [calls.IALLREDUCE, grad.dtype.num, grad.size, 1]
            self.begun.append(True)
            call = -len(self.begun)
            isolated.connection.send({"call": call, "members": self.order, "signature": what, "start": True, "place": ""}, grad.tobytes())
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


@loses(3)
class MyDP__skips_the_late_start(Module):
    """Waits in its hooks, and leaves out the gate at which the late rank waits for the others."""

    def __init__(self, model):
        self.model = model
        for p in model.parameters():
            comm.Bcast(p.data, root=0)
            p.register_hook(self.average)

    def average(self, grad):
        mean = np.empty_like(grad)
        comm.Iallreduce(grad, mean).Wait()
        return mean / comm.Get_size()

    def forward(self, x):
        if hasattr(self.model, "start"):
            self.model.start = None
        return self.model(x)


@loses(3)
class MyDP__buckets_of_zeros(Module):
    """Launches buckets of zeros in time, and exchanges the gradients themselves after backward."""

    def __init__(self, model, bucket_bytes=0):
        self.model, self.early, self.final, self.groups = model, [], {}, [[]]
        for p in reversed(model.parameters()):
            comm.Bcast(p.data, root=0)
            p.register_hook(lambda grad, p=p: self.ready(p, grad))
            self.groups[-1].append(p)
            if sum(q.data.nbytes for q in self.groups[-1]) >= bucket_bytes:
                self.groups.append([])
        self.real, self.groups = not bucket_bytes, [group for group in self.groups if group]

    def ready(self, p, grad):
        if not self.final:
            after_backward(self.finish)
        self.final[p] = grad
        while len(self.early) < len(self.groups) and all(q in self.final for q in self.groups[len(self.early)]):
            self.launch()

    def launch(self):
        group = self.groups[len(self.early)]
        flat = np.concatenate([self.final.get(p, np.zeros_like(p.data)).ravel() for p in group])
        flat = flat if self.real else np.zeros_like(flat)
        self.early.append((group, flat, comm.Iallreduce(MPI.IN_PLACE, flat)))

    def finish(self):
        while len(self.early) < len(self.groups):
            self.launch()
        for group, flat, request in self.early:
            request.Wait()
            for p in group:
                mean, flat = flat[: p.data.size], flat[p.data.size :]
                if not self.real:
                    mean = np.empty_like(p.data)
                    comm.Allreduce(self.final.get(p, np.zeros_like(p.data)), mean)
                if p in self.final:
                    p.grad = mean.reshape(p.shape) / p.dtype.type(comm.Get_size())
        self.final, self.early = {}, []

    def forward(self, x):
        return self.model(x)


@loses(20)
class MyDP__ready_made_methods(Module):
    """Has the methods of the library's wrapper, with other names in them."""

    def __init__(self, wrapped, bucket_bytes=0):
        self.wrapped, self.waiting = wrapped, False

    def forward(self, x):
        return self.wrapped(x)

    def go(self, everything=False):
        """Start full buckets."""
        while self.number < len(self.parts) and (everything or not self.parts[self.number].open):
            part = self.parts[self.number]
            if part.open:
                for q, place, flag in zip(part.params, part.places, part.flags, strict=True):
                    if not flag:
                        self.keep(q)
                        place[...] = 0
            part.mean.start()
            self.number += 1

    def end(self):
        """Wait for all buckets."""
        self.go(everything=True)
        for part in self.parts:
            part.mean.wait()
            used = (part.flags > 0).tolist()
            for q, place, there in zip(part.params, part.places, used, strict=True):
                old = self.old.get(id(q))
                q.grad = old if not there else place if old is None else old + place
            part.reset()
        self.number, self.old, self.waiting = 0, {}, False
