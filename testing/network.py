"""A network connection that can be cut: a proxy that then passes nothing on, and closes nothing either."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Link:
    """A TCP proxy to one address.

    Args:
        target: `host:port` that connections are passed on to.

    Attributes:
        address: `host:port` of the proxy.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._whole = threading.Event()
        self._whole.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = [self._listener]
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, name="link", daemon=True).start()

    def cut(self) -> None:
        """Pass nothing on until `heal`."""
        self._whole.clear()

    def heal(self) -> None:
        """Pass on what has waited, and everything after it."""
        self._whole.set()

    def close(self) -> None:
        """Close all connections."""
        self._whole.set()
        for each in self._open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                here, _ = self._listener.accept()
                self._whole.wait()
                there = socket.create_connection(self._target)
                self._open += [here, there]
                for source, sink in ((here, there), (there, here)):
                    threading.Thread(target=self._pass_on, args=(source, sink), name="link", daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self._whole.wait()
                sink.sendall(data)
            sink.shutdown(socket.SHUT_RDWR)


@contextmanager
def cuttable(target: str) -> Iterator[Link]:
    """Pass connections on to an address until the block ends.

    Args:
        target: `host:port`.
    """
    link = Link(target)
    try:
        yield link
    finally:
        link.close()
