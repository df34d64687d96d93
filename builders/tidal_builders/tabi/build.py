"""From a cascade's spec to a published version: levels, their answers, candidates, the choice."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from tidal.errors import InvalidArgument, TidalError
from tidal.repository.entries import write_atomically
from tidal.tabi.manifest import TabiManifest
from tidal.tabi.selection import select
from tidal_builders.foreign.recognise import SINGLE_OUTPUT
from tidal_builders.report import BuildReport
from tidal_builders.tabi.config import cascade_config_pbtxt
from tidal_builders.tabi.data import LabelledQueries, read_queries
from tidal_builders.tabi.plan import CascadePlan, plan_cascade
from tidal_builders.tabi.report import CascadeReport, of_manifest
from tidal_builders.tabi.spec import TabiSpec
from tidal_builders.tabi.task_levels import TaskLevel
from tidal_builders.workspace import Workspace, build_lock, open_workspace

Report = Callable[[str, float], None]
# A server goes on calling the version of a level that its cascade names while the next one is published.
_SERVED_VERSIONS = 2
# One workspace for all builds of a cascade: what is in it says by its name what it belongs to.
_WORKSPACE = "cascade"


def build_tabi(
    spec: TabiSpec,
    repository: Path,
    *,
    spec_file: Path | None = None,
    force: bool = False,
    report: Report = lambda _stage, _share: None,
) -> CascadeReport:
    """Build a cascade and its levels into a repository, as far as they are not there already.

    The levels are models of their own, built and verified as such, and published before the cascade; or tasks of a
    shared encoder that are there already, of which nothing is built. Their answers to
    the labelled queries are kept under `<model>/.build/`, also after the build: a change of the target alone chooses
    among the same candidates again, a change of one level runs that level alone. Builds of the same cascade wait for
    each other.

    Args:
        spec: what to build.
        repository: the model repository; it is made where it does not exist.
        spec_file: where the spec was read from: relative paths of the spec start from its folder (without it: from
            the working directory), and the manifests name it in the command that rebuilds the model.
        force: build the levels and run them anew.
        report: told the name of the running stage and the share of it that is done.

    Returns:
        The report; its outcome is "missed" where a level misses its tolerance or no candidate the target.

    Raises:
        InvalidArgument: the levels do not go together, the data is wrong, or a level cannot be built as asked.
        TidalError: a stage failed.
    """
    begin = time.monotonic()
    base = spec_file.parent if spec_file else Path()
    plan = plan_cascade(spec, repository, base)
    if not plan.reasons and not force:
        return _current(plan, begin)
    with build_lock(plan.entry.folder, lambda message: report(message, 0.0)):
        plan = plan_cascade(spec, repository, base)  # whoever held the lock may have built it
        if not plan.reasons and not force:
            return _current(plan, begin)
        plan.entry.clear_staging()
        labels = None if plan.agreement.task == "regression" else plan.agreement.labels
        # Before the levels take their time.
        queries = read_queries(plan.data, spec.columns, labels, spec.parts)
        work = open_workspace(plan.entry.folder, _WORKSPACE, anew=force)
        models = _build_levels(spec, plan, repository, spec_file, force=force, report=report)
        misses = tuple(
            f"{model.name}: {miss}" for model in models if model.outcome == "missed" for miss in model.reasons
        )
        if misses:
            made = CascadeReport(name=spec.name, outcome="missed", reasons=misses)
        else:
            reasons = plan.reasons or ("forced",)
            plan = plan_cascade(spec, repository, base)  # with the levels that are there now
            made = _choose(spec, plan, queries, spec_file, work, reasons, report)
    update = {"models": models, "reused": work.reused, "seconds": time.monotonic() - begin}
    return made.model_copy(update=update)


def _current(plan: CascadePlan, begin: float) -> CascadeReport:
    assert plan.published is not None
    _write_config(plan, plan.published)
    return of_manifest(plan.published, plan.version).model_copy(update={"seconds": time.monotonic() - begin})


def _build_levels(
    spec: TabiSpec, plan: CascadePlan, repository: Path, spec_file: Path | None, *, force: bool, report: Report
) -> tuple[BuildReport, ...]:
    """Build the levels' models that are not current, up to the first that is not published."""
    from tidal_builders.arlo.build import build_arlo
    from tidal_builders.tabi.publish import named_versions

    made: list[BuildReport] = []
    for level, planned in zip(spec.levels, plan.levels, strict=True):
        if isinstance(planned, TaskLevel) or not (planned.reasons or force):
            continue
        try:
            model = build_arlo(
                planned.spec,
                repository,
                spec_file=spec_file,
                force=force,
                serve_versions=_SERVED_VERSIONS,
                needed=named_versions(plan.entry, planned.spec.name),
                accepted=SINGLE_OUTPUT,
                report=_within(level.name, report),
            )
        except TidalError as error:
            raise type(error)(f"level '{level.name}': {error}") from error
        made.append(model)
        if model.outcome == "missed":
            break
    return tuple(made)


def _within(level: str, report: Report) -> Report:
    return lambda stage, share: report(f"{level}: {stage}", share)


def _choose(
    spec: TabiSpec,
    plan: CascadePlan,
    queries: LabelledQueries,
    spec_file: Path | None,
    work: Workspace,
    reasons: tuple[str, ...],
    report: Report,
) -> CascadeReport:
    """Search candidates, unless that is done, and publish the choice; or say that none meets the target."""
    from tidal_builders.tabi.collect import answers_key
    from tidal_builders.tabi.measured_search import retain_current, search_cascade, search_report
    from tidal_builders.tabi.publish import levels_of, publish_cascade
    from tidal_builders.tabi.versions import newest_version

    versions = [newest_version(level) for level in plan.levels]
    found = search_cascade(spec, plan, queries, versions, work, report)
    levels, candidates = levels_of(spec, plan, found, versions), found.result.candidates
    names = [level.name for level in spec.levels]
    try:
        chosen = select(candidates, spec.target)
    except InvalidArgument as error:
        search = search_report(found, names, plan.metric, spec.target, None)
        return CascadeReport(
            name=spec.name,
            outcome="missed",
            reasons=(str(error),),
            metric=plan.metric,
            target=spec.target,
            rows=found.rows,
            levels=levels,
            candidates=candidates,
            serving=search.serving,
            warnings=search.warnings,
            search=search,
        )
    search = search_report(found, names, plan.metric, spec.target, chosen)
    report("publish", 0.0)
    origin = str(spec_file) if spec_file else f"<spec of {spec.name}>"
    manifest, version = publish_cascade(spec, plan, found, levels, versions, search, chosen, origin)
    _write_config(plan, manifest)
    retain_current(plan, [answers_key(each.folder, each.task) for each in versions], work)
    return of_manifest(manifest, version).model_copy(
        update={"outcome": "published", "reasons": reasons, "search": search}
    )


def _write_config(plan: CascadePlan, manifest: TabiManifest) -> None:
    """Write `config.pbtxt` where there is none; one that is there belongs to the operator."""
    path = plan.entry.folder / "config.pbtxt"
    if not path.exists():
        write_atomically(path, cascade_config_pbtxt(manifest))
