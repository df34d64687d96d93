"""Builds and publishes an encoder: export, compile, verify, profile, publish."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Unpack

from tidal.arlo.manifest import ArloManifest
from tidal.arlo.parameters import SLO_LATENCIES
from tidal_builders.arlo.config import config_pbtxt
from tidal_builders.arlo.plan import ArloPlan, plan_arlo
from tidal_builders.arlo.publish import publish_classifier
from tidal_builders.arlo.report import ArloReport, ArloReportRow, report_of, rows_of
from tidal_builders.arlo.runtimes import restore_runtime_models
from tidal_builders.arlo.spec import ArloSpec
from tidal_builders.arlo.stages import ArloStages
from tidal_builders.publishing import write_config_once
from tidal_builders.runner import BuildOptions, BuildRun, Recipe, run_build


def build_arlo(
    spec: ArloSpec,
    repository: Path,
    *,
    serve_versions: int = 1,
    needed: Collection[int] = (),
    **options: Unpack[BuildOptions],
) -> ArloReport:
    """Build an encoder into a repository, unless its newest version is current.

    See `run_build` for the other arguments, result and errors.

    Args:
        spec: Spec of the model.
        repository: Model repository; it is created if it does not exist.
        serve_versions: Number of the newest versions that a new config.pbtxt serves at the same time; ignored for a
            partitioned model, whose runtimes serve one.
        needed: Older versions that must stay, besides those that always do.
        **options: See `BuildOptions`.
    """
    recipe = Recipe(
        plan=plan_arlo,
        current=partial(_current, serve_versions),
        build=partial(_build, serve_versions, needed),
    )
    return run_build(recipe, spec, repository, **options)


def _current(serve_versions: int, spec: ArloSpec, plan: ArloPlan) -> ArloReport:
    manifest, version = plan.published, plan.version
    assert manifest is not None
    assert version is not None
    report = report_of(manifest, version)
    if plan.missing:
        restore_runtime_models(plan.entry, manifest, version)
        report = report.model_copy(update={"outcome": "published", "reasons": plan.missing})
    write_config_once(plan.entry, partial(_config, serve_versions, spec, manifest))
    return report


def _build(serve_versions: int, needed: Collection[int], run: BuildRun[ArloSpec, ArloPlan]) -> ArloReport:
    spec, stages = run.spec, ArloStages(run.spec, run.plan, run.work, run.progress)
    precision = stages.precision
    if precision.chosen is None:
        return ArloReport(name=spec.name, outcome="missed", reasons=precision.misses, trials=precision.trials)
    verified = stages.verified
    if verified.misses:
        return ArloReport(
            name=spec.name,
            outcome="missed",
            reasons=verified.misses,
            engine=spec.engine,
            precision=precision.chosen,
            form=stages.ladder.form,
            lengths=stages.ladder.lengths,
            verification=verified.verification,
            trials=stages.trials,
            rows=tuple(
                ArloReportRow(length=length, max_error=error, verdict="misses tolerance")
                for length, error in verified.errors.items()
            ),
        )
    manifest, version = publish_classifier(run, stages, partial(_config, serve_versions, spec), needed)
    return report_of(manifest, version).model_copy(update={"rows": rows_of(manifest, verified.errors)})


def _config(serve_versions: int, spec: ArloSpec, manifest: ArloManifest) -> str:
    slo_ms = None
    served = serve_versions if manifest.placement == "polymorphic" else 1
    if manifest.placement == "partitioned":
        slo_ms = spec.slo_ms or round(SLO_LATENCIES * manifest.profile.latency_ms(manifest.max_length), 3)
    return config_pbtxt(spec, manifest, slo_ms, served)
