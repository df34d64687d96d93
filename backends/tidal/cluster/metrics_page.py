"""Where an actor serves its metrics: an address that stays over its restarts."""

from __future__ import annotations

import sys
import threading
from contextlib import ExitStack
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from tidal.controller.metrics_page import published
from tidal.errors import TidalError


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
