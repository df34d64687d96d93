"""Completing a model's config, so that a config.pbtxt of one line serves.

Triton runs this in a process of its own for each model at load: import nothing heavy here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

MAX_BATCH_SIZE = 64


@dataclass(frozen=True, slots=True)
class TensorConfig:
    """An input or output as config.pbtxt has it."""

    name: str
    data_type: str
    dims: tuple[int, ...]
    optional: bool = False

    def as_dict(self) -> dict[str, Any]:
        """In the form that Triton's Python API takes."""
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
    """Add what the config lacks: tensors when it names none, the batch size, and dynamic batching.

    What the operator wrote stays. Dynamic batching only hands queries over in groups, which is cheaper under load;
    queueing, deadlines and batching by length happen behind it. A `decoupled` model, which sends any number of
    responses to a request, has neither.

    Raises:
        ValueError: the config has a batch size and the model is decoupled, so that its load fails with the reason.
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
            raise ValueError(f"config.pbtxt has max_batch_size {have['max_batch_size']}; accepted is 0 in this model")
        config.set_model_transaction_policy({"decoupled": True})
        return config
    if not have["max_batch_size"]:
        config.set_max_batch_size(MAX_BATCH_SIZE)
    if dynamic_batching and not have["input"]:
        config.set_dynamic_batching()
    return config
