"""The server that the client's subcommands send requests to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from tidal_client.errors import ConnectionFailed, InvalidArgument, RequestError
from tidal_client.local_servers import choose_url, running_servers
from tidal_client.transports import parse_url

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        "-u",
        help="Server: grpc://HOST:PORT or http://HOST:PORT. Default: the running `tidal serve`, else port 8001 (gRPC) "
        "or 8000 (HTTP) of this machine.",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True)
class TargetServer:
    """A server's URL, and whether it is the default because no server is running."""

    url: str
    is_default: bool

    def message(self, error: RequestError) -> str:
        """Return an error's code and message, with a remedy if no server is running."""
        text = f"{error.code}: {error}"
        if self.is_default and isinstance(error, ConnectionFailed):
            return f"{text}; no server of this user is running: start one with `tidal serve` or give --url"
        return text


def choose_target(url: str | None, protocol: Literal["http", "grpc"]) -> TargetServer:
    """Return the server of --url, else the only running one, else the default port of this machine.

    Args:
        url: Value of --url; None if it was not given.
        protocol: Protocol to use unless --url names one.

    Raises:
        typer.BadParameter: The URL is malformed, or several servers are running and --url was not given.
    """
    try:
        found = choose_url(protocol) if url is None else url
        parse_url(found)
    except InvalidArgument as error:
        raise typer.BadParameter(str(error), param_hint="--url") from None
    return TargetServer(found, is_default=url is None and not running_servers())
