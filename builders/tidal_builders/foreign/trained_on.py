"""The base that an adapter says it was trained on, and whether it is the one that a model was built from."""

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
        folder: That model's files, where they are on this machine and unchanged since the build.
        same: Whether a folder holds the weights that the model was built from; raises `TidalError`, `OSError`,
            `ValueError` or `KeyError` for a folder that cannot be loaded.
    """

    name: str
    folder: Path | None
    same: Callable[[Path], bool]


@dataclass(frozen=True, slots=True)
class TrainedOn:
    """The base of an adapter.

    Attributes:
        folder: Its files, whose weights are those of the served base; None where they are not on this machine.
        note: How it was compared with the served base.
    """

    folder: Path | None
    note: str


def trained_on(adapter: Path, named: str, served: ServedBase, given: Path | None, *, force: bool) -> TrainedOn:
    """Compare the base that an adapter names with the one that a model serves.

    Weights are compared where both are on this machine, names of the Hugging Face hub otherwise.

    Args:
        adapter: Folder of the adapter.
        named: The base's folder or Hugging Face id, as the adapter names it; "" if it names none.
        served: What the adapter is to be added to.
        given: `--base-model`: the base that the adapter was trained on, in the operator's words.
        force: Whether to accept a base that is another one, or that cannot be compared.

    Raises:
        InvalidArgument: The base is another one, or cannot be compared; says what to do.
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
        f"{problem}: on another base than its own a task answers wrongly. Name the folder of the base that it was "
        "trained on by --base-model FOLDER, or add it without the comparison by --force"
    )


def source_on_this_machine(manifest: Published) -> Path | None:
    """The files that a version was built from, where they are here and unchanged; nothing is downloaded."""
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
    """A local folder, or what is in the cache of the Hugging Face hub, with weights as safetensors."""
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
