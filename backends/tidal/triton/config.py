"""Complete a model's config, so that a config.pbtxt of one line is enough.

Triton runs this at load in a separate process per model: import nothing heavy here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_BATCH_SIZE = 64
_COMMAND = Path("/proc/self/cmdline")


@dataclass(frozen=True, slots=True)
class TensorConfig:
    """An input or output of config.pbtxt.

    Attributes:
        name: Name of the tensor.
        data_type: Triton's type, for example `TYPE_FP32`.
        dims: Shape without the batch axis; -1 for any size.
        optional: Whether requests may leave it out.
    """

    name: str
    data_type: str
    dims: tuple[int, ...]
    optional: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return the form that Triton's Python API takes."""
        entry: dict[str, Any] = {"name": self.name, "data_type": self.data_type, "dims": list(self.dims)}
        return {**entry, "optional": True} if self.optional else entry


def published_task(command: Path = _COMMAND) -> str | None:
    """Return the task in the manifest of the version that is loaded; None if it cannot be read or has none.

    Triton does not pass the version's folder to `auto_complete_config`, but its stub was started with `model.py` in
    this folder as first argument, whether that file exists or not.

    Args:
        command: File with the arguments of this process.
    """
    try:
        arguments = command.read_bytes().split(b"\0")
        manifest = json.loads((Path(arguments[1].decode()).parent / "manifest.json").read_bytes())
        task = manifest["task"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return task if isinstance(task, str) else None


def complete_config(
    config: Any,
    inputs: Iterable[TensorConfig],
    outputs: Iterable[TensorConfig],
    *,
    dynamic_batching: bool = True,
    decoupled: bool = False,
    batched: bool = True,
) -> Any:
    """Add what a config lacks: tensors, the batch size and dynamic batching.

    Settings of the operator are kept. Triton's dynamic batching only passes queries on in groups, which is cheaper
    under load; Tidal's service queues and batches them afterwards.

    Args:
        config: Triton's model config.
        inputs: Inputs to add if the config has none.
        outputs: Outputs to add if the config has none; read only then, so a generator may import what they need.
        dynamic_batching: Whether to add dynamic batching if the config has no inputs.
        decoupled: Whether the model may send any number of responses per request; it is then not batched by Triton.
        batched: Whether the first axis of the tensors is the batch axis.

    Returns:
        The config.

    Raises:
        ValueError: The config has a batch size, and the model has no batch axis; its load fails with this reason.
    """
    have = config.as_dict()  # changes with the config
    has_inputs = bool(have["input"])
    if not has_inputs:
        for tensor in inputs:
            config.add_input(tensor.as_dict())
    if not have["output"]:
        for tensor in outputs:
            config.add_output(tensor.as_dict())
    if decoupled or not batched:
        if have["max_batch_size"]:
            raise ValueError(f"config.pbtxt has max_batch_size {have['max_batch_size']}; this model accepts only 0")
        if decoupled:
            config.set_model_transaction_policy({"decoupled": True})
        return config
    if not have["max_batch_size"]:
        config.set_max_batch_size(MAX_BATCH_SIZE)
    if dynamic_batching and not has_inputs:
        config.set_dynamic_batching()
    return config
