"""Complete a model's config, so that a config.pbtxt of one line is enough.

Triton runs this at load in a separate process per model: import nothing heavy here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

MAX_BATCH_SIZE = 64


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


def complete_config(
    config: Any,
    inputs: Iterable[TensorConfig],
    outputs: Iterable[TensorConfig],
    *,
    dynamic_batching: bool = True,
    decoupled: bool = False,
) -> Any:
    """Add what a config lacks: tensors, the batch size and dynamic batching.

    Settings of the operator are kept. Triton's dynamic batching only passes queries on in groups, which is cheaper
    under load; Tidal's service queues and batches them afterwards.

    Args:
        config: Triton's model config.
        inputs: Inputs to add if the config has none.
        outputs: Outputs to add if the config has none.
        dynamic_batching: Whether to add dynamic batching if the config has no inputs.
        decoupled: Whether the model may send any number of responses per request; it is then not batched by Triton.

    Returns:
        The config.

    Raises:
        ValueError: The config of a decoupled model has a batch size; the model's load fails with this reason.
    """
    have = config.as_dict()
    if not have["input"]:
        for tensor in inputs:
            config.add_input(tensor.as_dict())
    if not have["output"]:
        for tensor in outputs:
            config.add_output(tensor.as_dict())
    if decoupled:
        if have["max_batch_size"]:
            raise ValueError(f"config.pbtxt has max_batch_size {have['max_batch_size']}; this model accepts only 0")
        config.set_model_transaction_policy({"decoupled": True})
        return config
    if not have["max_batch_size"]:
        config.set_max_batch_size(MAX_BATCH_SIZE)
    if dynamic_batching and not have["input"]:
        config.set_dynamic_batching()
    return config
