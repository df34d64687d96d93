"""Servers of a test that answer with given bytes."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Listener:
    """A server that passes each connection to a function, on a thread of its own."""

    def __init__(self, serve: Callable[[socket.socket], None]) -> None:
        self._serve, self.connections = serve, list[socket.socket]()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.connections.append(connection)
                threading.Thread(target=self._run, args=(connection,), daemon=True).start()

    def _run(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            self._serve(connection)

    def close(self) -> None:
        for each in (self._listener, *self.connections):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


@contextmanager
def listening(serve: Callable[[socket.socket], None]) -> Iterator[Listener]:
    listener = Listener(serve)
    try:
        yield listener
    finally:
        listener.close()


def answering(*parts: bytes, then_close: bool = False) -> Callable[[socket.socket], None]:
    """Return a function that answers each request with the given parts, sent one after the other."""

    def serve(connection: socket.socket) -> None:
        while connection.recv(1 << 16):
            for part in parts:
                connection.sendall(part)
                time.sleep(0.01)
            if then_close:
                connection.close()
                return

    return serve
