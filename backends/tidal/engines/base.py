"""The contract of engines: they run arrays of declared shapes and return arrays."""

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

# Ordered from the most precise to the least.
Precision = Literal["fp32", "fp16", "bf16", "int8", "int4"]

# A fixed size, or the inclusive bounds of a dynamic one.
Dim = int | tuple[int, int]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or output of an engine.

    Attributes:
        name: Name of the tensor.
        dtype: Data type.
        shape: Sizes or bounds of the dimensions; in outputs, -1 means that a size depends on the inputs.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class Artifact:
    """A compiled model on disk and the shapes to open it with.

    Attributes:
        kind: Engine kind.
        path: File to open.
        precision: Precision to run at.
        shapes: Dimensions of each input by name. One file may be opened several times with other shapes.
        device: Device to run on.
    """

    kind: EngineKind
    path: Path
    precision: Precision
    shapes: Mapping[str, tuple[Dim, ...]]
    device: DeviceKind = "cpu"


class PlanOptions(BaseModel):
    """Options of TensorRT plans."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    plans: Literal["shared", "separate"] = Field(
        "shared",
        description="shared: one plan with a static optimisation profile per length, whose engines share weights; "
        "separate: one plan per length, with that length fixed in the network; default: shared, but separate for "
        "placement partitioned, where each length has a process of its own",
    )
    workspace_mb: int | None = Field(
        None, ge=1, description="maximum GPU memory in MiB that a layer may use as workspace; default: no limit"
    )
    hardware_compatibility: Literal["none", "ampere_plus", "same_compute_capability"] = Field(
        "none", description="other GPUs that a plan must also run on, at some cost in speed"
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
        """Outputs that `run` returns; -1 means that a size depends on the inputs."""

    def run(self, inputs: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        """Run one batch.

        Args:
            inputs: Arrays by name.

        Returns:
            Arrays by name, which the engine does not modify later.

        Raises:
            InvalidArgument: An input is missing, unknown, or has a shape or dtype that was not declared.
        """


class StartedRun(Protocol):
    """A batch that an engine runs on its own threads."""

    def wait(self, timeout_s: float | None = None) -> dict[str, npt.NDArray[Any]] | None:
        """Wait for the end of the run, without the GIL.

        Args:
            timeout_s: Seconds to wait for at most; None to wait until the end.

        Returns:
            Arrays by name, as from `Engine.run`; None if the run has not ended.
        """


class AsyncEngine(Engine, Protocol):
    """An engine whose caller can stop waiting for a run."""

    def start(self, inputs: Mapping[str, npt.NDArray[Any]]) -> StartedRun:
        """Start one batch, with the inputs and errors of `run`; wait for its end before the next."""


def check_inputs(specs: tuple[TensorSpec, ...], inputs: Mapping[str, npt.NDArray[Any]]) -> None:
    """Check arrays against their declared names, dtypes and shapes.

    Args:
        specs: Declared inputs.
        inputs: Arrays by name.

    Raises:
        InvalidArgument: An input differs; names the first one, its value and what is accepted.
    """
    if len(inputs) != len(specs) or any(spec.name not in inputs for spec in specs):
        raise InvalidArgument(f"engine inputs are {sorted(inputs)}; expected {sorted(s.name for s in specs)}")
    for spec in specs:
        array = inputs[spec.name]
        if array.dtype != spec.dtype:
            raise InvalidArgument(f"engine input '{spec.name}' has dtype {array.dtype}; expected {spec.dtype}")
        if len(array.shape) != len(spec.shape) or not all(
            size == dim if isinstance(dim, int) else dim[0] <= size <= dim[1]
            for size, dim in zip(array.shape, spec.shape, strict=True)
        ):
            raise InvalidArgument(f"engine input '{spec.name}' has shape {array.shape}; expected {spec.shape}")
