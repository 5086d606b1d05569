"""`Request`: the handle that nonblocking calls return."""

from __future__ import annotations

from course_lib.collectives.progress.operations import Operation, deferred_interrupts, progress_state
from course_lib.collectives.transport import Transport


class Request:
    """Handle of a nonblocking message or collective.

    Parameters
    ----------
    transport : Transport
    operation : Operation or None
        None if there is nothing to do, as for MPI.PROC_NULL.
    """

    def __init__(self, transport: Transport, operation: Operation | None):
        self._transport, self._operation = transport, operation
        progress_state.open_requests += operation is not None

    def __getattr__(self, name: str):
        if name.startswith("_"):
            raise AttributeError(name)
        if name in ("wait", "test", "waitall"):
            raise AttributeError(f"a Request has {name.capitalize()}, with a capital letter, like the call that returned it.")
        raise AttributeError(f"a Request has Wait(), Test() and Waitall(requests), and no {name}.")

    def _close(self) -> Operation:
        operation, self._operation = self._operation, None
        progress_state.open_requests -= 1
        return operation

    def Test(self) -> bool:
        """Return whether the operation is complete, and advance it.

        Raises
        ------
        CollectiveError
            The operation has failed.
        """
        with deferred_interrupts:
            if self._operation is not None and self._transport.test(self._operation):
                operation = self._close()
                progress_state.in_flight.pop(operation, None)
                if operation.error is not None:
                    raise operation.error
        return self._operation is None

    def Wait(self) -> None:
        """Block until the operation is complete.

        Raises
        ------
        CollectiveError
            MismatchError if the ranks make different calls, DeadlockError if the operation can no longer complete.
        """
        if self._operation is not None:
            with deferred_interrupts:
                self._transport.wait(self._close())

    @staticmethod
    def Waitall(requests: list[Request]) -> None:
        """Block until all of the requests are complete."""
        for request in requests:
            request.Wait()
