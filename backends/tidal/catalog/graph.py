"""Which models of a repository belong together: what must be loaded for what, and what was built for what alone.

Four kinds of models have relations to others:

- a *partitioned* model, the front of its runtimes: each runtime is a model of its own, `<front>_len<N>`;
- a *cascade*, whose levels are models of the server unless they run in the cascade's own process;
- an *ensemble* of Triton, whose steps are models;
- a *runtime's model*, which is built for its front.

`ModelGraph.read` gives one snapshot for one operation, such as a start, a load or an unload, which then walks it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from tidal.arlo.manifest import ArloManifest
from tidal.catalog.manifests import load_published
from tidal.engine_model.manifest import EngineManifest
from tidal.errors import InvalidArgument
from tidal.manifest import Version
from tidal.repository.config import read_config
from tidal.repository.entries import ModelEntry, model_entries
from tidal.repository.names import runtime_model
from tidal.tabi.choice import CandidateChoice
from tidal.tabi.levels import embedded_levels
from tidal.tabi.manifest import TabiManifest
from tidal.tabi.parameters import TabiParameters

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class PartitionedModel:
    """A version of a partitioned model.

    Attributes:
        name: Name of the front, which reads requests and chooses a runtime.
        version: Number of the version, shared by the front and its runtimes.
        lengths: Input lengths of its runtimes in tokens, ascending.
    """

    name: str
    version: int
    lengths: tuple[int, ...]

    @property
    def runtime_models(self) -> dict[int, str]:
        """Names of the runtimes' models by input length, ascending."""
        return {length: runtime_model(self.name, length) for length in self.lengths}


class ModelGraph:
    """Relations between the models of a repository.

    Every folder, manifest and config is read at most once, when it is first needed. Read a new graph for each
    operation: this one does not notice later changes of the files. A manifest or config that cannot be read gives a
    model no relations.
    """

    def __init__(self, repository: Path | None) -> None:
        """Create an empty snapshot; see `read`."""
        self.repository = repository
        self._known: dict[tuple[Hashable, ...], Any] = {}

    @classmethod
    def read(cls, repository: Path | None) -> ModelGraph:
        """A fresh snapshot.

        Args:
            repository: Folder of the model repository; None for a server whose repository is not known, where no model
                has relations.
        """
        return cls(repository)

    # What the files say.

    @property
    def models(self) -> tuple[str, ...]:
        """Names of all models, also of those without a published version, sorted."""
        return self._once(("models",), self._read_models)

    def entry(self, model: str) -> ModelEntry:
        """Folder of a model; the graph must have a repository."""
        if self.repository is None:
            raise InvalidArgument(f"model '{model}': the server's model repository is not known")
        return ModelEntry(self.repository / model)

    def versions(self, model: str) -> tuple[int, ...]:
        """Published versions of a model, ascending."""
        return self._once(("versions", model), lambda: tuple(self.entry(model).versions()) if self.repository else ())

    def manifest(self, model: str, version: int | None = None) -> Version | None:
        """Manifest of a version; None where it cannot be read.

        Args:
            model: Name of the model.
            version: Number of the version; None for the newest.
        """
        if version is None:
            if not self.versions(model):
                return None
            version = self.versions(model)[-1]
        return self._once(("manifest", model, version), lambda: self._read_manifest(model, version))

    def config(self, model: str) -> dict[str, Any]:
        """A model's config.pbtxt, as `read_config` returns it.

        Raises:
            InvalidArgument: The file is missing or not valid.
        """
        found = self._once(("config", model), lambda: self._read_config(model))
        if isinstance(found, InvalidArgument):
            raise found
        return found

    # Relations.

    def partitioned(self, model: str, version: int | None = None) -> PartitionedModel | None:
        """A version of a partitioned model by its front's name, the newest unless one is named; None for others."""
        manifest = self.manifest(model, version)
        if not isinstance(manifest, ArloManifest) or manifest.placement != "partitioned":
            return None
        lengths = tuple(runtime.max_length for runtime in manifest.runtimes)
        return PartitionedModel(model, version or self.versions(model)[-1], lengths)

    def front_of(self, model: str) -> str | None:
        """Name of the front for which a runtime's model was built; None for other models."""
        manifest = self.manifest(model)
        return manifest.front if isinstance(manifest, EngineManifest) else None

    def owner(self, model: str) -> PartitionedModel | None:
        """The partitioned model for which a runtime's model was built; None for others, and once it is not partitioned.

        The runtime may be one that the owner's newest version no longer has.
        """
        front = self.front_of(model)
        return self.partitioned(front) if front is not None else None

    def runtimes_of(self, front: str) -> tuple[str, ...]:
        """Models that were built as runtimes of a front, also those that its newest version no longer has."""
        form = re.compile(rf"{re.escape(front)}_len\d+")
        return tuple(name for name in self.models if form.fullmatch(name) and self.front_of(name) == front)

    def steps(self, model: str) -> tuple[str, ...]:
        """Models of an ensemble's steps, each once, in order; a step may be an ensemble too. Empty for other models."""
        return self._once(("steps", model), lambda: self._read_steps(model))

    def composite(self, model: str) -> bool:
        """Whether a model calls others while it loads: a cascade or an ensemble."""
        return isinstance(self.manifest(model), TabiManifest) or bool(self.steps(model))

    def requires(self, model: str, version: int | None = None) -> tuple[str, ...]:
        """Models that a version of a model calls.

        Args:
            model: Name of the model.
            version: Number of the version; None for the newest.

        Returns:
            Runtimes of a partitioned model, ascending; levels of a cascade that do not run in its own process; steps of
            an ensemble. They need not be published.
        """
        partitioned = self.partitioned(model, version)
        if partitioned is not None:
            return tuple(partitioned.runtime_models.values())
        manifest = self.manifest(model, version)
        if isinstance(manifest, TabiManifest):
            return self._once(("levels", model, version), lambda: self._called_levels(model, manifest))
        return tuple(step for step in self.steps(model) if step != model)

    def owned_by(self, model: str, version: int | None = None) -> tuple[str, ...]:
        """Models that were built for a model alone: every runtime of a front, and a cascade's own levels.

        Args:
            model: Name of the model.
            version: Version of a cascade; None for the newest.
        """
        manifest = self.manifest(model, version)
        levels = manifest.levels if isinstance(manifest, TabiManifest) else ()
        own = (each.model for each in levels if each.task is None and each.model == f"{model}_{each.name}")
        return (*self.runtimes_of(model), *own)

    def superseded(self) -> set[str]:
        """Models that were built for a published model alone and that no model requires any more."""
        owned = {level for name in self.models for level in self.owned_by(name)}
        owned |= {name for name in self.models if (front := self.front_of(name)) is not None and self.versions(front)}
        required = {each for name in self.models for each in self.requires(name)}
        return owned - required

    def load_order(self, models: Iterable[str]) -> list[str]:
        """Models with all that they require, directly or through others, each once and after what it requires.

        Runtimes and levels that are not published are left out: a front or cascade reports them when it loads.
        """
        order: list[str] = []
        seen: set[str] = set()
        for model in models:
            self._visit(model, seen, order)
        return order

    def dependents(self, model: str, among: Collection[str]) -> list[str]:
        """Models that require a model, directly or through others: its front, cascades, ensembles; sorted.

        Args:
            model: Name of the model.
            among: Names of the models that are considered.
        """
        needs = {name: {*self.requires(name), *self.runtimes_of(name)} for name in among}
        found: set[str] = set()
        new = {model}
        while new:
            new = {name for name in among if name not in found and name != model and needs[name] & new}
            found |= new
        return sorted(found)

    def cascades_over(self, model: str, task: str) -> list[str]:
        """Names of the cascades whose newest version has a level that is this task of this model."""
        return [
            name
            for name in self.models
            if isinstance(manifest := self.manifest(name), TabiManifest)
            and any((level.model, level.task) == (model, task) for level in manifest.levels)
        ]

    def _visit(self, model: str, seen: set[str], order: list[str]) -> None:
        if model in seen:
            return
        seen.add(model)
        for each in self.requires(model):
            if self.versions(each) or self.steps(model):
                self._visit(each, seen, order)
        order.append(model)

    def _called_levels(self, model: str, manifest: TabiManifest) -> tuple[str, ...]:
        """Models of the levels that a cascade calls; of all its levels where its config is not valid."""
        called: Iterable[int]
        try:
            raw = self.config(model).get("parameters", {})
            own = {name: raw[name].get("string_value", "") for name in raw if name in TabiParameters.model_fields}
            parameters = TabiParameters.model_validate(own)
            levels = CandidateChoice(manifest, parameters.target()).levels
            embedded = embedded_levels(self.entry(model).folder.parent, manifest, parameters.levels, levels, self._arlo)
            called = (index for index in levels if index not in embedded)
        except (InvalidArgument, ValidationError):
            called = range(len(manifest.levels))
        return tuple(dict.fromkeys(manifest.levels[index].model for index in called))

    def _arlo(self, version_dir: Path) -> ArloManifest:
        manifest = self.manifest(version_dir.parent.name, int(version_dir.name))
        if not isinstance(manifest, ArloManifest):
            raise InvalidArgument(f"{version_dir} is not a version of an Arlo model")
        return manifest

    def _read_models(self) -> tuple[str, ...]:
        if self.repository is None or not self.repository.is_dir():
            return ()
        return tuple(entry.name for entry in model_entries(self.repository))

    def _read_manifest(self, model: str, version: int) -> Version | None:
        if self.repository is None:
            return None
        try:
            return load_published(self.entry(model).version_dir(version))
        except InvalidArgument:
            return None

    def _read_config(self, model: str) -> dict[str, Any] | InvalidArgument:
        try:
            return read_config(self.entry(model).folder)
        except InvalidArgument as error:
            return error

    def _read_steps(self, model: str) -> tuple[str, ...]:
        try:
            steps = self.config(model).get("ensemble_scheduling", {}).get("step", [])
        except InvalidArgument:
            return ()
        return tuple(dict.fromkeys(step["model_name"] for step in steps if "model_name" in step))

    def _once(self, key: tuple[Hashable, ...], read: Callable[[], _T]) -> _T:
        if key not in self._known:
            self._known[key] = read()
        found: _T = self._known[key]
        return found
