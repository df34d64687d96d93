"""The server that the client's subcommands send requests to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from tidal_client.errors import ConnectionFailed, InvalidArgument, RequestError
from tidal_client.local_servers import choose_url, running_servers
from tidal_client.transports.addresses import parse_urls

Url = Annotated[
    list[str] | None,
    typer.Option(
        "--url",
        "-u",
        help="Server: grpc://HOST:PORT or http://HOST:PORT; repeat it for several servers with the same models. "
        "Default: the running `tidal serve`, else port 8001 (gRPC) or 8000 (HTTP) of this machine.",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True)
class TargetServer:
    """URLs of one server or several, and whether it is the default because no server is running."""

    urls: tuple[str, ...]
    is_default: bool

    @property
    def url(self) -> str:
        """The URLs for messages and reports."""
        return ", ".join(self.urls)

    def message(self, error: RequestError) -> str:
        """Return an error's code and message, with a remedy if no server is running."""
        text = f"{error.code}: {error}"
        if self.is_default and isinstance(error, ConnectionFailed):
            return f"{text}; no server of this user is running: start one with `tidal serve` or give --url"
        return text


def choose_target(urls: Sequence[str] | None, protocol: Literal["http", "grpc"]) -> TargetServer:
    """Return the servers of --url, else the only running one, else the default port of this machine.

    Args:
        urls: Values of --url; None or empty if it was not given.
        protocol: Protocol to use unless --url names one.

    Raises:
        typer.BadParameter: A URL is malformed, or several servers are running and --url was not given.
    """
    try:
        found = tuple(urls) if urls else (choose_url(protocol),)
        parse_urls(found)
    except InvalidArgument as error:
        raise typer.BadParameter(str(error), param_hint="--url") from None
    return TargetServer(found, is_default=not urls and not running_servers())
