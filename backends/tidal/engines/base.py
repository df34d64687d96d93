"""The engine contract: declared shapes, arrays in, arrays out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from tidal.device import DeviceKind
from tidal.engines.entries import EngineKind
from tidal.errors import InvalidArgument

# From the most precise to the least.
Precision = Literal["fp32", "fp16", "bf16", "int8"]

# A fixed size, or the inclusive bounds of a dynamic one.
Dim = int | tuple[int, int]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, dtype and shape of an input or output. In outputs, -1 stands for a size that follows the inputs."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class Artifact:
    """A compiled model on disk and the shapes to open it with.

    `shapes` gives each input's dimensions; one file may be opened with several fixed lengths, or one bounded one.
    """

    kind: EngineKind
    path: Path
    precision: Precision
    shapes: Mapping[str, tuple[Dim, ...]]
    device: DeviceKind = "cpu"


class PlanOptions(BaseModel):
    """How TensorRT plans are made."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    plans: Literal["shared", "separate"] = Field(
        "shared",
        description="one plan with a static optimisation profile a length, whose engines share their weights; or a "
        "plan a length, with that length fixed in the network",
    )
    workspace_mb: int | None = Field(
        None, ge=1, description="most GPU memory in MiB that a layer may use for itself; default: all there is"
    )
    hardware_compatibility: Literal["none", "ampere_plus", "same_compute_capability"] = Field(
        "none", description="other GPUs that a plan must run on too, at some cost in speed"
    )


class Engine(Protocol):
    """One execution context of a compiled model, called from one thread at a time.

    `run` releases the GIL while it computes. Contexts that were opened together share the model's weights and may
    run at the same time.
    """

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Inputs that `run` requires."""

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Outputs that `run` returns."""

    def run(self, inputs: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        """Run one batch; returned arrays are the caller's own.

        Raises:
            InvalidArgument: an input is missing, unknown, or of a shape or dtype that was not declared.
        """


def check_inputs(specs: tuple[TensorSpec, ...], inputs: Mapping[str, npt.NDArray[Any]]) -> None:
    """Hold arrays to their declared names, dtypes and shapes.

    Raises:
        InvalidArgument: names the first input that differs, what came and what is accepted.
    """
    if len(inputs) != len(specs) or any(spec.name not in inputs for spec in specs):
        raise InvalidArgument(
            f"engine inputs {sorted(inputs)} differ from the declared {sorted(s.name for s in specs)}"
        )
    for spec in specs:
        array = inputs[spec.name]
        if array.dtype != spec.dtype:
            raise InvalidArgument(f"engine input '{spec.name}' has dtype {array.dtype}, declared is {spec.dtype}")
        if len(array.shape) != len(spec.shape) or not all(
            size == dim if isinstance(dim, int) else dim[0] <= size <= dim[1]
            for size, dim in zip(array.shape, spec.shape, strict=True)
        ):
            raise InvalidArgument(f"engine input '{spec.name}' has shape {array.shape}, declared is {spec.shape}")
