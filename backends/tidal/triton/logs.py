"""Send Python's logging to Triton's log."""

from __future__ import annotations

import logging

import triton_python_backend_utils as pb_utils


class _TritonHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        # A failure to log must not end the thread that logs.
        try:
            self._write(record.levelno, self.format(record))
        except Exception:
            self.handleError(record)

    def _write(self, level: int, text: str) -> None:
        if level >= logging.ERROR:
            pb_utils.Logger.log_error(text)
        elif level >= logging.WARNING:
            pb_utils.Logger.log_warn(text)
        elif level >= logging.INFO:
            pb_utils.Logger.log_info(text)
        else:
            pb_utils.Logger.log_verbose(text)


def model_logger(model: str, version: int) -> logging.Logger:
    """Return a logger that writes to Triton's log, with the model's name in each line."""
    logger = logging.getLogger(f"tidal.{model}.{version}")
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    if not logger.handlers:
        handler = _TritonHandler()
        handler.setFormatter(logging.Formatter(f"{model} version {version}: %(message)s"))
        logger.addHandler(handler)
    return logger
