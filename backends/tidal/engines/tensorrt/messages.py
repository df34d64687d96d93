"""Collects TensorRT's error messages: a failing call returns nothing and logs its reason."""

from __future__ import annotations

from collections import deque

import tensorrt as trt

_SERIOUS = (trt.ILogger.Severity.ERROR, trt.ILogger.Severity.INTERNAL_ERROR)


class Messages(trt.ILogger):  # type: ignore[misc]  # where TensorRT is not installed its classes have no type
    """A logger that keeps the newest errors for the exception that follows."""

    def __init__(self) -> None:
        trt.ILogger.__init__(self)
        self._errors: deque[str] = deque(maxlen=4)

    def log(self, severity: trt.ILogger.Severity, msg: str) -> None:
        """Called by TensorRT, from any of its threads."""
        if severity in _SERIOUS:
            self._errors.append(" ".join(msg.split()))

    def reason(self) -> str:
        """The newest errors in the order in which they occurred."""
        return "; ".join(self._errors)[:500] or "no reason was logged"
