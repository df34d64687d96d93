"""Serving the metrics of a controller to Prometheus."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, start_http_server

from tidal.errors import InvalidArgument, Unavailable


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
