"""Manifest of an encoder: its task, runtimes, profiles and verification."""

from __future__ import annotations

import itertools
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from tidal.encoder_tasks.entries import TaskName, task_entry
from tidal.engine_model.manifest import ExtraOutput, MainOutput, Runtime, runtime_artifact
from tidal.engines.base import Artifact, Precision
from tidal.manifest import Published, Strict, TokenizerInfo, Verification, read_manifest
from tidal.profiles import LatencyProfile

# Where a model's engines run: all in its own process, or each runtime as a Triton model with instances of its own.
Placement = Literal["polymorphic", "partitioned"]


# Static: a runtime per length, which pads to it; dynamic: one for all lengths; mixed: static ones for short inputs, and
# a dynamic one for longer ones.
Form = Literal["static", "mixed", "dynamic"]


class Trial(Strict):
    """A precision and form that the builder measured on the device."""

    precision: Precision
    form: Form = Field(description="one runtime per length, one for all lengths, or both")
    choice: Literal["precision", "form"] = Field(
        description="what the trial compares; figures of different choices are not comparable"
    )
    mean_ms: float | None = Field(description="mean latency of single queries over many lengths; None: not measured")
    max_abs_error: float | None = Field(description="largest difference of a logit; None: not verified separately")
    verdict: Literal["chosen", "slower", "misses tolerance", "not offered here"]


class ArloManifest(Published):
    """A published version of an encoder."""

    kind: Literal["arlo"]
    tokenizer: TokenizerInfo
    task: TaskName = Field(description="what the outputs mean")
    settings: dict[str, Any] = Field(default_factory=dict, description="settings of the task")
    labels: tuple[str, ...] = Field((), description="names of the labels; empty if the task has none")
    placement: Placement = Field(
        "polymorphic", description="engines in the model's own process, or in one Triton model per runtime"
    )
    native: bool = Field(False, description="whether the runtimes run on Triton's own TensorRT backend")
    runtimes: tuple[Runtime, ...] = Field(min_length=1)
    main_output: MainOutput = MainOutput()
    extra_outputs: tuple[ExtraOutput, ...] = ()
    verification: Verification
    trials: tuple[Trial, ...] = Field((), description="precisions and forms measured on this device")
    profile: LatencyProfile = Field(description="latency of one engine with all threads")
    parallel: LatencyProfile | None = Field(
        None, description="latency of several concurrent engines with one thread each; absent if that is not faster"
    )

    @model_validator(mode="before")
    @classmethod
    def _with_task(cls, data: Any) -> Any:
        """Versions that were published before there were tasks are classifiers, or regressions of a cascade."""
        if isinstance(data, dict) and "task" not in data:
            return {**data, "task": "regression" if len(data.get("labels", ())) == 1 else "classification"}
        return data

    @model_validator(mode="after")
    def _check(self) -> ArloManifest:
        lengths = [runtime.max_length for runtime in self.runtimes]
        if lengths != sorted(set(lengths)):
            raise ValueError(f"runtimes must ascend by max_length, got {lengths}")
        if any(shorter.dynamic and not longer.dynamic for shorter, longer in itertools.pairwise(self.runtimes)):
            raise ValueError("runtimes that pad to their length must be shorter than the dynamic ones")
        if self.profile.max_length < lengths[-1]:
            raise ValueError(f"the profile ends at length {self.profile.max_length}, runtimes at {lengths[-1]}")
        entry = task_entry(self.task)
        if entry.labelled != bool(self.labels):
            raise ValueError(f"task {self.task} {'needs' if entry.labelled else 'has no'} labels, got {self.labels}")
        entry.read_settings(self.settings)
        return self

    @property
    def engine_outputs(self) -> tuple[str, ...]:
        """Names of the outputs of the engines, the main one first."""
        return (self.main_output.name, *(output.name for output in self.extra_outputs))

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the engine inputs, each INT64 [rows, length]."""
        return ("input_ids", "attention_mask", *(["token_type_ids"] if self.tokenizer.type_ids else []))

    @property
    def max_length(self) -> int:
        """Longest input that any runtime accepts, in tokens."""
        return self.runtimes[-1].max_length

    @property
    def device_share(self) -> Fraction:
        """Devices that an instance of a runtime occupies: cores, or the share of a GPU that it was measured with."""
        return Fraction(1, self.profile.concurrency) if self.device.kind == "gpu" else Fraction(self.profile.threads)

    @property
    def static_upto(self) -> int:
        """Longest length of the runtimes that pad to it; 0 if all are dynamic."""
        return max((runtime.max_length for runtime in self.runtimes if not runtime.dynamic), default=0)

    @property
    def form(self) -> Form:
        """Form of the runtimes."""
        if not self.static_upto:
            return "dynamic"
        return "static" if self.static_upto == self.max_length else "mixed"

    def artifact(self, runtime: Runtime, version_dir: Path) -> Artifact:
        """Return a runtime's engine file with the shapes to open it with."""
        return runtime_artifact(self, runtime, self.inputs, version_dir)


def load_arlo_manifest(version_dir: Path) -> ArloManifest:
    """Read and validate `manifest.json` of a version of an encoder.

    Raises:
        InvalidArgument: The file is missing, is invalid, or has a field that this release does not know.
    """
    return read_manifest(version_dir, ArloManifest)
