"""Builds and publishes a cascade: its levels, their outputs, candidates, the choice."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

from tidal.errors import InvalidArgument, TidalError
from tidal.tabi.selection import select
from tidal_builders.arlo.report import ArloReport
from tidal_builders.publishing import current_report
from tidal_builders.runner import BuildOptions, BuildRun, Recipe, StageProgress, run_build
from tidal_builders.tabi.config import cascade_config_pbtxt
from tidal_builders.tabi.data import LabelledQueries, read_queries
from tidal_builders.tabi.plan import CascadePlan, plan_cascade
from tidal_builders.tabi.report import CascadeReport, of_manifest
from tidal_builders.tabi.spec import TabiSpec
from tidal_builders.tabi.task_levels import TaskLevel

# A server still calls the version of a level that its cascade names while the next one is published.
_SERVED_VERSIONS = 2
# All builds of a cascade share one workspace: names of the stages in it identify what they were made from.
_WORKSPACE = "cascade"


def build_tabi(spec: TabiSpec, repository: Path, **options: Unpack[BuildOptions]) -> CascadeReport:
    """Build a cascade and its levels into a repository, except those that are current.

    Levels are models of their own, which are built, verified and published before the cascade; or existing tasks of a
    shared encoder, which are not built. Their outputs for the labelled queries are kept under `<model>/.build/`, also
    after the build: a change of the target alone chooses among the same candidates again, a change of one level runs
    that level alone. See `run_build` for arguments, result and errors.
    """
    return run_build(Recipe(plan_cascade, _current, _build, _WORKSPACE), spec, repository, **options)


def _current(_spec: TabiSpec, plan: CascadePlan) -> CascadeReport:
    return current_report(plan, cascade_config_pbtxt, of_manifest)


def _build(run: BuildRun[TabiSpec, CascadePlan]) -> CascadeReport:
    spec, plan = run.spec, run.plan
    labels = None if plan.agreement.task == "regression" else plan.agreement.labels
    # A wrong data file must fail before the levels are built, which takes minutes.
    queries = read_queries(plan.data, spec.columns, labels, spec.parts)
    if plan.agreement.task == "rerank" and not queries.pairs:
        raise InvalidArgument(
            f"field 'data': {plan.data} has one text per row, and a reranker scores pairs; give each row a query, a "
            "document and 0 or 1 (field 'columns' names them)"
        )
    models = _build_levels(run)
    misses = tuple(f"{model.name}: {miss}" for model in models if model.outcome == "missed" for miss in model.reasons)
    if misses:
        return CascadeReport(name=spec.name, outcome="missed", reasons=misses, models=models)
    run.plan = plan_cascade(spec, run.repository, run.base)  # with the levels' new versions
    return _choose(run, queries).model_copy(update={"models": models})


def _build_levels(run: BuildRun[TabiSpec, CascadePlan]) -> tuple[ArloReport, ...]:
    """Build the levels' models that are stale, up to the first that is not published."""
    from tidal_builders.arlo.build import build_arlo
    from tidal_builders.tabi.publish import named_versions

    reports: list[ArloReport] = []
    for level, planned in zip(run.spec.levels, run.plan.levels, strict=True):
        if isinstance(planned, TaskLevel) or not (planned.reasons or run.force):
            continue
        try:
            report = build_arlo(
                planned.spec,
                run.repository,
                spec_file=run.spec_file,
                force=run.force,
                serve_versions=_SERVED_VERSIONS,
                needed=named_versions(run.plan.entry, planned.spec.name),
                progress=_prefixed(level.name, run.progress),
            )
        except TidalError as error:
            raise type(error)(f"level '{level.name}': {error}") from error
        reports.append(report)
        if report.outcome == "missed":
            break
    return tuple(reports)


def _prefixed(level: str, progress: StageProgress) -> StageProgress:
    return lambda stage, share: progress(f"{level}: {stage}", share)


def _choose(run: BuildRun[TabiSpec, CascadePlan], queries: LabelledQueries) -> CascadeReport:
    """Search candidates, unless that is done, and publish the chosen one; or report that none meets the target."""
    from tidal_builders.tabi.collect import answers_key
    from tidal_builders.tabi.measured_search import retain_current, search_cascade, search_report
    from tidal_builders.tabi.publish import levels_of, publish_cascade
    from tidal_builders.tabi.versions import newest_version

    spec, plan = run.spec, run.plan
    versions = [newest_version(level) for level in plan.levels]
    found = search_cascade(spec, plan, queries, versions, run.work, run.progress)
    levels, candidates = levels_of(spec, plan, found, versions), found.result.candidates
    names = [level.name for level in spec.levels]
    try:
        chosen = select(candidates, spec.target)
    except InvalidArgument as error:
        search = search_report(found, names, plan.metric, spec.target, None)
        return CascadeReport(
            name=spec.name,
            outcome="missed",
            reasons=(f"field 'target': {error}",),
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
    manifest, version = publish_cascade(run, found, levels, versions, search, chosen)
    retain_current(plan, [answers_key(each.folder, each.task) for each in versions], run.work)
    return of_manifest(manifest, version).model_copy(update={"search": search})
