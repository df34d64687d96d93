"""Options that a user passes to tritonserver: what they mean for Tidal, and which are not accepted."""

from __future__ import annotations

from collections.abc import Sequence

from tidal.errors import InvalidArgument

#: Options of tritonserver that an option of `tidal serve` sets, with that option.
_OWN = {
    "--http-address": "--host",
    "--grpc-address": "--host",
    "--metrics-address": "--host",
    "--http-port": "--http-port",
    "--grpc-port": "--grpc-port",
    "--metrics-port": "--metrics-port",
    "--exit-timeout-secs": "--exit-timeout",
    "--http-max-input-size": "--http-max-input-size",
    "--load-model": "--model",
}
#: Options that `tidal serve` sets itself, with the reason.
_DECIDED = {
    "--model-repository": "its repository is the first argument of tidal serve",
    "--model-store": "its repository is the first argument of tidal serve",
    "--model-control-mode": "tidal serve loads and reloads models itself (mode 'explicit')",
    "--backend-directory": "it is assembled at the start; tidal serve --assemble writes one to keep",
    "--exit-on-error": "tidal serve reports which model does not load and why",
}
#: Endpoints that `tidal serve` needs.
_NEEDED = ("--allow-http", "--allow-grpc", "--allow-metrics")
_GRPC_TLS = ("--grpc-use-ssl", "--grpc-use-ssl-mutual")
_HTTP_TLS = ("--http-use-ssl", "--http-use-tls", "--https-port", "--http-ssl")
_TRUE, _FALSE = ("true", "1"), ("false", "0")


def check_extra(extra: Sequence[str]) -> None:
    """Refuse options with which `tidal serve` could not reach the server that it starts.

    Args:
        extra: Command-line words for tritonserver.

    Raises:
        InvalidArgument: Such an option is given; the message names the option of `tidal serve` to use instead.
    """
    for name, value in _pairs(extra):
        if name in _OWN:
            raise InvalidArgument(f"{name} cannot be passed to tritonserver: use {_OWN[name]} of tidal serve")
        if name in _DECIDED:
            raise InvalidArgument(f"{name} cannot be passed to tritonserver: {_DECIDED[name]}")
        if name in _NEEDED and value.lower() in _FALSE:
            raise InvalidArgument(f"{name}={value} cannot be passed to tritonserver: tidal serve needs that endpoint")
        if name.startswith(_HTTP_TLS):
            raise InvalidArgument(
                f"{name} is not an option of tritonserver, whose HTTP endpoint has no TLS: put a proxy that "
                "terminates TLS in front of it, or use gRPC with --grpc-use-ssl=true --grpc-server-cert=FILE "
                "--grpc-server-key=FILE"
            )


def grpc_tls(extra: Sequence[str]) -> bool:
    """Whether the gRPC endpoint accepts TLS connections only."""
    given = dict(_pairs(extra))
    return any(given.get(name, "false").lower() in _TRUE for name in _GRPC_TLS)


def _pairs(extra: Sequence[str]) -> list[tuple[str, str]]:
    """Options as (name, value), written with `=` or as two words; the last one of a name applies."""
    pairs: list[tuple[str, str]] = []
    for word in extra:
        if word.startswith("--"):
            name, _, value = word.partition("=")
            pairs.append((name, value))
        elif pairs and not pairs[-1][1]:
            pairs[-1] = (pairs[-1][0], word)
    return pairs
