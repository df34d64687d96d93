"""From a spec to a published version: export, compile, verify, profile, publish."""

from __future__ import annotations

import time
from collections.abc import Collection
from pathlib import Path

from tidal.arlo.manifest import ArloManifest
from tidal.arlo.parameters import SLO_LATENCIES
from tidal.repository.entries import write_atomically
from tidal_builders.arlo.config import config_pbtxt
from tidal_builders.arlo.plan import Plan, make_plan
from tidal_builders.arlo.publish import publish
from tidal_builders.arlo.runtimes import complete_family
from tidal_builders.arlo.stages import Report, Stages
from tidal_builders.foreign.recognise import SINGLE_LABEL, Task
from tidal_builders.report import BuildReport, ReportRow, rows_of
from tidal_builders.specs import ArloSpec
from tidal_builders.workspace import build_lock, drop_workspaces, open_workspace


def build_arlo(
    spec: ArloSpec,
    repository: Path,
    *,
    spec_file: Path | None = None,
    force: bool = False,
    serve_versions: int = 1,
    needed: Collection[int] = (),
    accepted: Collection[Task] = SINGLE_LABEL,
    report: Report = lambda _stage, _share: None,
) -> BuildReport:
    """Build one model into a repository, if it is not there already.

    Finished stages are kept under `<model>/.build/`, so a build that was killed goes on where it stopped. Builds of
    the same model wait for each other.

    Args:
        spec: what to build.
        repository: the model repository; it is made where it does not exist.
        spec_file: where the spec was read from: relative paths of the spec start from its folder (without it: from
            the working directory), and the manifest names it in the command that rebuilds the model.
        force: build anew, from the first stage on.
        serve_versions: how many of the newest versions a first config.pbtxt has served at the same time; a
            partitioned model, whose runtimes serve one, ignores it.
        needed: older versions that must stay, beside those that always do.
        accepted: tasks of the source model that are served; a level of a cascade may be a regression.
        report: told the name of the running stage and the share of it that is done.

    Raises:
        InvalidArgument: the spec asks for what the source model or the engine does not have.
        TidalError: a stage failed.
    """
    begin = time.monotonic()
    base = spec_file.parent if spec_file else Path()
    plan = make_plan(spec, repository, base, accepted=accepted)
    if not plan.reasons and not plan.missing and not force:
        return _current(spec, plan, begin, serve_versions)
    with build_lock(plan.entry.folder, lambda message: report(message, 0.0)):
        plan = make_plan(spec, repository, base, accepted=accepted)  # whoever held the lock may have built it
        if not plan.reasons and not force:
            return (
                _completed(spec, plan, begin, serve_versions)
                if plan.missing
                else _current(spec, plan, begin, serve_versions)
            )
        plan.entry.clear_staging()
        work = open_workspace(plan.entry.folder, plan.fingerprint, anew=force)
        stages = Stages(spec, plan, work, report)
        reasons = plan.reasons or ("forced",)
        precision = stages.precision
        if precision.chosen is None:
            return BuildReport(
                name=spec.name,
                outcome="missed",
                reasons=precision.misses,
                trials=precision.trials,
                reused=work.reused,
                seconds=time.monotonic() - begin,
            )
        verified = stages.verified
        if verified.misses:
            return BuildReport(
                name=spec.name,
                outcome="missed",
                reasons=verified.misses,
                engine=spec.engine,
                precision=precision.chosen,
                form=stages.form.form,
                lengths=stages.lengths.lengths,
                verification=verified.verification,
                trials=stages.trials,
                rows=tuple(
                    ReportRow(length=length, max_error=error, verdict="misses tolerance")
                    for length, error in verified.errors.items()
                ),
                reused=work.reused,
                seconds=time.monotonic() - begin,
            )
        manifest, version = publish(stages, str(spec_file) if spec_file else f"<spec of {spec.name}>", needed)
        _write_config(spec, plan, manifest, serve_versions)
        drop_workspaces(plan.entry.folder)
    return _of_manifest(manifest).model_copy(
        update={
            "outcome": "published",
            "reasons": reasons,
            "version": version,
            "rows": rows_of(manifest, verified.errors),
            "reused": work.reused,
            "seconds": time.monotonic() - begin,
        }
    )


def _current(spec: ArloSpec, plan: Plan, begin: float, serve_versions: int) -> BuildReport:
    assert plan.published is not None
    _write_config(spec, plan, plan.published, serve_versions)
    update = {"version": plan.version, "seconds": time.monotonic() - begin}
    return _of_manifest(plan.published).model_copy(update=update)


def _completed(spec: ArloSpec, plan: Plan, begin: float, serve_versions: int) -> BuildReport:
    """Make anew what the newest version lacks beside itself; call it while holding the build lock."""
    manifest, version = plan.published, plan.version
    assert manifest is not None
    assert version is not None
    complete_family(plan.entry, manifest, version)
    return _current(spec, plan, begin, serve_versions).model_copy(
        update={"outcome": "published", "reasons": plan.missing}
    )


def _of_manifest(manifest: ArloManifest) -> BuildReport:
    return BuildReport(
        name=manifest.name,
        outcome="current",
        engine=manifest.engine,
        precision=manifest.precision,
        form="dynamic" if manifest.runtimes[0].dynamic else "static",
        lengths=tuple(runtime.max_length for runtime in manifest.runtimes),
        verification=manifest.verification,
        trials=manifest.trials,
    )


def _write_config(spec: ArloSpec, plan: Plan, manifest: ArloManifest, serve_versions: int) -> None:
    """Write `config.pbtxt` where there is none; one that is there belongs to the operator."""
    path = plan.entry.folder / "config.pbtxt"
    if path.exists():
        return
    slo_ms = None
    served = serve_versions if manifest.placement == "polymorphic" else 1
    if manifest.placement == "partitioned":
        slo_ms = spec.slo_ms or round(SLO_LATENCIES * manifest.profile.latency_ms(manifest.max_length), 3)
    write_atomically(path, config_pbtxt(spec, slo_ms, served, classes=len(manifest.labels) > 1))
