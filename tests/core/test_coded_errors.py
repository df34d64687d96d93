"""Errors parsed from messages of another model; messages of the server are those of tritonserver 2.51."""

from __future__ import annotations

import pytest

from tidal.errors import Cancelled, Internal, InvalidArgument, NotFound, TidalError, Unavailable, Unsupported
from tidal.service import ModelUnavailable
from tidal.serving.coded_errors import parse_error, with_code

SERVER = "Model m - Error when running inference: "


@pytest.mark.parametrize(
    ("message", "crashed"),
    [
        (f"{SERVER}Failed for execute the inference request. Model 'm' is not ready.", False),
        (f"{SERVER}Request for unknown model: 'm' version 1 is not at ready state", False),
        (
            f"{SERVER}[request id: <id_unknown>] Server is stopping, scheduler for model has stopped accepting new "
            "inference requests",
            False,
        ),
        ("Stub process 'm_0' is not healthy.", True),
        ("Stub process is not healthy.", True),
    ],
)
def test_a_model_that_is_temporarily_unavailable(message: str, crashed: bool) -> None:
    error = parse_error("m", message)
    assert isinstance(error, ModelUnavailable)
    assert error.died is crashed


def test_a_server_that_ends() -> None:
    error = parse_error("m", f"{SERVER}Server not ready")
    assert isinstance(error, Unavailable)
    assert not isinstance(error, ModelUnavailable)


@pytest.mark.parametrize(
    "message",
    [
        "the device is not ready",
        "Model 'm' is not ready.",
        "Failed for execute the inference request. Model 'm' is not ready.",
        "the engine failed: Stub process 'm_0' is not healthy.",
        "Server not ready",
        "Failed to process the request(s) for model 'm_0', message: ValueError: Server not ready\n\nAt:\n  model.py(8)",
        f"{SERVER}unexpected inference input 'is not ready' for model 'm'",
        "[ODD] text",
    ],
)
def test_other_messages_are_permanent_failures(message: str) -> None:
    error = parse_error("m", message)
    assert type(error) is Internal
    assert message.removeprefix(SERVER) in str(error)


@pytest.mark.parametrize("kind", [InvalidArgument, NotFound, Unavailable, Cancelled, Unsupported, Internal])
@pytest.mark.parametrize("text", ["[1, 2] is not ready", "two\nlines", "Stub process 'm_0' is not healthy."])
def test_a_models_own_error_keeps_its_code(kind: type[TidalError], text: str) -> None:
    error = parse_error("m", with_code(kind(text)))
    assert type(error) is kind
    assert str(error) == text
