"""The manifest of a published base: its engine, its identity for tasks, and the cost of the base and of its tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from tidal.manifest import Published, TokenizerInfo, Verification, read_manifest
from tidal.pets.engine.contract import PetsPrecision
from tidal.pets.opening import PetsEngineKind
from tidal.pets.profile import PetsProfile

ENGINE_FOLDER = "engines"


class PetsManifest(Published):
    """A published version of a frozen encoder that serves fine-tuned tasks; tasks are stored beside the versions."""

    kind: Literal["pets"]
    engine: PetsEngineKind
    precision: PetsPrecision
    tokenizer: TokenizerInfo
    base: str = Field(
        pattern=r"^[0-9a-f]{64}$", description="digest of the encoder's weights, by which tasks name their base"
    )
    width: int = Field(ge=1, description="size of the pooled vector, which tasks' classifiers read")
    max_length: int = Field(ge=1, description="longest input in tokens that was profiled and is served")
    threads: int = Field(ge=1, description="CPU threads of the engine")
    attention_received: bool = Field(False, description="whether it returns the attention that tokens receive")
    zeroed: tuple[str, ...] = Field((), description="names of the weights that the source lacks, which are 0")
    verification: Verification = Field(description="verification of the base and of a typical task of every kind")
    profile: PetsProfile

    @model_validator(mode="after")
    def _check(self) -> PetsManifest:
        if self.profile.shared.max_length != self.max_length:
            raise ValueError(f"the profile ends at length {self.profile.shared.max_length}, not at {self.max_length}")
        return self


def load_pets_manifest(version_dir: Path) -> PetsManifest:
    """Read and validate `manifest.json` of a version of a base.

    Args:
        version_dir: Folder of the published version.

    Raises:
        InvalidArgument: The file is missing, is not valid, or has a field that this release does not know.
    """
    return read_manifest(version_dir, PetsManifest)
