"""Levels that are tasks of a shared encoder: read from the repository, and run on the engine that serves them."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from tidal.catalog.manifests import load_published
from tidal.errors import InvalidArgument
from tidal.manifest import MANIFEST_FILE, sha256_file
from tidal.pets.base import load_base_layers
from tidal.pets.engine.contract import LoadedTask, PetsEngine
from tidal.pets.engine.description import ATTENTION_RECEIVED
from tidal.pets.manifest import ENGINE_FOLDER, PetsManifest, load_pets_manifest
from tidal.pets.opening import open_pets_engine
from tidal.pets.tasks.folder import load_task
from tidal.pets.tasks.manifest import TaskInfo, read_task_info
from tidal.repository.config import read_config
from tidal.repository.entries import ModelEntry
from tidal.requests import Array
from tidal.tasks.folder import check_base, read_task, tasks_folder
from tidal.text.words import EncodedWords
from tidal_builders.tabi.spec import LevelSpec

# The file that the answers of a task depend on.
CODE = Path(__file__)


@dataclass(frozen=True, slots=True)
class TaskLevel:
    """A level that is a published task: nothing is built for it.

    Attributes:
        model: Name of the `pets` model that has the task.
        task: Name of the task.
        folder: Folder of the model's newest version.
        base: Manifest of that version.
        info: Description of the task.
    """

    model: str
    task: str
    folder: Path
    base: PetsManifest
    info: TaskInfo

    @property
    def name(self) -> str:
        """Name of the model and the task."""
        return f"{self.model}/{self.task}"

    @property
    def reasons(self) -> tuple[str, ...]:
        """Reasons to build it: always none."""
        return ()

    @property
    def attention(self) -> bool:
        """Whether it gives `attention_received`."""
        return self.base.attention_received

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the base and the task."""
        return hashlib.sha256(f"{self.base.fingerprint}\0{self.info.fingerprint}".encode()).hexdigest()

    @property
    def state(self) -> str:
        """Current state: the base's version, whose measured latencies it includes, and the task."""
        return f"{sha256_file(self.folder / MANIFEST_FILE)} {self.info.fingerprint}"


def find_task(level: LevelSpec, repository: Path) -> TaskLevel:
    """Return the task that a level of the spec names.

    Args:
        level: Level with a task.
        repository: Model repository with its model.

    Raises:
        InvalidArgument: The model does not exist or has no tasks, or it does not have this task; the message names
            the level.
    """
    assert level.task is not None
    folder = ModelEntry(repository / level.model).latest()
    if folder is None:
        raise InvalidArgument(
            f"level '{level.name}': no version of model '{level.model}' is published in {repository}: build it from "
            "its own spec (kind: pets) first, and add the task"
        )
    try:
        base = load_published(folder)
        if not isinstance(base, PetsManifest):
            raise InvalidArgument(f"model '{level.model}' is of kind {base.kind}; a level with a task needs kind pets")
        info = task_info(folder, level.task)
        check_base(info, base.base)
        if info.head != "classification":
            raise InvalidArgument(
                f"task '{level.task}' of model '{level.model}' is for {info.head}; a level needs one for classification"
            )
        _check_outputs(folder.parent, base)
    except InvalidArgument as error:
        raise InvalidArgument(f"level '{level.name}': {error}") from None
    return TaskLevel(level.model, level.task, folder, base, info)


def _check_outputs(model: Path, base: PetsManifest) -> None:
    """Check a base's config.pbtxt, which no build changes, against the outputs of its version."""
    declared = {each["name"] for each in read_config(model).get("output", [])}
    if base.attention_received and ATTENTION_RECEIVED not in declared:
        raise InvalidArgument(
            f"model '{model.name}' gives {ATTENTION_RECEIVED}, which its config.pbtxt does not declare: add the output "
            f'{{ name: "{ATTENTION_RECEIVED}" data_type: TYPE_FP32 dims: [ -1 ] }} there'
        )


def task_info(version_dir: Path, task: str) -> TaskInfo:
    """Read the description of a task of a version's model.

    Args:
        version_dir: Folder of the version.
        task: Name of the task.

    Raises:
        InvalidArgument: There is no such task; the message names similar ones.
    """
    return read_task(tasks_folder(version_dir.parent), task, read_task_info)


class TaskRunner:
    """Runs a task one query at a time, on the engine of its base's version.

    Args:
        version_dir: Folder of the base's version.
        task: Name of the task.

    Raises:
        InvalidArgument: The version has no valid manifest, or its model does not have the task.
    """

    def __init__(self, version_dir: Path, task: str) -> None:
        manifest = load_pets_manifest(version_dir)
        self.tokenizer, self.max_length = manifest.tokenizer.file, manifest.max_length
        self.attention = manifest.attention_received
        self._manifest, self._folder, self._task = manifest, version_dir, task

    @cached_property
    def _opened(self) -> tuple[PetsEngine, LoadedTask]:
        manifest = self._manifest
        task = load_task(tasks_folder(self._folder.parent), self._task, load_base_layers(self._folder))
        engine = open_pets_engine(
            manifest.engine,
            self._folder / ENGINE_FOLDER,
            threads=manifest.threads,
            device=manifest.device.kind,
            precision=manifest.precision,
            profile=manifest.profile,
        )
        return engine, engine.add(task.terms, cost_key=task.info.kind)

    def run(self, query: EncodedWords) -> tuple[dict[str, Array], float]:
        """Return the outputs of one query, each [1, …], and the seconds that it took.

        Args:
            query: Query, tokenised for the base.
        """
        engine, task = self._opened
        ids, lengths = query.ids[None].astype(np.int32), np.array([len(query.ids)], np.int32)
        types = query.type_ids[None].astype(np.int32) if self._manifest.tokenizer.type_ids else None
        outputs: dict[str, Array] = {}
        begin = time.perf_counter()
        found = engine.run([task], ids, lengths, types, attention=self.attention)
        if found.received is not None:
            outputs[ATTENTION_RECEIVED] = found.received
        outputs["logits"] = np.asarray(found.pooled @ task.head.weight.T + task.head.bias, np.float32)
        return outputs, time.perf_counter() - begin
