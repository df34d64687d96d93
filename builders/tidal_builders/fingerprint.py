"""What a published version was made of: hashes of its source, its code and its libraries, and what has changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from tidal.errors import InvalidArgument
from tidal.manifest import sha256_file
from tidal_builders.imports import PACKAGES, import_closure

# Files of a Hugging Face folder that decide what the model computes. Pickled weights are not read.
SOURCE_PATTERNS = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja", "additional_chat_templates/*.jinja")
# The same in the folders of sentence-transformers' modules, such as 1_Pooling.
_MODULE_PATTERNS = ("[0-9]*_*/config.json", "[0-9]*_*/*.safetensors")
# Packages that no build depends on: the commands, and what runs or lists published versions of any kind.
_NOT_BUILDING = ("tidal.commands", "tidal_builders.commands", "tidal.server", "tidal.catalog.manifests")


def source_folder(model: str, revision: str | None, base: Path, named: str = "field 'model'") -> Path:
    """The folder with the files of a model or adapter; one of the Hugging Face hub is downloaded once.

    Args:
        model: Path of a folder, or a Hugging Face id.
        revision: Branch, tag or commit of the id.
        base: Folder that a relative path starts from.
        named: Name of `model` in errors.

    Raises:
        InvalidArgument: The folder does not exist, and no model of that id can be downloaded or is in the cache.
    """
    local = base / Path(model).expanduser()
    if local.is_dir():
        return local
    if model.startswith(("/", "./", "../", "~")):
        raise InvalidArgument(f"{named}: there is no folder {local}")
    from huggingface_hub import snapshot_download
    from huggingface_hub.constants import ENDPOINT
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(model, revision=revision, allow_patterns=list(SOURCE_PATTERNS)))
    except LocalEntryNotFoundError:
        raise InvalidArgument(
            f"{named}: there is no folder {local}, and the Hugging Face model '{model}' is not in the cache of this "
            f"machine and cannot be downloaded from {ENDPOINT}; give the path of a folder, or download the model where "
            f"there is a network: hf download {model} --local-dir FOLDER"
        ) from None
    except (HFValidationError, HfHubHTTPError, OSError) as error:
        reason = " ".join(str(error).split())[:300]
        raise InvalidArgument(
            f"{named}: '{model}' is neither a folder nor a Hugging Face id that can be downloaded: {reason}"
        ) from None


def hash_files(root: Path, paths: Iterable[Path]) -> str:
    """Hex SHA-256 over paths, relative to `root`, and contents of files."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(f"{path.relative_to(root)}\0{sha256_file(path)}\n".encode())
    return digest.hexdigest()


def hash_source(folder: Path) -> str:
    """Hex SHA-256 over the files of a source model."""
    return hash_files(
        folder, {path for pattern in (*SOURCE_PATTERNS, *_MODULE_PATTERNS) for path in folder.glob(pattern)}
    )


def code_hash(*roots: str, leave_out: tuple[str, ...] = ()) -> str:
    """Hex SHA-256 over the code that decides what a build publishes; see `build_code`."""
    return hash_code(build_code(roots, leave_out))


@cache
def build_code(
    roots: tuple[str, ...], leave_out: tuple[str, ...] = (), packages: tuple[tuple[str, Path], ...] = PACKAGES
) -> Mapping[str, Path]:
    """The modules that decide what a build publishes: all that its module imports.

    Commands are left out, because their texts decide nothing, and so is what runs published versions.

    Args:
        roots: Dotted names of the module that builds, and of modules that it opens by name, such as the engine's.
        leave_out: Dotted names of other packages to leave out, such as those whose results have hashes of their own.
        packages: Names and folders of the top-level packages.

    Returns:
        File of each module by its dotted name.
    """
    return import_closure(roots, leave_out=(*_NOT_BUILDING, *leave_out), packages=dict(packages))


def hash_code(modules: Mapping[str, Path]) -> str:
    """Hex SHA-256 over names and contents of modules."""
    text = "".join(f"{name}\0{sha256_file(path)}\n" for name, path in sorted(modules.items()))
    return hashlib.sha256(text.encode()).hexdigest()


def fingerprint(parts: Mapping[str, str]) -> str:
    """One hash for all ingredients."""
    return hashlib.sha256(json.dumps(dict(parts), sort_keys=True).encode()).hexdigest()


def changes(built: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The differences between the ingredients of a published version and the current ones, one clause each."""
    clauses = []
    for name in sorted(built.keys() | now.keys()):
        old, new = built.get(name, "none"), now.get(name, "none")
        if old != new:
            is_hash = len(old) == 64 or len(new) == 64
            clauses.append(f"{name} changed" if is_hash else f"{name} changed from {old} to {new}")
    return clauses
