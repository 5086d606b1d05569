"""Limit the memory of a web server's incomplete requests, as it reads a body before it authenticates the sender."""

from __future__ import annotations

from tornado.http1connection import HTTP1Connection
from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPMessageDelegate

MAX_REQUEST_BYTES, MAX_TOTAL_BYTES = 32 << 20, 96 << 20  # bytes per request, and of all requests at a time
BODY_TIMEOUT_SECONDS = 30.0  # for a body to arrive


class RequestLimiter:
    """Request limits of one server."""

    def __init__(self, server: HTTPServer):
        self.held, self._start = 0, server.start_request
        server.conn_params.max_body_size, server.conn_params.body_timeout = MAX_REQUEST_BYTES, BODY_TIMEOUT_SECONDS
        server.start_request = self.start_request

    def start_request(self, connection: object, request: HTTP1Connection) -> HTTPMessageDelegate:
        """Handle a new request in place of the server's own method."""
        return _CountedRequest(self, self._start(connection, request), request)


class _CountedRequest(HTTPMessageDelegate):
    """Forward a request, and count its bytes until it is complete."""

    def __init__(self, bound: RequestLimiter, to: HTTPMessageDelegate, request: HTTP1Connection):
        self._bound, self._to, self._request, self._mine = bound, to, request, 0

    def headers_received(self, start_line, headers):
        return self._to.headers_received(start_line, headers)

    def data_received(self, chunk: bytes):
        self._mine += len(chunk)
        self._bound.held += len(chunk)
        if self._bound.held > MAX_TOTAL_BYTES:
            self._request.close()
            self.on_connection_close()
            return None
        return self._to.data_received(chunk)

    def finish(self) -> None:
        self._release()
        self._to.finish()

    def on_connection_close(self) -> None:
        self._release()
        self._to.on_connection_close()

    def _release(self) -> None:
        self._bound.held -= self._mine
        self._mine = 0
