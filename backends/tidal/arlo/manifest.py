"""Manifest of an encoder classifier: its runtimes, labels, profiles and verification."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from tidal.engine_model.manifest import ExtraOutput, Runtime, runtime_artifact
from tidal.engines.base import Artifact, Precision
from tidal.manifest import Published, Strict, TokenizerInfo, Verification, read_manifest
from tidal.profiles import LatencyProfile

# Where a model's engines run: all in its own process, or each runtime as a Triton model with instances of its own.
Placement = Literal["polymorphic", "partitioned"]


class Trial(Strict):
    """A precision and form that the builder measured on the device."""

    precision: Precision
    form: Literal["static", "dynamic"] = Field(description="one runtime per length, or one for all lengths")
    choice: Literal["precision", "form"] = Field(
        description="what the trial compares; figures of different choices are not comparable"
    )
    mean_ms: float | None = Field(description="mean latency of single queries over many lengths; None: not measured")
    max_abs_error: float | None = Field(description="largest difference of a logit; None: not verified separately")
    verdict: Literal["chosen", "slower", "misses tolerance", "not offered here"]


class ArloManifest(Published):
    """A published version of an encoder classifier."""

    kind: Literal["arlo"]
    tokenizer: TokenizerInfo
    labels: tuple[str, ...] = Field(min_length=1)
    placement: Placement = Field(
        "polymorphic", description="engines in the model's own process, or in one Triton model per runtime"
    )
    native: bool = Field(False, description="whether the runtimes run on Triton's own TensorRT backend")
    runtimes: tuple[Runtime, ...] = Field(min_length=1)
    extra_outputs: tuple[ExtraOutput, ...] = ()
    verification: Verification
    trials: tuple[Trial, ...] = Field((), description="precisions and forms measured on this device")
    profile: LatencyProfile = Field(description="latency of one engine with all threads")
    parallel: LatencyProfile | None = Field(
        None, description="latency of several concurrent engines with one thread each; absent if that is not faster"
    )

    @model_validator(mode="after")
    def _check(self) -> ArloManifest:
        lengths = [runtime.max_length for runtime in self.runtimes]
        if lengths != sorted(set(lengths)):
            raise ValueError(f"runtimes must ascend by max_length, got {lengths}")
        if self.profile.max_length < lengths[-1]:
            raise ValueError(f"the profile ends at length {self.profile.max_length}, runtimes at {lengths[-1]}")
        return self

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the engine inputs, each INT64 [rows, length]."""
        return ("input_ids", "attention_mask", *(["token_type_ids"] if self.tokenizer.type_ids else []))

    @property
    def max_length(self) -> int:
        """Longest input that any runtime accepts, in tokens."""
        return self.runtimes[-1].max_length

    def artifact(self, runtime: Runtime, version_dir: Path) -> Artifact:
        """Return a runtime's engine file with the shapes to open it with."""
        return runtime_artifact(self, runtime, self.inputs, version_dir)


def load_arlo_manifest(version_dir: Path) -> ArloManifest:
    """Read and validate `manifest.json` of a version of an encoder classifier.

    Raises:
        InvalidArgument: The file is missing, is invalid, or has a field that this release does not know.
    """
    return read_manifest(version_dir, ArloManifest)
