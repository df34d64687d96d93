"""Errors that are recognised by their text, which Triton prefixes with the place of the error."""

from __future__ import annotations

import pytest

from tidal_client.errors import (
    Cancelled,
    ConnectionFailed,
    InvalidArgument,
    NotFound,
    ServerError,
    Unavailable,
    from_coded,
    from_grpc,
    from_http,
)

NESTED = "in ensemble 'outer', in ensemble 'both', "
WHERE = ["", "[request id: q 7] ", "in ensemble 'both', ", f"[request id: q 7] {NESTED}"]


@pytest.mark.parametrize("where", WHERE)
def test_a_cancelled_request(where: str) -> None:
    assert isinstance(from_http(400, f"{where}the client cancelled the request while it waited"), Cancelled)
    assert isinstance(from_http(400, f"{where}text_input row 0 says: request was cancelled"), InvalidArgument)


@pytest.mark.parametrize("where", WHERE)
def test_an_error_with_its_code(where: str) -> None:
    error = from_coded(f"{where}[UNAVAILABLE] the deadline cannot be met")
    assert isinstance(error, Unavailable)
    assert str(error) == "the deadline cannot be met"
    assert from_coded(f"{where}no code [NOT_FOUND] here") is None
    assert isinstance(from_coded(f"{where}[NOT_FOUND] a\nb"), NotFound)


def test_a_stream_that_cannot_be_written_to_has_lost_its_connection() -> None:
    assert isinstance(from_grpc("INTERNAL", "Internal error from Core"), ConnectionFailed)
    assert isinstance(from_grpc("INTERNAL", "the engine says: Internal error from Core"), ServerError)
