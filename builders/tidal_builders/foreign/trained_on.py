"""Compares the base that an adapter was trained on with the one that a model was built from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tidal.errors import InvalidArgument, TidalError
from tidal.manifest import Published
from tidal_builders.fingerprint import SOURCE_PATTERNS, hash_source


@dataclass(frozen=True, slots=True)
class ServedBase:
    """The base of a model that serves tasks.

    Attributes:
        name: Hugging Face id or folder that the model was built from, as its manifest names it; "" if unknown.
        folder: Folder of that model, if it is on this machine and unchanged since the build.
        same: Function that returns whether a folder contains the weights that the model was built from. It raises
            `TidalError`, `OSError`, `ValueError` or `KeyError` for a folder that cannot be loaded.
    """

    name: str
    folder: Path | None
    same: Callable[[Path], bool]


@dataclass(frozen=True, slots=True)
class TrainedOn:
    """The base of an adapter.

    Attributes:
        folder: Folder with the weights of the served base; None if it is not on this machine.
        note: Sentence on how it was compared with the served base.
    """

    folder: Path | None
    note: str


def trained_on(adapter: Path, named: str, served: ServedBase, given: Path | None, *, force: bool) -> TrainedOn:
    """Compare the base that an adapter names with the one that a model serves.

    Weights are compared if both are on this machine, otherwise names of the Hugging Face hub.

    Args:
        adapter: Folder of the adapter.
        named: Folder or Hugging Face id of the base, as the adapter names it; "" if it names none.
        served: Base of the model that the adapter is added to.
        given: Folder of the base that the operator names with `--base-model`, if any.
        force: Whether to accept a base that differs or cannot be compared.

    Raises:
        InvalidArgument: The base differs or cannot be compared; contains what to do.
    """
    if given is not None:
        if not _same(served, given):
            raise InvalidArgument(
                f"--base-model {given} is not the base that the model was built from: its weights differ"
            )
        return TrainedOn(given, f"trained on {given} (--base-model), whose weights are those of this model's base")
    problem = f"{adapter} names no base"
    if named:
        found = _on_this_machine(named, adapter)
        if found is not None and _same(served, found):
            return TrainedOn(found, f"trained on {named}, whose weights are those of this model's base")
        if found is not None:
            problem = f"{adapter} was trained on {named}, whose weights are not those of this model's base"
        elif served.name.casefold() == named.casefold():
            return TrainedOn(
                served.folder, f"trained on {named}, which this model was built from (the names were compared)"
            )
        else:
            problem = (
                f"{adapter} was trained on '{named}', which is not on this machine; this model was built from "
                f"'{served.name or 'a base without a name'}'"
            )
    if force:
        return TrainedOn(served.folder, f"added by --force: {problem}")
    raise InvalidArgument(
        f"{problem}: on another base than its own, a task gives wrong answers. Name the folder of the base that it was "
        "trained on with --base-model FOLDER, or add it without the comparison with --force"
    )


def source_on_this_machine(manifest: Published) -> Path | None:
    """The folder that a version was built from, if it is on this machine and unchanged; nothing is downloaded."""
    named, sha256 = Path(manifest.source.model).expanduser(), manifest.source.sha256
    for folder in (Path(manifest.spec).parent / named, named):
        if folder.is_dir() and hash_source(folder) == sha256:
            return folder
    found = _cached(manifest.source.model)
    return found if found is not None and hash_source(found) == sha256 else None


def _same(served: ServedBase, folder: Path) -> bool:
    if not folder.is_dir():
        raise InvalidArgument(f"{folder} is not a folder")
    try:
        return served.same(folder)
    except (TidalError, OSError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())[:300]
        raise InvalidArgument(f"the base {folder} cannot be compared with the model's: {reason}") from None


def _on_this_machine(named: str, adapter: Path) -> Path | None:
    """A local folder, or one in the cache of the Hugging Face hub, with weights as safetensors."""
    path = Path(named).expanduser()
    for folder in (path, adapter / path):
        if folder.is_dir():
            return folder if any(folder.glob("*.safetensors")) else None
    return _cached(named)


def _cached(model: str) -> Path | None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        found = Path(snapshot_download(model, allow_patterns=list(SOURCE_PATTERNS), local_files_only=True))
    except (HFValidationError, LocalEntryNotFoundError, OSError):
        return None
    return found if any(found.glob("*.safetensors")) else None
