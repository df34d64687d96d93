"""Addresses of servers, and the transports that connect to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from tidal_client.errors import InvalidArgument
from tidal_client.transports import AsyncTransport, Transport


@dataclass(frozen=True, slots=True)
class Address:
    """Protocol and address of a server."""

    protocol: Literal["http", "grpc"]
    #: ``host:port``
    location: str

    def connect(self) -> Transport:
        """Return a blocking transport; it connects on the first request."""
        # Importing a protocol's library takes a large part of a second, so only the used one is imported.
        if self.protocol == "grpc":
            from tidal_client.transports.grpc import GrpcTransport

            return GrpcTransport(self.location)
        from tidal_client.transports.http import HttpTransport

        return HttpTransport(self.location)

    def connect_async(self) -> AsyncTransport:
        """Return a transport for the running event loop; it connects on the first request."""
        if self.protocol == "grpc":
            from tidal_client.transports.grpc import AsyncGrpcTransport

            return AsyncGrpcTransport(self.location)
        from tidal_client.transports.http_aio import AsyncHttpTransport

        return AsyncHttpTransport(self.location)


def connect(addresses: Sequence[Address], retries: int, restored: Callable[[], None]) -> Transport:
    """Return a blocking transport to one or several servers; it connects on the first request.

    Args:
        addresses: Addresses of the servers.
        retries: Maximum number of retries of a call to several servers, whose transport retries by itself.
        restored: Called when one of several servers that could not be reached answers again.
    """
    if len(addresses) == 1:
        return addresses[0].connect()
    from tidal_client.transports.balanced import BalancedTransport

    return BalancedTransport([each.connect() for each in addresses], retries, restored)


def connect_async(addresses: Sequence[Address], retries: int, restored: Callable[[], None]) -> AsyncTransport:
    """Return a transport to one or several servers for the running event loop; see `connect`."""
    if len(addresses) == 1:
        return addresses[0].connect_async()
    from tidal_client.transports.balanced_aio import AsyncBalancedTransport

    return AsyncBalancedTransport([each.connect_async() for each in addresses], retries, restored)


def parse_urls(url: str | Sequence[str]) -> list[Address]:
    """Parse one URL, or each of several; see `parse_url`.

    Raises:
        InvalidArgument: A URL has another form or occurs twice, or there is none.
    """
    urls = [url] if isinstance(url, str) else list(url)
    if not urls:
        raise InvalidArgument("url: expected a URL or several, got an empty list")
    addresses = [parse_url(each) for each in urls]
    for number, address in enumerate(addresses):
        if address in addresses[:number]:
            raise InvalidArgument(f"url '{urls[number]}' is given twice; give each server once")
    return addresses


def parse_url(url: str) -> Address:
    """Parse ``http://HOST:PORT`` or ``grpc://HOST:PORT``.

    Raises:
        InvalidArgument: The URL has another form.
    """
    expected = f"url '{url}': expected http://HOST:PORT or grpc://HOST:PORT"
    if "://" not in url:
        raise InvalidArgument(f"{expected}; did you mean http://{url} or grpc://{url}?")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidArgument(f"{expected} ({error})") from None
    if parts.scheme in ("https", "grpcs"):
        raise InvalidArgument(f"{expected}; the client does not support TLS: use a port without TLS")
    if parts.scheme not in ("http", "grpc") or not host or not port:
        raise InvalidArgument(expected)
    if parts.path not in ("", "/") or parts.query or parts.fragment or parts.username:
        raise InvalidArgument(f"{expected} without path, query or user name")
    return Address("grpc" if parts.scheme == "grpc" else "http", parts.netloc)
