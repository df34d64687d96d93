"""What TensorRT says when a call fails: its calls return nothing then, and the reason goes to a logger."""

from __future__ import annotations

from collections import deque

import tensorrt as trt

_SERIOUS = (trt.ILogger.Severity.ERROR, trt.ILogger.Severity.INTERNAL_ERROR)


class Messages(trt.ILogger):  # type: ignore[misc]  # where TensorRT is not installed its classes have no type
    """Keeps the newest errors for the exception that follows."""

    def __init__(self) -> None:
        trt.ILogger.__init__(self)
        self._errors: deque[str] = deque(maxlen=4)

    def log(self, severity: trt.ILogger.Severity, msg: str) -> None:
        """Called by TensorRT, from any of its threads."""
        if severity in _SERIOUS:
            self._errors.append(" ".join(msg.split()))

    def reason(self) -> str:
        """The newest errors, the first that came first."""
        return "; ".join(self._errors)[:500] or "it gives no reason"
