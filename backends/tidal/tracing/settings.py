"""Where spans are sent, from OpenTelemetry's environment variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec

ENDPOINT_VARIABLE = "OTEL_EXPORTER_OTLP_ENDPOINT"
TRACES_ENDPOINT_VARIABLE = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
_PATH = "/v1/traces"
INSTALL = "pip install 'tidal[tracing]'"


def traces_url(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the URL that spans are sent to; None if the environment has none, or switches tracing off.

    Args:
        environment: Environment variables, as OpenTelemetry specifies them.
    """
    off = environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    if off or environment.get("OTEL_TRACES_EXPORTER", "").strip().lower() == "none":
        return None
    own = environment.get(TRACES_ENDPOINT_VARIABLE, "").strip()
    if own:
        return own
    common = environment.get(ENDPOINT_VARIABLE, "").strip().rstrip("/")
    if not common:
        return None
    return common if common.endswith(_PATH) else common + _PATH


def is_installed() -> bool:
    """Whether the packages that send spans are installed."""
    try:
        return find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:
        return False
