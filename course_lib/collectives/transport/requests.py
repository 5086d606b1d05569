"""Requests: handles of messages and collectives that have been started."""

from __future__ import annotations

from course_lib.collectives.progress.operations import Operation, deferred_interrupts, progress_state
from course_lib.collectives.transport import Transport


class Request:
    """The handle of something that has been started.

    Parameters
    ----------
    transport : Transport
    operation : Operation or None
        None where there is nothing to do.
    """

    def __init__(self, transport: Transport, operation: Operation | None):
        self._transport, self._operation = transport, operation
        progress_state.open_requests += operation is not None

    def __getattr__(self, name: str):
        if name.startswith("_"):
            raise AttributeError(name)
        if name in ("wait", "test", "waitall"):
            raise AttributeError(f"a Request has {name.capitalize()}, with a capital letter, as the call that it comes from.")
        raise AttributeError(f"a Request has Wait(), Test() and Waitall(requests), and no {name}.")

    def _close(self) -> Operation:
        operation, self._operation = self._operation, None
        progress_state.open_requests -= 1
        return operation

    def Test(self) -> bool:
        """Return whether it has ended; also lets it go on.

        Raises
        ------
        CollectiveError
            It has ended without success.
        """
        with deferred_interrupts:
            if self._operation is not None and self._transport.test(self._operation):
                operation = self._close()
                progress_state.in_flight.pop(operation, None)
                if operation.error is not None:
                    raise operation.error
        return self._operation is None

    def Wait(self) -> None:
        """Wait until it has ended.

        Raises
        ------
        CollectiveError
            It cannot end, or the ranks do not make the same call.
        """
        if self._operation is not None:
            with deferred_interrupts:
                self._transport.wait(self._close())

    @staticmethod
    def Waitall(requests: list[Request]) -> None:
        """Wait until all of them have ended."""
        for request in requests:
            request.Wait()
