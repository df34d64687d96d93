"""Requests that schemathesis generates from the gateway's OpenAPI description, valid and invalid ones."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import httpx
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode

from reliability.fuzzing.gateway_sending import CLOSED, SILENT, FuzzResult

_TIMEOUT_S = 60.0


def send_generated(url: str, count: int, models: Sequence[str], seed_value: int, key: str) -> FuzzResult:
    """Send generated requests to every operation.

    Args:
        url: URL of the gateway.
        count: Number of requests, about the same number for each operation and mode.
        models: Names of models that are served; generated names would all be refused.
        seed_value: Seed of the requests.
        key: API key, which about a tenth of the requests do not send.
    """
    own = {"Authorization": f"Bearer {key}"}
    document = httpx.get(f"{url}/openapi.json", timeout=_TIMEOUT_S, headers=own).json()
    schema = schemathesis.openapi.from_dict(document)
    operations: list[Any] = [each.ok() for each in schema.get_all_operations()]  # type: ignore[union-attr]
    modes = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
    each_count = -(-count // (len(operations) * len(modes)))
    found = FuzzResult()
    with httpx.Client(base_url=url, timeout=_TIMEOUT_S) as client, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for operation in operations:
            for mode in modes:
                _send_operation(client, operation, mode, each_count, models, seed_value, key, found)
    return found


def _send_operation(
    client: httpx.Client,
    operation: Any,
    mode: GenerationMode,
    count: int,
    models: Sequence[str],
    seed_value: int,
    key: str,
    found: FuzzResult,
) -> None:
    what = f"{mode.value} {operation.method.upper()} {operation.path}"

    @seed(seed_value)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(
        case=operation.as_strategy(generation_mode=mode),
        model=st.sampled_from([*models, None]),
        with_key=st.sampled_from([True] * 9 + [False]),
    )
    def send(case: Any, model: str | None, with_key: bool) -> None:
        if model is not None:
            if isinstance(case.body, dict) and "model" in case.body:
                case.body["model"] = model
            if case.path_parameters and "model" in case.path_parameters:
                case.path_parameters["model"] = model
        fields = case.as_transport_kwargs(base_url=str(client.base_url))
        headers = {name: value for name, value in dict(fields.get("headers") or {}).items() if name != "Authorization"}
        if with_key:
            headers["Authorization"] = f"Bearer {key}"
        try:
            # Of the library that the cases are for: it encodes forms with any values.
            encoded = requests.Request(**{**fields, "headers": headers}).prepare()
        except Exception:
            return  # no client can send it
        try:
            response = client.request(
                str(encoded.method), str(encoded.url), headers=list(encoded.headers.items()), content=encoded.body
            )
        except (httpx.InvalidURL, httpx.LocalProtocolError, UnicodeEncodeError, ValueError, TypeError):
            return  # no client can send it
        except httpx.TimeoutException:
            found.add(what, SILENT)
        except httpx.TransportError as error:
            found.add(what, CLOSED if "disconnected" in str(error) else SILENT, str(error).encode())
        else:
            found.add(what, str(response.status_code), response.content)

    try:
        send()
    except Exception as error:  # hypothesis found no request of this kind, such as an invalid one without parameters
        if type(error).__name__ not in ("Unsatisfiable", "FailedHealthCheck"):
            raise
