"""A device that computes a layer's gradients while its process is free, for the steps of part 14."""

from __future__ import annotations

import time
from collections.abc import Callable

from course_lib.autograd import Module, Tensor
from course_lib.trace import span


class Device(Module):
    """Identity whose backward takes as long as a device would that computes what comes next.

    Parameters
    ----------
    seconds : float
        How long the device computes.
    meanwhile : callable, optional
        What this process does in that time, again and again; it sleeps by default.
    """

    def __init__(self, seconds: float, meanwhile: Callable[[], None] | None = None):
        self.seconds, self.meanwhile = seconds, meanwhile

    def forward(self, x: Tensor) -> Tensor:
        def backward(grad):
            until = time.perf_counter() + self.seconds
            with span("device"):
                while (left := until - time.perf_counter()) > 0:
                    self.meanwhile() if self.meanwhile else time.sleep(left)
            return (grad,)

        return Tensor.from_operation(x.data, (x,), backward)


class OpenRequests:
    """Communicator that keeps the requests of its all-reduces, so that they can be advanced.

    Parameters
    ----------
    comm : Communicator
    at_once : bool
        Whether `Iallreduce` waits at once, as `Allreduce` does; to see what is gained by not waiting.
    """

    def __init__(self, comm, at_once: bool = False):
        self._comm, self._at_once, self._open = comm, at_once, []

    def __getattr__(self, name: str):
        return getattr(self._comm, name)

    def Iallreduce(self, *arguments):
        """Call the communicator's `Iallreduce`."""
        request = self._comm.Iallreduce(*arguments)
        if self._at_once:
            request.Wait()
        self._open.append(request)
        return request

    def test(self) -> None:
        """Call `Test` on all requests that are not complete: in MPI's calls, data moves."""
        self._open = [request for request in self._open if not request.Test()]
