"""The model that a `tidal tasks` command is called with, and the options that these commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidal.catalog.manifests import load_published
from tidal.commands.connecting import DEFAULT_REPOSITORY
from tidal.commands.decoder_tasks import DecoderTasks
from tidal.commands.encoder_tasks import EncoderTasks
from tidal.commands.vision_tasks import VisionTasks
from tidal.errors import InvalidArgument, NotFound, did_you_mean
from tidal.flover.manifest import FloverManifest
from tidal.manifest import MANIFEST_FILE
from tidal.otas.manifest import OtasManifest
from tidal.pets.base import BASE_FILE
from tidal.repository.entries import ModelEntry, model_entries
from tidal.server.state import running_servers

Model = Annotated[str, typer.Argument(metavar="MODEL", help="Name of a model that serves tasks.")]
Repository = Annotated[
    Path | None,
    typer.Option(help="Model repository; default: that of the running server, else ./model_repository."),
]


def find_task_model(repository: Path | None, name: str) -> tuple[ModelEntry, EncoderTasks | DecoderTasks | VisionTasks]:
    """The model of this name, and the tasks of its newest version.

    Args:
        repository: Model repository; None for the default.
        name: Name of the model.

    Raises:
        InvalidArgument: No repository can be chosen, or the model serves no tasks.
        NotFound: The repository has no such model.
    """
    if repository is None:
        served = sorted({state.repository for state in running_servers()})
        if len(served) > 1:
            folders = ", ".join(map(str, served))
            raise InvalidArgument(f"several servers are running: choose a repository by --repository, {folders}")
        repository = served[0] if served else DEFAULT_REPOSITORY
    if not repository.is_dir():
        raise InvalidArgument(f"model repository '{repository}' is not a folder; name one by --repository")
    entries = {entry.name: entry for entry in model_entries(repository)}
    if name not in entries:
        raise NotFound(f"there is no model '{name}' in {repository}: {did_you_mean(name, entries)}")
    version = entries[name].latest()
    if version is None:
        raise InvalidArgument(f"model '{name}' has no published version; build it with `tidal build`")
    if (version / BASE_FILE).is_file():
        return entries[name], EncoderTasks(entries[name].folder, version)
    manifest = load_published(version) if (version / MANIFEST_FILE).is_file() else None
    if isinstance(manifest, OtasManifest):
        return entries[name], VisionTasks(entries[name].folder, version, manifest)
    if isinstance(manifest, FloverManifest):
        return entries[name], DecoderTasks(entries[name].folder, version, manifest)
    raise InvalidArgument(f"model '{name}' serves no tasks: only those of a spec of kind pets, otas or flover do")
