"""Invalid requests are answered INVALID_ARG with what is wrong and what is accepted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.boundary.clients import ProbeClient
from tidal_client.errors import RequestError

pytestmark = pytest.mark.server

ACTION = np.array([[b"reply"]], object)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"latency": 5}, "unknown request option 'latency': did you mean 'latency_ms'?"),
        ({"zzz": 5}, "unknown request option 'zzz': accepted: "),
        ({"latency_ms": "soon"}, "request option 'latency_ms': expected a number, got the text 'soon'"),
        ({"latency_ms": True}, "request option 'latency_ms': expected a number, got a boolean"),
        ({"latency_ms": 0}, "request option 'latency_ms': input should be greater than 0"),
        ({"latency_ms": "nan"}, "request option 'latency_ms': expected a finite number"),
        ({"top_k": 1.5}, "request option 'top_k': expected a whole number, got 1.5"),
        ({"task": ""}, "request option 'task': string should have at least 1 character"),
        ({"task": "x" * 1000}, "request option 'task': string should have at most 256 characters"),
        ({"task": "x" * 10_000_000}, "characters as JSON; accepted are at most 2097152"),
        ({"x" * 10_000_000: 1}, "characters as JSON; accepted are at most 2097152"),
        (
            {f"option_{number:0250}": number for number in range(10_000)},
            "characters as JSON; accepted are at most 2097152",
        ),
        ({"stop": "[" * 100_000}, "request option 'stop': expected a JSON list of texts"),
    ],
)
def test_options(ask: ProbeClient, options: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError) as refused:
        ask("reply", **options)
    assert refused.value.code == "INVALID_ARG"
    assert message in str(refused.value)


def test_acceptable_options(ask: ProbeClient) -> None:
    assert ask("reply", latency_ms="15000", utility=0.5, seed=7, stop="x")["echo"].item() == b"reply"


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"actoin": ACTION}, "actoin"),
        ({"action": ACTION, "other": ACTION}, "other"),
        ({"action": np.array([b"reply"], object)}, "shape"),
        ({"action": np.array([[b"a", b"b"]], object)}, "shape"),
        ({"action": np.zeros((1, 1), np.int32)}, "data-type"),
        ({"action": ACTION, "value": np.zeros((1, 2), np.int64)}, "data-type"),
        ({"action": ACTION, "value": np.zeros((2, 2), np.int32)}, "batch"),
        ({"action": np.array([[b"reply"]] * 65, object)}, "batch"),
        ({"action": np.empty((0, 1), object)}, "0"),
    ],
)
def test_inputs(ask: ProbeClient, inputs: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message) as refused:
        ask.raw("probe", inputs)
    assert refused.value.code == "INVALID_ARG", refused.value


def test_an_unknown_output(ask: ProbeClient) -> None:
    with pytest.raises(RequestError, match="'ecco'") as refused:
        ask("reply", outputs=["ecco"])
    assert refused.value.code == "INVALID_ARG"


def test_more_rows_than_the_capacity_of_the_queue(ask: ProbeClient) -> None:
    with pytest.raises(RequestError, match="5 rows; accepted are up to max_queue_size, 4") as refused:
        ask(["reply"] * 5, model="small")
    assert refused.value.code == "INVALID_ARG"
