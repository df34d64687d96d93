"""Runs a build of any kind: plans it, holds the model's lock, resumes finished stages and reports the result."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypedDict, TypeVar

from tidal_builders.planning import BuildPlan
from tidal_builders.report import BuildReport
from tidal_builders.spec import ModelSpec
from tidal_builders.workspace import Workspace, build_lock, drop_workspaces, open_workspace

SpecT = TypeVar("SpecT", bound=ModelSpec)
PlanT = TypeVar("PlanT", bound=BuildPlan[Any])
ReportT = TypeVar("ReportT", bound=BuildReport)

# Called with the name of the running stage and the completed share of it, 0 to 1.
StageProgress = Callable[[str, float], None]


class BuildOptions(TypedDict, total=False):
    """Options of every build, by keyword.

    Attributes:
        spec_file: File that the spec was read from. Relative paths of the spec start from its folder (default: the
            working directory), and the manifest names it in the command that rebuilds the model.
        force: Build again although the newest version is current, from the first stage on.
        progress: Called with the name of the running stage and the completed share of it.
    """

    spec_file: Path | None
    force: bool
    progress: StageProgress


@dataclass(frozen=True, slots=True)
class Recipe(Generic[SpecT, PlanT, ReportT]):
    """How one kind of model is built.

    Attributes:
        plan: Compares what is published with the spec. Called with the spec, the repository and the folder that
            relative paths of the spec start from.
        current: Reports a version that is current. Restores what `missing` of the plan lists, under the model's lock.
        build: Builds and publishes a version, or reports that it misses its tolerance or target ("missed").
        workspace: Name of a workspace that is kept for later builds; None: one per fingerprint, removed when its
            version is published.
    """

    plan: Callable[[SpecT, Path, Path], PlanT]
    current: Callable[[SpecT, PlanT], ReportT]
    build: Callable[[BuildRun[SpecT, PlanT]], ReportT]
    workspace: str | None = None


class BuildRun(Generic[SpecT, PlanT]):
    """One build under the model's lock.

    Args:
        spec: Spec of the model.
        plan: Current plan.
        repository: Model repository.
        spec_file: File that the spec was read from, if it was.
        force: Whether to build from the first stage on.
        progress: Called with the name of the running stage and the completed share of it.
        workspace: Name of the workspace, if it is kept for later builds.
    """

    def __init__(
        self,
        spec: SpecT,
        plan: PlanT,
        *,
        repository: Path,
        spec_file: Path | None,
        force: bool,
        progress: StageProgress,
        workspace: str | None,
    ) -> None:
        self.spec, self.plan = spec, plan
        self.repository, self.spec_file, self.force = repository, spec_file, force
        self.progress = progress
        self._workspace_name = workspace
        self._workspace: Workspace | None = None

    @property
    def base(self) -> Path:
        """Folder that relative paths of the spec start from."""
        return base_of(self.spec_file)

    @property
    def origin(self) -> str:
        """The spec file as the manifest names it."""
        return str(self.spec_file) if self.spec_file else f"<spec of {self.spec.name}>"

    @property
    def work(self) -> Workspace:
        """The workspace with the finished stages, opened at first use."""
        if self._workspace is None:
            name = self._workspace_name or self.plan.fingerprint
            self._workspace = open_workspace(self.plan.entry.folder, name, discard=self.force)
        return self._workspace

    @property
    def reused(self) -> tuple[str, ...]:
        """Names of stages that an earlier process finished and this build used."""
        return self._workspace.reused if self._workspace is not None else ()

    def finish(self) -> None:
        """Remove the stages of a version that is published, unless the kind keeps them."""
        if self._workspace_name is None:
            drop_workspaces(self.plan.entry.folder)


def run_build(
    recipe: Recipe[SpecT, PlanT, ReportT],
    spec: SpecT,
    repository: Path,
    *,
    spec_file: Path | None = None,
    force: bool = False,
    progress: StageProgress = lambda _stage, _share: None,
) -> ReportT:
    """Build one model into a repository, unless its newest version is current.

    Finished stages are kept under `<model>/.build/`, so that an interrupted build resumes where it stopped. Builds of
    the same model wait for each other. See `BuildOptions` for the keywords.

    Args:
        recipe: Steps of a build of this kind.
        spec: Spec of the model.
        repository: Model repository; it is created if it does not exist.
        spec_file: File that the spec was read from.
        force: Whether to build from the first stage on although the newest version is current.
        progress: Called with the name of the running stage and the completed share of it.

    Returns:
        The report; its outcome is "missed" if the result misses its tolerance or target.

    Raises:
        InvalidArgument: The spec requires what the source model or the engine does not have.
        TidalError: A stage failed.
    """
    begin, base = time.monotonic(), base_of(spec_file)

    def current(plan: PlanT) -> ReportT:
        return recipe.current(spec, plan).model_copy(update={"seconds": time.monotonic() - begin})

    plan = recipe.plan(spec, repository, base)
    if not plan.reasons and not plan.missing and not force:
        return current(plan)
    with build_lock(plan.entry.folder, lambda message: progress(message, 0.0)):
        plan = recipe.plan(spec, repository, base)  # the process that held the lock may have built it
        if not plan.reasons and not force:
            return current(plan)
        plan.entry.clear_staging()
        run = BuildRun(
            spec, plan, repository=repository, spec_file=spec_file, force=force, progress=progress,
            workspace=recipe.workspace,
        )  # fmt: skip
        report = recipe.build(run)
    update: dict[str, object] = {"reused": run.reused, "seconds": time.monotonic() - begin}
    if report.outcome != "missed":
        update |= {"outcome": "published", "reasons": plan.reasons or ("forced",)}
    return report.model_copy(update=update)


def base_of(spec_file: Path | None) -> Path:
    """Folder that relative paths of a spec start from: that of its file, else the working directory."""
    return spec_file.parent if spec_file else Path()
