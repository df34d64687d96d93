"""Plans the build of a cascade, without loading its models."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tidal.errors import InvalidArgument
from tidal.manifest import MANIFEST_FILE, sha256_file
from tidal.repository.entries import ModelEntry
from tidal.tabi.manifest import Metric, TabiManifest, load_tabi_manifest
from tidal_builders.arlo.plan import ArloPlan, plan_arlo
from tidal_builders.arlo.spec import ArloSpec
from tidal_builders.fingerprint import changes, code_hash, fingerprint, source_folder
from tidal_builders.planning import BuildPlan, library_ingredients, spec_ingredients
from tidal_builders.tabi.labels import LabelAgreement, agree_labels, agree_rerankers, classes_of, read_classes
from tidal_builders.tabi.spec import TabiSpec
from tidal_builders.tabi.task_levels import TaskLevel, find_task

_TARGET = "target"


@dataclass(frozen=True, slots=True)
class LevelPlan:
    """The plan of a level's own model.

    Attributes:
        spec: Spec of the classifier.
        plan: Plan of its build.
    """

    spec: ArloSpec
    plan: ArloPlan

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it must be built or restored, one clause each."""
        return self.plan.reasons or self.plan.missing

    @property
    def name(self) -> str:
        """Name of its Triton model."""
        return self.spec.name

    @property
    def fingerprint(self) -> str:
        """Hash over everything that its version is made of."""
        return self.plan.fingerprint

    @property
    def state(self) -> str:
        """Hash of its newest version's manifest, or "none"."""
        newest = self.plan.entry.latest()
        return sha256_file(newest / MANIFEST_FILE) if newest else "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class CascadePlan(BuildPlan[TabiManifest]):
    """What the build of a cascade would publish; see `BuildPlan`.

    Attributes:
        data: File with the labelled queries.
        agreement: Task and labels that the levels share.
        metric: Metric of the scores.
        levels: Plans of the levels, in the order of the spec.
    """

    data: Path
    agreement: LabelAgreement
    metric: Metric
    levels: tuple[LevelPlan | TaskLevel, ...]

    @property
    def search_key(self) -> str:
        """Hash over everything that candidates depend on: ingredients except the target, and versions of the levels."""
        parts = {name: value for name, value in self.ingredients.items() if name != _TARGET}
        parts |= {f"version {level.name}": level.state for level in self.levels}
        return fingerprint(parts)


def plan_cascade(spec: TabiSpec, repository: Path, base: Path) -> CascadePlan:
    """Compare what is published with the current spec, data, levels and code.

    Args:
        spec: Spec of the cascade.
        repository: Model repository; it need not exist.
        base: Folder that relative paths of the spec start from.

    Raises:
        InvalidArgument: A level's model or the data does not exist, or they are not compatible.
    """
    data = base / spec.data.expanduser()
    if not data.is_file():
        raise InvalidArgument(f"field 'data': there is no file {data}")
    tasks = {level.name: find_task(level, repository) for level in spec.levels if level.task is not None}
    classes = []
    for level in spec.levels:
        if level.name in tasks:
            if spec.task == "rerank":
                raise InvalidArgument(
                    f"level '{level.name}': got the task '{level.task}' of '{level.model}'; a cascade of rerankers "
                    "accepts models of its own: give a folder or an id as 'model', without 'task'"
                )
            classes.append(classes_of(level.name, tasks[level.name].info.labels, level.labels))
            continue
        try:
            folder = source_folder(level.model, level.revision, base)
        except InvalidArgument as error:
            raise InvalidArgument(f"level '{level.name}': {error}") from None
        classes.append(read_classes(level.name, folder, level.labels))
    agreement = (agree_rerankers if spec.task == "rerank" else agree_labels)(classes, spec.labels)
    metric = _metric(spec, agreement)
    levels = tuple(
        tasks.get(level.name) or _level_plan(spec, place, agreement, repository, base)
        for place, level in enumerate(spec.levels)
    )
    parts = _ingredients(spec, data, agreement, metric, levels)
    entry = ModelEntry(repository / spec.name)
    if spec.name in {task.model for task in tasks.values()}:
        raise InvalidArgument(f"field 'name': '{spec.name}' is the pets model that a level's task is of")
    published, reasons = _compare(entry, parts, spec, levels)
    return CascadePlan(
        entry=entry,
        ingredients=parts,
        published=published,
        reasons=tuple(reasons),
        data=data,
        agreement=agreement,
        metric=metric,
        levels=levels,
    )


def _metric(spec: TabiSpec, agreement: LabelAgreement) -> Metric:
    regression = agreement.task == "regression"
    metric: Metric = spec.metric or ("pearson" if regression else "accuracy")
    if regression == (metric == "accuracy"):
        accepted = "pearson, spearman and r2" if regression else "accuracy"
        raise InvalidArgument(f"field 'metric': a {agreement.task} cascade has {accepted}, got {metric}")
    if spec.tolerance is not None and not regression:
        raise InvalidArgument(f"field 'tolerance': for regressions alone, and this is a {agreement.task} cascade")
    if spec.early_router and regression:
        raise InvalidArgument("field 'early_router': got true; a regression cascade accepts false alone")
    return metric


def _level_plan(spec: TabiSpec, place: int, agreement: LabelAgreement, repository: Path, base: Path) -> LevelPlan:
    level = spec.levels[place]
    last = place == len(spec.levels) - 1
    model = ArloSpec(
        kind="arlo",
        name=spec.model_of(level),
        model=level.model,
        revision=level.revision,
        labels=agreement.names_of(place),
        # Attention costs time, and nothing reads that of the largest.
        task=agreement.task,
        outputs=("logits",) if last else ("logits", "attention_received"),
        **spec.runtimes_of(level).model_dump(exclude_unset=True),
    )
    try:
        return LevelPlan(model, plan_arlo(model, repository, base))
    except InvalidArgument as error:
        raise InvalidArgument(f"level '{level.name}': {error}") from None


def _ingredients(
    spec: TabiSpec, data: Path, agreement: LabelAgreement, metric: Metric, levels: tuple[LevelPlan | TaskLevel, ...]
) -> dict[str, str]:
    """Everything that a cascade is made of, by name, as texts that change when it does."""
    parts = spec_ingredients(spec, {"task", "columns", "tolerance", "latencies", "early_router", "parts"})
    parts |= {
        "spec.labels": json.dumps(agreement.labels),
        "spec.metric": metric,
        _TARGET: spec.target.model_dump_json(exclude_none=True),
        "data file": sha256_file(data),
        "levels": ", ".join(level.name for level in spec.levels),
        # Levels have fingerprints of their own, which include the code that builds them.
        "cascade code": code_hash("tidal_builders.tabi.build", leave_out=("tidal_builders.arlo",)),
    }
    parts |= {f"level {level.name}": planned.fingerprint for level, planned in zip(spec.levels, levels, strict=True)}
    return parts | library_ingredients(("numpy", "scipy", "tokenizers"))


def _compare(
    entry: ModelEntry, parts: Mapping[str, str], spec: TabiSpec, levels: tuple[LevelPlan | TaskLevel, ...]
) -> tuple[TabiManifest | None, list[str]]:
    latest = entry.latest()
    if latest is None:
        return None, ["no version is published"]
    try:
        manifest = load_tabi_manifest(latest)
        manifest.check_files(latest)
    except InvalidArgument as error:
        return None, [str(error)]
    own = {f"level {level.name}": planned.reasons for level, planned in zip(spec.levels, levels, strict=True)}
    # The reasons of a level are more specific than the change of its fingerprint.
    clauses = [each for each in changes(manifest.ingredients, parts) if not own.get(each.removesuffix(" changed"))]
    clauses += [f"{name}: {reason}" for name, reasons in own.items() for reason in reasons]
    served = {level.model: level.version for level in manifest.levels if level.task is None}
    for planned in levels:
        if isinstance(planned, TaskLevel):
            continue  # any version of its base can serve it
        version = served.get(planned.spec.name)
        if version is not None and not planned.reasons and version != planned.plan.version:
            clauses.append(f"{planned.spec.name} has version {planned.plan.version}, the cascade uses {version}")
    return manifest, clauses
