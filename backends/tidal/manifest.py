"""Manifests of published versions, checked against files and device. Builders write and backends read them."""

from __future__ import annotations

import hashlib
import shlex
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tidal.device import Device
from tidal.engines.base import Precision
from tidal.engines.entries import EngineKind, engine_entry
from tidal.engines.registry import engine_version
from tidal.errors import InvalidArgument

MANIFEST_FILE = "manifest.json"


class Strict(BaseModel):
    """A part of a manifest: immutable; unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class FileRecord(Strict):
    """A published file.

    Attributes:
        path: Path relative to the version folder.
        bytes: Size in bytes.
        sha256: Hex SHA-256 of the content.
    """

    path: str
    bytes: int
    sha256: str


class Source(Strict):
    """The model that the engines were built from."""

    model: str = Field(description="Hugging Face id or folder name")
    architecture: str
    sha256: str = Field(description="hash over the source's files")


class TokenizerInfo(Strict):
    """The source model's own fast tokenizer, published as `tokenizer/tokenizer.json`."""

    file: str
    max_length: int = Field(ge=1, description="longest input of the model in tokens, special tokens included")
    pad_token_id: int = Field(ge=0)
    type_ids: bool = Field(description="whether the engines have an input token_type_ids")


class Verification(Strict):
    """Comparison of the published engines with the unmodified source model."""

    samples: int = Field(ge=1)
    max_abs_error: float = Field(ge=0, description="largest error of a sample: by default of any logit")
    tolerance: float = Field(gt=0, description="accepted error")
    argmax_agreement: float | None = Field(
        None, ge=0, le=1, description="share of samples with the same most likely label; None for other tasks"
    )
    agreements: dict[str, float] = Field(
        default_factory=dict, description="other agreement over all samples from 0 to 1, such as spearman"
    )


class Version(Strict):
    """What the manifests of all published versions contain."""

    kind: str = Field(description="kind of the model, as in its spec")
    format: Literal[1] = 1
    name: str = Field(description="name of the model in the repository")
    created: str = Field(description="UTC time, ISO 8601")
    spec: str = Field(description="spec file that it was built from, for the rebuild command")
    fingerprint: str = Field(description="hash over spec, source, code and library versions")
    ingredients: dict[str, str] = Field(
        default_factory=dict, description="what the fingerprint is computed from, to report changes"
    )
    libraries: dict[str, str] = Field(description="versions of the libraries that the build used, by name")
    files: tuple[FileRecord, ...]

    def rebuild_command(self, repository: Path) -> str:
        """The shell command that rebuilds this model in a repository."""
        return shlex.join(["tidal", "build", self.spec, "--repository", str(repository), "--force"])

    def check_files(self, version_dir: Path) -> None:
        """Check the version's files against the manifest.

        Args:
            version_dir: Folder of the version.

        Raises:
            InvalidArgument: A file is missing or differs; names it and the command that rebuilds the model.
        """
        rebuild = f"rebuild with `{self.rebuild_command(version_dir.parent.parent)}`"
        for record in self.files:
            path = version_dir / record.path
            if not path.is_file():
                raise InvalidArgument(f"{path} is missing; {rebuild}")
            if path.stat().st_size != record.bytes or sha256_file(path) != record.sha256:
                raise InvalidArgument(f"{path} differs from what was published; {rebuild}")


class Published(Version):
    """A published version with engines."""

    source: Source
    engine: EngineKind
    precision: Precision
    device: Device

    def check(self, version_dir: Path, device: Device) -> None:
        """Check the version against its files, a device and the installed engine library.

        Args:
            version_dir: Folder of the version.
            device: Device that is to run it.

        Raises:
            InvalidArgument: Something differs; names it and the command that rebuilds the model.
        """
        self.check_files(version_dir)
        rebuild = f"rebuild with `{self.rebuild_command(version_dir.parent.parent)}`"
        if device != self.device:
            raise InvalidArgument(
                f"model '{self.name}' was built for {self.device}, this machine is {device}; {rebuild}"
            )
        built, installed = self.libraries.get(engine_entry(self.engine).distribution), engine_version(self.engine)
        if built != installed:
            raise InvalidArgument(
                f"model '{self.name}' was built with {self.engine} {built}, installed is {installed}; {rebuild}"
            )


_Model = TypeVar("_Model", bound=BaseModel)


def read_manifest(version_dir: Path, model: type[_Model]) -> _Model:
    """Read and validate `manifest.json`.

    Args:
        version_dir: Folder of the version.
        model: Class of the manifest.

    Raises:
        InvalidArgument: The file is missing, is not valid, or has a field that this release does not know.
    """
    path = version_dir / MANIFEST_FILE
    try:
        return model.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise InvalidArgument(f"{path} is missing: this is not a version that `tidal build` published") from None
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'file'}: {e['msg']}" for e in error.errors()[:3])
        raise InvalidArgument(f"{path} is not a valid manifest: {problems}") from None


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
