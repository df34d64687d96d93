"""What one worker of the gateway shares among its requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidal_gateway.edge.access_log import AccessLog
from tidal_gateway.keys.rates import RateTable
from tidal_gateway.keys.store import KeyStore
from tidal_gateway.live.sampler import Sampler
from tidal_gateway.settings import GatewaySettings, parse_tool_format
from tidal_gateway.tools.formats import TOOL_FORMATS, ToolFormat, detect_format
from tidal_gateway.upstream.pool import ServerPool

if TYPE_CHECKING:
    from tidal_gateway.tracing import Tracing


@dataclass(slots=True)
class Gateway:
    """State of a worker.

    Attributes:
        settings: Settings of the gateway.
        pool: Servers behind it.
        keys: API keys; None: requests need none.
        rates: Rates of the keys, shared by all workers; None without keys.
        log: The access log; None for none.
        tracing: Traces of requests; None for none.
        draining: Whether it is about to stop: load balancers should send requests elsewhere.
        sampler: Readings for the console; None if it is off.
        in_flight: Number of requests without an answer.
    """

    settings: GatewaySettings
    pool: ServerPool
    keys: KeyStore | None = None
    rates: RateTable | None = None
    log: AccessLog | None = None
    tracing: Tracing | None = None
    draining: bool = False
    sampler: Sampler | None = None
    in_flight: int = 0

    def tool_format(self, model: str) -> ToolFormat | None:
        """Format in which a model writes calls of tools, of the settings or its chat template; None if unknown."""
        named = dict(map(parse_tool_format, self.settings.tool_format))
        if model in named:
            return TOOL_FORMATS[named[model]]
        return detect_format(self.pool.report(model).chat_template)
