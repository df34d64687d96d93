"""Serving the metrics of a controller or of an agent to Prometheus."""

from __future__ import annotations

import errno
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, start_http_server

from tidal.errors import InvalidArgument, TidalError, Unavailable


@contextmanager
def published(registry: CollectorRegistry, host: str, port: int | None) -> Iterator[int | None]:
    """Serve metrics on `/metrics` until the block ends, and yield the port.

    Args:
        registry: The metrics.
        host: IPv4 address to listen on.
        port: Port; 0: a free port; None: serve nothing.

    Raises:
        Unavailable: The port is in use, or the address is not one of this machine.
        InvalidArgument: This user may not use the port.
    """
    if port is None:
        yield None
        return
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except PermissionError:
        raise InvalidArgument(f"--metrics-port {port} requires a privileged user: choose a port above 1023") from None
    except OSError as error:
        reason = "is in use: choose another port, or 0 for a free one"
        if error.errno != errno.EADDRINUSE:
            reason = f"cannot be used on --host {host}: {error.strerror or error}"
        raise Unavailable(f"--metrics-port {port} {reason}") from None
    try:
        yield int(server.server_port)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@dataclass(frozen=True, slots=True)
class PageAddress:
    """Address of a page of metrics.

    Attributes:
        host: IPv4 address to listen on.
        port: Port, chosen before the actor starts, so that a restarted one has the same.
    """

    host: str
    port: int

    @property
    def text(self) -> str:
        """`host:port`."""
        return f"{self.host}:{self.port}"


class MetricsPage:
    """Serves metrics at an address, as soon as it is free: metrics must not end what an actor does.

    Args:
        registry: The metrics.
        where: The address; None: serve nothing.
    """

    def __init__(self, registry: CollectorRegistry, where: PageAddress | None) -> None:
        self._registry, self._where = registry, where
        self._serving, self._lock = ExitStack(), threading.Lock()
        self._address, self._error = "", ""

    def serve(self) -> str:
        """Serve if nothing does yet; return `host:port`, empty while the address cannot be used."""
        with self._lock:
            if self._where is not None and not self._address:
                try:
                    port = self._serving.enter_context(published(self._registry, self._where.host, self._where.port))
                except TidalError as error:
                    if str(error) != self._error:  # into the actor's log, once
                        self._error = str(error)
                        print(error, file=sys.stderr)
                else:
                    self._address = f"{self._where.host}:{port}"
            return self._address

    def close(self) -> None:
        """Stop serving."""
        with self._lock:
            self._serving.close()
            self._where, self._address = None, ""
