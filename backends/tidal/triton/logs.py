"""Python's logging into Triton's log."""

from __future__ import annotations

import logging

import triton_python_backend_utils as pb_utils


class _TritonHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        if record.levelno >= logging.ERROR:
            pb_utils.Logger.log_error(text)
        elif record.levelno >= logging.WARNING:
            pb_utils.Logger.log_warn(text)
        elif record.levelno >= logging.INFO:
            pb_utils.Logger.log_info(text)
        else:
            pb_utils.Logger.log_verbose(text)


def model_logger(model: str, version: int) -> logging.Logger:
    """A logger whose lines name the model and stand in Triton's log."""
    logger = logging.getLogger(f"tidal.{model}.{version}")
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    if not logger.handlers:
        handler = _TritonHandler()
        handler.setFormatter(logging.Formatter(f"{model} version {version}: %(message)s"))
        logger.addHandler(handler)
    return logger
