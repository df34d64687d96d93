"""Manifest of one engine that is a model of its own, and the parts that encoder manifests share with it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from pydantic import Field

from tidal.engines.base import Artifact
from tidal.manifest import Published, Strict, Verification, read_manifest


class Runtime(Strict):
    """One runtime: an engine opened for inputs up to `max_length` tokens."""

    max_length: int = Field(ge=1)
    file: str = Field(description="engine file; several runtimes may share one")
    dynamic: bool = Field(description="run at the batch's own longest length rather than padded to max_length")
    max_batch: int = Field(ge=1)


class EngineInput(Strict):
    """An engine input, INT64 [rows, length]."""

    name: str
    below: int = Field(ge=1, description="values are 0 to one less than this")


class ExtraOutput(Strict):
    """An engine output that clients may ask for beside the logits."""

    name: str
    per_token: bool = Field(description="one value a token (cut to the query's own length), else a fixed vector")


class EngineManifest(Published):
    """A published version of one engine, served by the `engine` backend: tokens in, the engine's outputs out."""

    kind: Literal["engine"]
    front: str | None = Field(description="the partitioned model whose runtime this is; its build publishes it")
    inputs: tuple[EngineInput, ...] = Field(min_length=1)
    extra_outputs: tuple[ExtraOutput, ...] = ()
    runtime: Runtime
    threads: int = Field(ge=1, description="CPU threads of an instance")
    verification: Verification

    @property
    def max_length(self) -> int:
        """Longest input in tokens."""
        return self.runtime.max_length

    def artifact(self, version_dir: Path) -> Artifact:
        """The engine file with the shapes to open it with."""
        return runtime_artifact(self, self.runtime, [each.name for each in self.inputs], version_dir)


def load_engine_manifest(version_dir: Path) -> EngineManifest:
    """Read and validate `manifest.json` of a version of one engine; raises as `load_manifest`."""
    return read_manifest(version_dir, EngineManifest)


def runtime_artifact(of: Published, runtime: Runtime, inputs: Iterable[str], version_dir: Path) -> Artifact:
    """A runtime's engine file with the shapes to open it with: [1..max_batch, max_length], or [.., 1..max_length]."""
    length = (1, runtime.max_length) if runtime.dynamic else runtime.max_length
    shape = ((1, runtime.max_batch), length)
    return Artifact(of.engine, version_dir / runtime.file, of.precision, dict.fromkeys(inputs, shape), of.device.kind)
