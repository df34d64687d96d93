"""Convert Tidal's errors to Triton's."""

from __future__ import annotations

from typing import Any

import triton_python_backend_utils as pb_utils

from tidal.errors import ErrorCode, TidalError
from tidal.serving.coded_errors import with_code

_CODES: dict[ErrorCode, Any] = {
    "INVALID_ARG": pb_utils.TritonError.INVALID_ARG,
    "NOT_FOUND": pb_utils.TritonError.NOT_FOUND,
    "UNAVAILABLE": pb_utils.TritonError.UNAVAILABLE,
    "CANCELLED": pb_utils.TritonError.CANCELLED,
    "UNSUPPORTED": pb_utils.TritonError.UNSUPPORTED,
    "INTERNAL": pb_utils.TritonError.INTERNAL,
}


def error_response(error: TidalError, *, coded: bool = False) -> Any:
    """Return a final response with an error.

    Args:
        error: The error.
        coded: Whether the message has to contain the code, see `tidal.serving.coded_errors`.
    """
    message = with_code(error) if coded else str(error)
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(message, _CODES[error.code]))
