"""The file of API keys: one entry per key, without the key itself."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tidal.errors import InvalidArgument, NotFound
from tidal_gateway.file_version import file_version
from tidal_gateway.keys.key import matches, new_key, parse_key

# Least time between two checks of whether the file has changed while all keys are known, in seconds.
_RECHECK_S: Final = 0.5
_UNKNOWN: Final = "0" * 64

_log = logging.getLogger("tidal_gateway")


class KeyEntry(BaseModel):
    """One API key."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = Field(pattern=r"^[0-9a-f]{4,32}$", description="public part of the key")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$", description="hash of the secret part")
    name: str = Field(max_length=200, description="who uses it")
    created: datetime
    revoked: datetime | None = Field(None, description="since when it is refused")
    models: tuple[str, ...] = Field((), description="models and tasks that it may use, as patterns; empty for all")
    requests_per_minute: int | None = Field(None, ge=1)
    tokens_per_minute: int | None = Field(None, ge=1)
    max_concurrency: int | None = Field(None, ge=1)

    @property
    def limited(self) -> bool:
        """Whether its requests have to be counted."""
        return any(
            each is not None for each in (self.requests_per_minute, self.tokens_per_minute, self.max_concurrency)
        )

    def allows(self, model: str, task: str) -> bool:
        """Whether the key may use a model, or a task of it; `encoder` covers all tasks of `encoder`."""
        if not self.models:
            return True
        names = [model, f"{model}/{task}"] if task else [model]
        return any(fnmatchcase(name, pattern) for pattern in self.models for name in names)


class KeyFile(BaseModel):
    """Content of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    keys: tuple[KeyEntry, ...] = ()


def read_keys(path: Path) -> KeyFile:
    """Read a file of keys.

    Raises:
        InvalidArgument: The file cannot be read, or an entry is not accepted.
    """
    try:
        found = KeyFile.model_validate_json(path.read_bytes())
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        problem = error.errors(include_input=False)[0]
        where = ".".join(map(str, problem["loc"]))
        raise InvalidArgument(f"{path} is not a file of keys: {where}: {problem['msg']}") from None
    if len({each.id for each in found.keys}) < len(found.keys):
        raise InvalidArgument(f"{path} has two keys of the same id: remove one of them")
    return found


class KeyStore:
    """Keys of a file that is read again when it changes.

    A new key is accepted at once, and a revoked one refused after `_RECHECK_S` at the latest. If a changed file
    cannot be read, the previous keys stay in use, and the log has the reason.

    Args:
        path: Path of the file.

    Raises:
        InvalidArgument: The file cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._version: tuple[int, int, int] | None = None
        self._checked = time.monotonic()
        self._version = file_version(path)
        self._keys = {each.id: each for each in read_keys(path).keys}

    def find(self, text: str) -> KeyEntry | None:
        """Return the entry of a key that a client sent; None if there is none."""
        if time.monotonic() - self._checked >= _RECHECK_S:
            self._reread()
        found = self._match(text)
        return self._match(text) if found is None and self._reread() else found

    def _match(self, text: str) -> KeyEntry | None:
        parsed = parse_key(text)
        if parsed is None:
            return None
        entry = self._keys.get(parsed[0])
        # An unknown id takes as long as a wrong secret.
        known = matches(parsed[1], entry.sha256 if entry else _UNKNOWN)
        return entry if known and entry is not None and entry.revoked is None else None

    def _reread(self) -> bool:
        """Read the file again if it has changed; returns whether it has."""
        self._checked = time.monotonic()
        version = file_version(self._path)
        if version == self._version:
            return False
        self._version = version
        try:
            self._keys = {each.id: each for each in read_keys(self._path).keys}
        except InvalidArgument as error:
            _log.error("the previous keys stay in use: %s", error)
        else:
            _log.info("%s was read again: %d keys", self._path, len(self._keys))
        return True


def add_key(
    path: Path,
    name: str,
    *,
    models: tuple[str, ...] = (),
    requests_per_minute: int | None = None,
    tokens_per_minute: int | None = None,
    max_concurrency: int | None = None,
) -> tuple[str, KeyEntry]:
    """Add a new key to a file, which is created if it is absent, and return the key and its entry.

    Args:
        path: Path of the file.
        name: Name of the user or team of the key.
        models: Models and tasks that it may use, as patterns such as ``intent`` or ``encoder/mood``; empty for all.
        requests_per_minute: Maximum number of requests per minute; None for no limit.
        tokens_per_minute: Maximum number of prompt and generated tokens per minute; None for no limit.
        max_concurrency: Maximum number of concurrent requests; None for no limit.

    Raises:
        InvalidArgument: The file cannot be read, or a value is not accepted.
    """
    key, identifier, digest = new_key()
    try:
        entry = KeyEntry(
            id=identifier,
            sha256=digest,
            name=name,
            created=_now(),
            models=models,
            requests_per_minute=requests_per_minute,
            tokens_per_minute=tokens_per_minute,
            max_concurrency=max_concurrency,
        )
    except ValidationError as error:
        problem = error.errors(include_input=False)[0]
        raise InvalidArgument(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}") from None
    with _changing(path):
        found = read_keys(path) if path.exists() else KeyFile()
        _write(path, KeyFile(keys=(*found.keys, entry)))
    return key, entry


def revoke_key(path: Path, identifier: str) -> KeyEntry:
    """Mark a key of a file as revoked, by its id, and return its entry, which stays: the access log names its id.

    Raises:
        InvalidArgument: The file cannot be read.
        NotFound: It has no such key that is not revoked.
    """
    with _changing(path):
        found = read_keys(path)
        entry = next((each for each in found.keys if each.id == identifier), None)
        if entry is None:
            ids = ", ".join(each.id for each in found.keys if each.revoked is None) or "none"
            raise NotFound(f"{path} has no key with the id '{identifier}'; its keys are: {ids}")
        if entry.revoked is not None:
            raise NotFound(f"the key '{identifier}' of {path} was revoked at {entry.revoked.isoformat()}")
        revoked = entry.model_copy(update={"revoked": _now()})
        _write(path, KeyFile(keys=tuple(revoked if each is entry else each for each in found.keys)))
    return revoked


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


@contextlib.contextmanager
def _changing(path: Path) -> Iterator[None]:
    """Exclude other changes of the file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be changed: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _write(path: Path, content: KeyFile) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    text = json.dumps(content.model_dump(mode="json", exclude_none=True), indent=1) + "\n"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
