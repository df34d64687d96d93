"""Builds and publishes a decoder: convert weights, verify, profile, publish."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Unpack

from tidal_builders.flover.config import flover_config_pbtxt
from tidal_builders.flover.draft import draft_facts
from tidal_builders.flover.plan import FloverPlan, plan_flover
from tidal_builders.flover.report import FloverReport, report_of
from tidal_builders.flover.spec import FloverSpec
from tidal_builders.flover.stages import FloverStages
from tidal_builders.publishing import current_report, publish_version
from tidal_builders.runner import BuildOptions, BuildRun, Recipe, run_build


def build_flover(spec: FloverSpec, repository: Path, **options: Unpack[BuildOptions]) -> FloverReport:
    """Build a decoder into a repository, unless its newest version is current.

    See `run_build` for arguments, result and errors.
    """
    return run_build(Recipe(plan_flover, _current, _build), spec, repository, **options)


def _current(spec: FloverSpec, plan: FloverPlan) -> FloverReport:
    return current_report(plan, lambda _: flover_config_pbtxt(spec), report_of)


def _build(run: BuildRun[FloverSpec, FloverPlan]) -> FloverReport:
    stages = FloverStages(run)
    if run.spec.draft is not None and run.plan.draft is not None:
        draft_facts(run.plan.draft, run.plan.source)  # before stages that take minutes
    if not stages.sound:
        reasons = tuple(
            f"{precision}: {reason}" for precision in stages.candidates for reason in stages.misses(precision)
        )
        return FloverReport(name=run.spec.name, outcome="missed", reasons=reasons)
    manifest = partial(stages.manifest, stages.profile(stages.chosen), stages.draft_manifest())
    published, version = publish_version(run, stages.fill, manifest, lambda _: flover_config_pbtxt(run.spec))
    return report_of(published, version)
