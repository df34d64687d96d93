"""How a tritonserver and a gateway are started so that requests are traced."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from tidal.errors import InvalidArgument
from tidal.tracing.settings import ENDPOINT_VARIABLE, INSTALL, TRACES_ENDPOINT_VARIABLE, is_installed, traces_url

_SAMPLER = "OTEL_TRACES_SAMPLER"
# Triton passes headers of these names on as request parameters.
_FORWARD = "[Tt]raceparent"
_FORWARD_OPTIONS = ("--http-header-forward-pattern", "--grpc-header-forward-pattern")


@dataclass(frozen=True, slots=True)
class Traces:
    """Traces of the requests of a server.

    Attributes:
        environment: Variables of OpenTelemetry for the models' processes.
        gateway: Settings of a gateway beside the server, as environment variables.
    """

    environment: Mapping[str, str]
    gateway: Mapping[str, str]

    def options(self, extra: Sequence[str]) -> list[str]:
        """Return options with which tritonserver passes the trace context of clients on.

        Args:
            extra: Options of the user, which replace these.
        """
        return [
            f"{name}={_FORWARD}" for name in _FORWARD_OPTIONS if not any(each.split("=")[0] == name for each in extra)
        ]


def choose_traces(endpoint: str | None, ratio: float | None) -> Traces | None:
    """Return the traces of a server; None if requests are not traced.

    Args:
        endpoint: URL of the receiver, with or without the path `/v1/traces`; None for that of the environment.
        ratio: Share of the requests without a trace context that are traced; None for that of the environment.

    Raises:
        InvalidArgument: The URL is not accepted, packages are missing, or there is a ratio and no receiver.
    """
    if endpoint is None:
        url = traces_url()
        if url is None:
            if ratio is not None:
                raise InvalidArgument("--trace-ratio requires --otlp-endpoint")
            return None
    else:
        if urlsplit(endpoint).scheme not in ("http", "https") or not urlsplit(endpoint).netloc:
            raise InvalidArgument(f"--otlp-endpoint is '{endpoint}'; expected a URL with http:// or https://")
        if not is_installed():
            raise InvalidArgument(f"--otlp-endpoint requires packages of OpenTelemetry: {INSTALL}")
        # What the environment says otherwise has less weight than the option.
        url = traces_url({ENDPOINT_VARIABLE: endpoint}) or endpoint
    environment = {TRACES_ENDPOINT_VARIABLE: url}
    if endpoint is not None:
        environment |= {"OTEL_SDK_DISABLED": "false", "OTEL_TRACES_EXPORTER": "otlp"}
    if ratio is not None:
        environment |= {_SAMPLER: "parentbased_traceidratio", f"{_SAMPLER}_ARG": f"{ratio:g}"}
    gateway = {"TIDAL_GATEWAY_OTLP_ENDPOINT": url}
    if ratio is not None:
        gateway["TIDAL_GATEWAY_TRACE_RATIO"] = f"{ratio:g}"
    return Traces(environment, {name: value for name, value in gateway.items() if name not in os.environ})
