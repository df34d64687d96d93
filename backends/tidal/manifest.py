"""What a builder publishes beside engines and every backend loads: typed, and checked against files and device."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tidal.device import Device
from tidal.engines.base import Artifact, EngineKind, Precision
from tidal.engines.registry import engine_version
from tidal.errors import InvalidArgument
from tidal.profiles import LatencyProfile

MANIFEST_FILE = "manifest.json"

# Where a model's engines run: all in its own process, or each runtime as a Triton model with instances of its own.
Placement = Literal["polymorphic", "partitioned"]


class Strict(BaseModel):
    """A part of a manifest: immutable, and without fields that this release does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class FileRecord(Strict):
    """A published file, by its path under the version folder."""

    path: str
    bytes: int
    sha256: str


class Source(Strict):
    """The model that the engines were made from."""

    model: str = Field(description="Hugging Face id or folder name")
    architecture: str
    sha256: str = Field(description="hash over the source's files")


class TokenizerInfo(Strict):
    """The source model's own fast tokenizer, published as `tokenizer/tokenizer.json`."""

    file: str
    max_length: int = Field(ge=1, description="longest input of the model in tokens, special tokens included")
    pad_token_id: int = Field(ge=0)
    type_ids: bool = Field(description="whether the engines take token_type_ids")


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


class Verification(Strict):
    """How far the published engines are from the unmodified source model."""

    samples: int = Field(ge=1)
    max_abs_error: float = Field(ge=0, description="largest difference of any logit")
    tolerance: float = Field(gt=0)
    argmax_agreement: float = Field(ge=0, le=1)


class Trial(Strict):
    """A way to run the model that the builder measured on the device before it chose one."""

    precision: Precision
    form: Literal["static", "dynamic"] = Field(description="one runtime a length, or one for all lengths")
    choice: Literal["precision", "form"] = Field(description="what it was compared for; compare within one choice only")
    mean_ms: float | None = Field(description="mean latency of single queries of many lengths; None: not measured")
    max_abs_error: float | None = Field(description="largest difference of any logit; None: not verified by itself")
    verdict: Literal["chosen", "slower", "misses tolerance", "not offered here"]


class Version(Strict):
    """What every published version says of where it came from."""

    format: Literal[1] = 1
    name: str = Field(description="the model's name in the repository")
    created: str = Field(description="UTC time, ISO 8601")
    spec: str = Field(description="the spec file it was built from, for the rebuild command")
    fingerprint: str = Field(description="hash over spec, source, code and library versions")
    ingredients: dict[str, str] = Field(
        default_factory=dict, description="what the fingerprint is made of, to say what has changed"
    )
    libraries: dict[str, str] = Field(description="versions that the build used")
    files: tuple[FileRecord, ...]

    def rebuild_command(self, repository: Path) -> str:
        """The shell command that makes this model anew in its repository."""
        return shlex.join(["tidal", "build", self.spec, "--repository", str(repository), "--force"])

    def check_files(self, version_dir: Path) -> None:
        """Hold the version to its files.

        Raises:
            InvalidArgument: what is missing or differs, and the command that rebuilds it.
        """
        rebuild = f"rebuild with `{self.rebuild_command(version_dir.parent.parent)}`"
        for record in self.files:
            path = version_dir / record.path
            if not path.is_file():
                raise InvalidArgument(f"{path} is missing; {rebuild}")
            if path.stat().st_size != record.bytes or sha256_file(path) != record.sha256:
                raise InvalidArgument(f"{path} differs from what was published; {rebuild}")


class Published(Version):
    """A published version with engines, and what they need."""

    source: Source
    engine: EngineKind
    precision: Precision
    device: Device

    def check(self, version_dir: Path, device: Device) -> None:
        """Hold the version to its files, this device and the installed engine library.

        Raises:
            InvalidArgument: what differs, and the command that rebuilds it.
        """
        self.check_files(version_dir)
        rebuild = f"rebuild with `{self.rebuild_command(version_dir.parent.parent)}`"
        if device != self.device:
            raise InvalidArgument(
                f"model '{self.name}' was built for {self.device}, this machine is {device}; {rebuild}"
            )
        built, installed = self.libraries.get(self.engine), engine_version(self.engine)
        if built != installed:
            raise InvalidArgument(
                f"model '{self.name}' was built with {self.engine} {built}, installed is {installed}; {rebuild}"
            )


class Manifest(Published):
    """A published version of an encoder classifier."""

    kind: Literal["arlo"]
    tokenizer: TokenizerInfo
    labels: tuple[str, ...] = Field(min_length=1)
    placement: Placement = Field(
        "polymorphic", description="engines in the model's own process, or in a Triton model a runtime"
    )
    native: bool = Field(False, description="the runtimes' models run on Triton's own TensorRT backend")
    runtimes: tuple[Runtime, ...] = Field(min_length=1)
    extra_outputs: tuple[ExtraOutput, ...] = ()
    verification: Verification
    trials: tuple[Trial, ...] = Field((), description="precisions and forms that were compared on this device")
    profile: LatencyProfile = Field(description="one engine with all threads")
    parallel: LatencyProfile | None = Field(
        None, description="several engines with a thread each, all running at once; absent where that gains nothing"
    )

    @model_validator(mode="after")
    def _check(self) -> Manifest:
        lengths = [runtime.max_length for runtime in self.runtimes]
        if lengths != sorted(set(lengths)):
            raise ValueError(f"runtimes must ascend by max_length, got {lengths}")
        if self.profile.max_length < lengths[-1]:
            raise ValueError(f"the profile ends at length {self.profile.max_length}, runtimes at {lengths[-1]}")
        return self

    @property
    def inputs(self) -> tuple[str, ...]:
        """Engine inputs, INT64 [rows, length] each."""
        return ("input_ids", "attention_mask", *(["token_type_ids"] if self.tokenizer.type_ids else []))

    @property
    def max_length(self) -> int:
        """Longest input in tokens that any runtime takes."""
        return self.runtimes[-1].max_length

    def artifact(self, runtime: Runtime, version_dir: Path) -> Artifact:
        """The runtime's engine file with the shapes to open it with."""
        return _artifact(self, runtime, self.inputs, version_dir)


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
        return _artifact(self, self.runtime, [each.name for each in self.inputs], version_dir)


def load_manifest(version_dir: Path) -> Manifest:
    """Read and validate `manifest.json` of a version of an encoder classifier.

    Raises:
        InvalidArgument: the file is missing, is not valid, or names a field that this release does not know.
    """
    return read_manifest(version_dir, Manifest)


def load_engine_manifest(version_dir: Path) -> EngineManifest:
    """Read and validate `manifest.json` of a version of one engine; raises as `load_manifest`."""
    return read_manifest(version_dir, EngineManifest)


_Model = TypeVar("_Model", bound=BaseModel)


def read_manifest(version_dir: Path, model: type[_Model]) -> _Model:
    """Read and validate `manifest.json` as one kind of manifest; raises as `load_manifest`."""
    path = version_dir / MANIFEST_FILE
    try:
        return model.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise InvalidArgument(f"{path} is missing: this is not a version that `tidal build` published") from None
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'file'}: {e['msg']}" for e in error.errors()[:3])
        raise InvalidArgument(f"{path} is not a valid manifest: {problems}") from None


def _artifact(of: Published, runtime: Runtime, inputs: Iterable[str], version_dir: Path) -> Artifact:
    length = (1, runtime.max_length) if runtime.dynamic else runtime.max_length
    shape = ((1, runtime.max_batch), length)
    return Artifact(of.engine, version_dir / runtime.file, of.precision, dict.fromkeys(inputs, shape), of.device.kind)


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
