"""From a spec to a published vision transformer: export, convert, choose, verify, profile, publish."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path

from pydantic import BaseModel

from tidal import device
from tidal.manifest import MANIFEST_FILE, Source
from tidal.otas.manifest import ENGINE_FOLDER, OtasEngine, OtasForm, OtasManifest, OtasTrial
from tidal.otas.profile import GammaLatency
from tidal.otas.runner import OtasRunner, by_gamma
from tidal_builders.otas import engines
from tidal_builders.otas.config import otas_config_pbtxt
from tidal_builders.otas.gammas import check_gammas, default_gammas
from tidal_builders.otas.plan import OtasPlan, plan_otas
from tidal_builders.otas.profiling import measure_profile
from tidal_builders.otas.report import OtasReport, report_of
from tidal_builders.otas.source import export_source, reference
from tidal_builders.otas.spec import OtasSpec
from tidal_builders.otas.timm_export import REFERENCE_FILE
from tidal_builders.otas.transformer import TransformerModel, load_transformer
from tidal_builders.otas.verify import Verified, verify
from tidal_builders.otas.vit import Vit, read_vit
from tidal_builders.planning import Report, build_if_due, file_records, libraries_of, write_config_once
from tidal_builders.workspace import Workspace, drop_workspaces

# Of the time for measuring, what the comparison of forms may take.
_SHARE_OF_TRIALS = 0.25


class _Chosen(BaseModel):
    """The engines to serve with, and what else was tried."""

    engines: tuple[OtasEngine, ...]
    trials: tuple[OtasTrial, ...]


def build_otas(
    spec: OtasSpec,
    repository: Path,
    *,
    spec_file: Path | None = None,
    force: bool = False,
    report: Report = lambda _stage, _share: None,
) -> OtasReport:
    """Build a model into a repository, if it is not there already; its tasks, which lie beside the versions, stay.

    Finished stages are kept under `<model>/.build/`, so a build that was killed goes on where it stopped. Builds of
    the same model wait for each other.

    Args:
        spec: what to build.
        repository: the model repository; it is made where it does not exist.
        spec_file: where the spec was read from: relative paths of the spec start from its folder (without it: from
            the working directory), and the manifest names it in the command that rebuilds the model.
        force: build anew, from the first stage on.
        report: told the name of the running stage and the share of it that is done.

    Returns:
        The report; its outcome is "missed" where an engine misses its tolerance.

    Raises:
        InvalidArgument: the source is no vision transformer of an accepted form, or the spec asks for what it cannot.
        NotFound: the source is a timm model, and timm is not installed.
        TidalError: a stage failed.
    """
    base = spec_file.parent if spec_file else Path()
    named = str(spec_file) if spec_file else f"<spec of {spec.name}>"

    def build(plan: OtasPlan, work: Workspace) -> OtasReport:
        stages = _Stages(spec, plan, work, report)
        if stages.verified.misses:
            missed = stages.verified.misses
            return OtasReport(name=spec.name, outcome="missed", reasons=missed, verification=stages.verified.found)
        manifest, version = _publish(stages, named)
        write_config_once(plan.entry, partial(otas_config_pbtxt, spec, manifest.image))
        drop_workspaces(plan.entry.folder)
        reasons = plan.reasons or ("forced",)
        return report_of(manifest, version).model_copy(update={"outcome": "published", "reasons": reasons})

    return build_if_due(
        partial(plan_otas, spec, repository, base), partial(_current, spec), build, force=force, report=report
    )


class _Stages:
    """A build's stages, each done when it is first asked for."""

    def __init__(self, spec: OtasSpec, plan: OtasPlan, work: Workspace, report: Report) -> None:
        self.spec, self.plan, self.report = spec, plan, report
        self._work = work

    @cached_property
    def source(self) -> Path:
        """Form and weights of the source model."""
        return self._work.directory("source", self._export)

    @cached_property
    def vit(self) -> Vit:
        """The source model."""
        return read_vit(self.source)

    @cached_property
    def form(self) -> OtasForm:
        """What batches may be."""
        config, wanted = self.vit.config, self.spec.gammas
        return OtasForm(
            image=config.image,
            width=config.width,
            layers=config.layers,
            tokens=config.tokens,
            accumulate=self.spec.prompts == "accumulated",
            gammas=default_gammas(config) if wanted is None else check_gammas(config, wanted),
            max_batch=self.spec.max_batch,
        )

    @cached_property
    def graphs(self) -> Path:
        """The folder with a folder of each graph."""
        wanted, root = engines.graphs(self.form.gammas, self.plan.target.kind), self.source.parent
        for number, (gammas, name) in enumerate(wanted.items()):
            self.report("convert", number / len(wanted))
            self._work.directory(name, partial(self._convert, gammas))
        return root

    @cached_property
    def chosen(self) -> _Chosen:
        """What runs each γ."""
        return self._work.record("chosen", _Chosen, self._choose)

    @cached_property
    def verified(self) -> Verified:
        """How far the engines are from the source model."""
        return self._work.record("verified", Verified, self._verify)

    @cached_property
    def profile(self) -> GammaLatency:
        """What batches take here."""
        return self._work.record("profile", GammaLatency, self._measure)

    @cached_property
    def _model(self) -> TransformerModel:
        self.report("load", 0.0)
        return load_transformer(self.vit, accumulate=self.form.accumulate)

    @cached_property
    def _runner(self) -> OtasRunner:
        form, folder, target = self.form, self.graphs, self.plan.target
        opened = {each: engines.open_one(folder, form, target, each) for each in self.chosen.engines}
        return OtasRunner(form, by_gamma(form, opened))

    def _export(self, folder: Path) -> None:
        self.report("export", 0.0)
        export_source(self.plan.source, folder)

    def _convert(self, gammas: tuple[int, ...], folder: Path) -> None:
        engines.convert(self._model, self.form, gammas, folder, self.plan.target.kind)

    def _choose(self) -> _Chosen:
        chosen, trials = engines.choose_engines(
            self.graphs,
            self.form,
            self.plan.target,
            static_batches=self.spec.static_batches,
            seconds=self.spec.profile_seconds * _SHARE_OF_TRIALS / len(self.form.gammas),
            progress=partial(self.report, "choose"),
        )
        return _Chosen(engines=chosen, trials=trials)

    def _verify(self) -> Verified:
        fixed = {engine.batch for engine in self.chosen.engines if engine.batch}
        return verify(
            self._runner,
            self._model,
            self.form,
            reference(self.source),
            sizes={size for size in (1, 3, *fixed) if size <= self.form.max_batch},
            tolerance=self.spec.tolerance,
            progress=partial(self.report, "verify"),
        )

    def _measure(self) -> GammaLatency:
        return measure_profile(
            self._runner,
            self.form,
            self.vit.config,
            threads=self.plan.target.threads,
            seconds=self.spec.profile_seconds,
            progress=partial(self.report, "profile"),
        )


def _publish(stages: _Stages, spec_file: str) -> tuple[OtasManifest, int]:
    """Gather everything aside and make it the newest version, all at once."""
    plan, form = stages.plan, stages.form
    profile, vit = stages.profile, stages.vit
    stages.report("publish", 0.0)
    staging = plan.entry.new_staging()
    opened = _copy_engines(stages, staging / ENGINE_FOLDER)
    # What tasks are trained from, also where timm is not installed.
    shutil.copytree(stages.source, staging, dirs_exist_ok=True, ignore=shutil.ignore_patterns(REFERENCE_FILE))
    manifest = OtasManifest(
        kind="otas",
        name=stages.spec.name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        spec=spec_file,
        fingerprint=plan.fingerprint,
        ingredients=plan.ingredients,
        libraries=libraries_of(plan.ingredients),
        files=file_records(staging),
        source=Source(
            model=stages.spec.model, architecture=vit.config.architecture, sha256=plan.ingredients["source files"]
        ),
        engine=plan.target.kind,
        precision=engines.PRECISION,
        device=device.here(plan.target.device),
        base=vit.digest,
        threads=plan.target.threads,
        engines=opened,
        verification=stages.verified.found,
        trials=stages.chosen.trials,
        profile=profile,
        **{name: getattr(form, name) for name in OtasForm.model_fields},
    )
    (staging / MANIFEST_FILE).write_text(manifest.model_dump_json(indent=1))
    return manifest, plan.entry.publish(staging)


def _copy_engines(stages: _Stages, folder: Path) -> tuple[OtasEngine, ...]:
    """Copy what the chosen engines are opened from; of TensorRT the plans alone, not what they were made of."""
    chosen = stages.chosen.engines
    for file in {engine.file for engine in chosen}:
        graph = Path(file).parent
        if stages.plan.target.kind == "tensorrt":
            (folder / graph).mkdir(parents=True, exist_ok=True)
            shutil.copy(stages.graphs / file, folder / file)
        else:
            shutil.copytree(stages.graphs / graph, folder / graph)
    return tuple(engine.model_copy(update={"file": f"{ENGINE_FOLDER}/{engine.file}"}) for engine in chosen)


def _current(spec: OtasSpec, plan: OtasPlan) -> OtasReport:
    assert plan.published is not None
    write_config_once(plan.entry, partial(otas_config_pbtxt, spec, plan.published.image))
    return report_of(plan.published, plan.version)
