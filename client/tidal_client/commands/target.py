"""Which server the subcommands of the client ask."""

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
        help="Server: grpc://HOST:PORT or http://HOST:PORT. Default: the `tidal serve` that runs, else port 8001 "
        "(gRPC) or 8000 (HTTP) of this machine.",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True)
class TargetServer:
    """A server's URL, and whether it is only the default because no server was found."""

    url: str
    is_default: bool

    def message(self, error: RequestError) -> str:
        """Code and sentence of an error, with what to do where nothing answers at the default port."""
        text = f"{error.code}: {error}"
        if self.is_default and isinstance(error, ConnectionFailed):
            return f"{text}; no server of this user is running: start one with tidal serve, or name one by --url"
        return text


def choose_target(url: str | None, protocol: Literal["http", "grpc"]) -> TargetServer:
    """The named server, else the only running one, else the default port.

    Raises:
        typer.BadParameter: the URL is of another form, or several servers run and none was named.
    """
    try:
        found = choose_url(protocol) if url is None else url
        parse_url(found)
    except InvalidArgument as error:
        raise typer.BadParameter(str(error), param_hint="--url") from None
    return TargetServer(found, is_default=url is None and not running_servers())
