"""Manifest of an engine served as a separate model, and the parts it shares with encoder manifests."""

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
    file: str = Field(description="engine file; several runtimes may share it")
    dynamic: bool = Field(description="runs at the longest length of a batch instead of padding to max_length")
    max_batch: int = Field(ge=1)


class EngineInput(Strict):
    """An engine input, INT64 [rows, length]."""

    name: str
    below: int = Field(ge=1, description="upper limit of the values, exclusive; they start at 0")


class MainOutput(Strict):
    """The engine output that answers are computed from."""

    name: str = "logits"
    per_token: bool = Field(False, description="[rows, length, width] instead of [rows, width]")
    width: int | None = Field(None, ge=1, description="values of a row, or of a token; absent in older versions")


class ExtraOutput(Strict):
    """An engine output that clients may request in addition to the main one."""

    name: str
    per_token: bool = Field(description="one value per token of the query; otherwise a vector of fixed size")


class EngineManifest(Published):
    """A published version of one engine, served by the `engine` backend."""

    kind: Literal["engine"]
    front: str | None = Field(description="partitioned model that this runtime belongs to and is built with")
    inputs: tuple[EngineInput, ...] = Field(min_length=1)
    main_output: MainOutput = MainOutput()
    extra_outputs: tuple[ExtraOutput, ...] = ()
    runtime: Runtime
    threads: int = Field(ge=1, description="CPU threads of an instance")
    verification: Verification

    @property
    def max_length(self) -> int:
        """Maximum length of an input, in tokens."""
        return self.runtime.max_length

    def artifact(self, version_dir: Path) -> Artifact:
        """Return the engine file with the shapes to open it with."""
        return runtime_artifact(self, self.runtime, [each.name for each in self.inputs], version_dir)


def load_engine_manifest(version_dir: Path) -> EngineManifest:
    """Read and validate `manifest.json` of an engine's version; see `tidal.manifest.read_manifest` for errors."""
    return read_manifest(version_dir, EngineManifest)


def runtime_artifact(of: Published, runtime: Runtime, inputs: Iterable[str], version_dir: Path) -> Artifact:
    """Return a runtime's engine file with its shapes: [1..max_batch, max_length], or [.., 1..max_length] if dynamic."""
    length = (1, runtime.max_length) if runtime.dynamic else runtime.max_length
    shape = ((1, runtime.max_batch), length)
    return Artifact(of.engine, version_dir / runtime.file, of.precision, dict.fromkeys(inputs, shape), of.device.kind)
