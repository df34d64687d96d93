"""Documents in a store: a version with its files by hash, device and requirements, and a task with its files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, Field, ValidationError, model_validator

from tidal import device
from tidal.device import Device
from tidal.engines.registry import engine_version
from tidal.errors import InvalidArgument, Unsupported
from tidal.manifest import FileRecord, Strict
from tidal.repository.config import CONFIG_FILE
from tidal.tasks.names import is_task_name
from tidal.tasks.record import TASK_FILE, TENSORS_FILE

FORMAT = 1
# A version has tens of files: larger manifests are not Tidal's.
MAX_MANIFEST_BYTES = 4 << 20
_MAX_FILES = 10_000
_MAX_CONFIG_BYTES = 1 << 20
_MODEL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_NUMBER = re.compile(r"[1-9][0-9]{0,17}", re.ASCII)
_MAX_NAME_BYTES, _MAX_PATH_BYTES = 255, 1024


def is_model_name(name: str) -> bool:
    """Whether a store accepts the name of a model."""
    return _MODEL.fullmatch(name) is not None


def is_version_number(text: str) -> bool:
    """Whether a text is the number of a version, as its folder is named."""
    return _NUMBER.fullmatch(text) is not None


def _model_name(name: str) -> str:
    if not is_model_name(name):
        raise ValueError(
            f"'{name[:140]}' is not a name of a model: expected up to 128 letters, digits, '_', '-' and '.', not "
            "beginning with '-' or '.'"
        )
    return name


def _task_name(name: str) -> str:
    if not is_task_name(name):
        raise ValueError(f"'{name[:140]}' is not a name of a task")
    return name


def _relative_path(path: str) -> str:
    """Check a path of a file: it comes from a store, and a file is written there."""
    parts = path.split("/")
    if (
        any(part in ("", ".", "..") or len(part.encode(errors="replace")) > _MAX_NAME_BYTES for part in parts)
        or len(path.encode(errors="replace")) > _MAX_PATH_BYTES
        or any(ord(each) < 32 or each in "\\\x7f" or "\ud800" <= each <= "\udfff" for each in path)
    ):
        raise ValueError(
            f"{path[:140]!r} is not a path in a version: expected names separated by '/', relative, without '.', '..', "
            "backslashes and control characters"
        )
    return path


ModelName = Annotated[str, AfterValidator(_model_name)]
TaskName = Annotated[str, AfterValidator(_task_name)]
RelativePath = Annotated[str, AfterValidator(_relative_path)]
VersionNumber = Annotated[int, Field(ge=1, lt=10**18)]


class StoredFile(FileRecord):
    """A regular file; links and other kinds of files have no form here."""

    path: RelativePath
    bytes: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    mode: int = Field(ge=0, le=0o777, description="permission bits")


class Requirement(Strict):
    """A version of another model that is published before this one and fetched with it."""

    model: ModelName
    version: VersionNumber


class StoredTask(Strict):
    """A task that is a level of a cascade: files of a folder beside the versions of its model."""

    model: ModelName
    name: TaskName
    files: tuple[StoredFile, ...] = Field(min_length=1, max_length=16)


class Binding(Strict):
    """What the engines were built for."""

    device: Device
    engine: str
    library: str | None = Field(description="version of the engine's library; None where the build did not record it")

    def problems(self) -> list[str]:
        """Each field in which this machine differs, as a clause; empty where it can run the engines."""
        kind = self.device.kind
        try:
            here = device.here(kind)
        except Unsupported as error:
            return [f"device.kind is '{kind}', and {error}"]
        clauses = [
            f"device.{name} is '{_text(built)}', this machine has '{_text(own)}'"
            for name in ("name", "features")
            if (built := getattr(self.device, name)) != (own := getattr(here, name))
        ]
        try:
            installed = engine_version(self.engine)
        except ValueError as error:
            return [*clauses, f"engine: {error}"]
        if self.library not in (None, installed):
            clauses.append(f"library is {self.engine} {self.library}, installed is {installed or 'none'}")
        return clauses


class StoredVersion(Strict):
    """One version of one model in a store. It is written once, after everything that it names."""

    format: Literal[1] = 1
    model: ModelName
    version: VersionNumber
    kind: str | None = Field(max_length=64, description="kind of Tidal's manifest; None for other models of Triton")
    created: str = Field(max_length=64, description="UTC time of the build, ISO 8601; empty for other models")
    binding: Binding | None = Field(description="None for versions without engines of their own")
    files: tuple[StoredFile, ...] = Field(max_length=_MAX_FILES, description="files of the version's folder")
    folders: tuple[RelativePath, ...] = Field((), max_length=_MAX_FILES, description="empty folders in it")
    config: StoredFile | None = Field(description="the model's config.pbtxt when the version was published")
    requires: tuple[Requirement, ...] = Field((), max_length=1000)
    tasks: tuple[StoredTask, ...] = Field((), max_length=1000)

    @model_validator(mode="after")
    def _check(self) -> StoredVersion:
        paths = [each.path for each in self.files]
        for listed in (paths + list(self.folders), *([file.path for file in task.files] for task in self.tasks)):
            names = set(listed)
            if len(names) != len(listed):
                raise ValueError("a path is listed twice")
            for path in listed:
                if inside := names.intersection(map(str, PurePosixPath(path).parents)):
                    raise ValueError(f"'{path}' is inside '{inside.pop()}', which is a file or an empty folder")
        if self.config is not None and (self.config.path != CONFIG_FILE or self.config.bytes > _MAX_CONFIG_BYTES):
            raise ValueError(f"config must be {CONFIG_FILE} of at most {_MAX_CONFIG_BYTES} bytes")
        if others := {each.model for each in self.tasks} - {each.model for each in self.requires}:
            raise ValueError(f"tasks are of '{others.pop()}', which is not required")
        return self

    @property
    def title(self) -> str:
        """The version in an error."""
        return f"version {self.version} of model '{self.model}'"

    @property
    def bytes(self) -> int:
        """Size of its files in bytes."""
        return sum(each.bytes for each in self.files)

    def all_files(self) -> dict[str, StoredFile]:
        """Every file that it names, also its config and its tasks' files, by a name for errors."""
        named = {f"file '{each.path}' of {self.title}": each for each in self.files}
        if self.config is not None:
            named[f"{CONFIG_FILE} of model '{self.model}'"] = self.config
        for task in self.tasks:
            named |= {f"'{each.path}' of task '{task.name}' of model '{task.model}'": each for each in task.files}
        return named

    def difference(self, other: StoredVersion) -> str | None:
        """How the content differs from that of another version, as a clause; None if it does not.

        Permissions and config.pbtxt are left out: they belong to the machine and to its operator.
        """
        if (path := first_difference(self._content(), other._content())) is not None:
            return f"'{path}' differs"
        return None if set(self.folders) == set(other.folders) else "their empty folders differ"

    def _content(self) -> dict[str, str]:
        return {each.path: each.sha256 for each in self.files}


def first_difference(one: Mapping[str, object], other: Mapping[str, object]) -> str | None:
    """The first key that only one of two mappings has, or for which their values differ; None where they are equal."""
    return next((key for key in sorted({*one, *other}) if one.get(key) != other.get(key)), None)


class TaskRevision(Strict):
    """A task of a model in a store: its content since one time, or its removal. It is written once."""

    format: Literal[1] = 1
    model: ModelName
    name: TaskName
    revision: VersionNumber
    files: tuple[StoredFile, ...] = Field(description="both files of the task's folder; none where it was removed")

    @model_validator(mode="after")
    def _check(self) -> TaskRevision:
        if self.files and sorted(each.path for each in self.files) != [TASK_FILE, TENSORS_FILE]:
            raise ValueError(f"files must be {TASK_FILE} and {TENSORS_FILE}, or none")
        return self

    @property
    def title(self) -> str:
        """The task in an error."""
        return f"task '{self.name}' of model '{self.model}'"

    @property
    def content(self) -> str | None:
        """Hash of its `task.json`, which has that of its tensors; None where it was removed."""
        return next((each.sha256 for each in self.files if each.path == TASK_FILE), None)

    def named_files(self) -> dict[str, StoredFile]:
        """Its files by a name for errors."""
        return {f"'{each.path}' of {self.title}": each for each in self.files}


class _Format(BaseModel):
    format: int


_Document = TypeVar("_Document", bound=Strict)


def parse_stored(content: bytes, where: str) -> StoredVersion:
    """Read a version's manifest, which is not trusted.

    Args:
        content: Content of the file.
        where: Address of the file, for errors.

    Raises:
        InvalidArgument: It is too large, of another format, or not valid.
    """
    return _parse(StoredVersion, "the manifest of a version", content, where)


def parse_task(content: bytes, where: str) -> TaskRevision:
    """Read a task's document, which is not trusted; arguments and errors are those of `parse_stored`."""
    return _parse(TaskRevision, "a task", content, where)


def _parse(kind: type[_Document], what: str, content: bytes, where: str) -> _Document:
    if len(content) > MAX_MANIFEST_BYTES:
        raise InvalidArgument(f"{where} is larger than {MAX_MANIFEST_BYTES} bytes, the limit of a document in a store")
    try:
        found = _Format.model_validate_json(content).format
        if found != FORMAT:
            raise InvalidArgument(f"{where} has format {found}; this release reads format {FORMAT}: upgrade Tidal")
        return kind.model_validate_json(content)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'file'}: {e['msg']}" for e in error.errors()[:3])
        raise InvalidArgument(f"{where} is not {what}: {problems}") from None


def _text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
