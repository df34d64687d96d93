"""The one place that decides with which config a model is loaded.

Starting, publishing, reloading and supervision all come through here: a config given with a load replaces
config.pbtxt as a whole and stays active, so two callers that disagree would undo each other.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tidal.server.control import ServerControl


def active_config(repository: Path | None, model: str) -> dict[str, Any] | None:
    """The complete config to load a model with; None means the model's own config.pbtxt.

    Args:
        repository: where the model is, or None when only the server knows.
        model: its name.
    """
    return None


def load_model(control: ServerControl, repository: Path | None, model: str) -> None:
    """Load or reload a model with its active config and wait until it serves.

    Raises:
        Internal: Triton's reason; what served before keeps serving.
    """
    control.load(model, active_config(repository, model))


def restart_model(control: ServerControl, repository: Path | None, model: str) -> None:
    """Replace a model's processes although nothing of it changed, which a load alone does not do.

    Raises:
        Internal: Triton's reason; the model is then not served.
    """
    control.unload(model)
    load_model(control, repository, model)
