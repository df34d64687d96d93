"""Collects TensorRT's error messages: a failing call returns nothing and logs its reason.

TensorRT keeps the first logger of a process and ignores all later ones, so there is one.
"""

from __future__ import annotations

from collections import deque

import tensorrt as trt

_SERIOUS = (trt.ILogger.Severity.ERROR, trt.ILogger.Severity.INTERNAL_ERROR)


class Messages(trt.ILogger):  # type: ignore[misc]  # where TensorRT is not installed its classes have no type
    """A logger that keeps the newest errors for the exception that follows; see `MESSAGES`."""

    def __init__(self) -> None:
        trt.ILogger.__init__(self)
        self._errors: deque[str] = deque(maxlen=4)

    def log(self, severity: trt.ILogger.Severity, msg: str) -> None:
        """Called by TensorRT, from any of its threads."""
        if severity in _SERIOUS:
            self._errors.append(" ".join(msg.split()))

    def reason(self) -> str:
        """Take the errors since the last call, at most the newest four, in the order in which they occurred."""
        taken = [self._errors.popleft() for _ in range(len(self._errors))]
        return "; ".join(taken)[:500] or "no reason was logged"


#: The logger of this process.
MESSAGES = Messages()
