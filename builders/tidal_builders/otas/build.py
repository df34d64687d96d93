"""Builds and publishes a vision transformer: export, convert, choose engines, verify, profile, publish."""

from __future__ import annotations

import shutil
from functools import cached_property, partial
from pathlib import Path
from typing import Unpack

from pydantic import BaseModel

from tidal import device
from tidal.engines import engine_entry
from tidal.manifest import Source
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
from tidal_builders.publishing import VersionFields, current_report, publish_version
from tidal_builders.runner import BuildOptions, BuildRun, Recipe, run_build

# Share of the profiling time that the comparison of engine forms may use.
_SHARE_OF_TRIALS = 0.25


class _ChosenEngines(BaseModel):
    """The engines to serve with, and the forms that were compared."""

    engines: tuple[OtasEngine, ...]
    trials: tuple[OtasTrial, ...]


def build_otas(spec: OtasSpec, repository: Path, **options: Unpack[BuildOptions]) -> OtasReport:
    """Build a vision transformer into a repository, unless its newest version is current; tasks beside it stay.

    See `run_build` for arguments, result and errors.

    Raises:
        NotFound: The source is a timm model, and timm is not installed.
    """
    return run_build(Recipe(plan_otas, _current, _build), spec, repository, **options)


def _current(spec: OtasSpec, plan: OtasPlan) -> OtasReport:
    return current_report(plan, lambda manifest: otas_config_pbtxt(spec, manifest.image), report_of)


def _build(run: BuildRun[OtasSpec, OtasPlan]) -> OtasReport:
    stages = _OtasStages(run)
    verified = stages.verified
    if verified.misses:
        return OtasReport(name=run.spec.name, outcome="missed", reasons=verified.misses, verification=verified.found)
    manifest = partial(stages.manifest, stages.profile)
    published, version = publish_version(
        run, stages.fill, manifest, lambda made: otas_config_pbtxt(run.spec, made.image)
    )
    return report_of(published, version)


class _OtasStages:
    """The stages of a build, each run at its first use unless an earlier process finished it."""

    def __init__(self, run: BuildRun[OtasSpec, OtasPlan]) -> None:
        self.spec, self.plan, self.progress = run.spec, run.plan, run.progress
        self._work = run.work

    @cached_property
    def source(self) -> Path:
        """Folder with the configuration and weights of the source model."""
        return self._work.directory("source", self._export)

    @cached_property
    def vit(self) -> Vit:
        """The source model."""
        return read_vit(self.source)

    @cached_property
    def form(self) -> OtasForm:
        """Shapes and γ values of batches."""
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
        """Folder with one folder per graph."""
        wanted, root = engines.graphs(self.form.gammas, self.plan.target.kind), self.source.parent
        for number, (gammas, name) in enumerate(wanted.items()):
            self.progress("convert", number / len(wanted))
            self._work.directory(name, partial(self._convert, gammas))
        return root

    @cached_property
    def chosen(self) -> _ChosenEngines:
        """Engines that run each γ."""
        return self._work.record("chosen", _ChosenEngines, self._choose)

    @cached_property
    def verified(self) -> Verified:
        """Comparison of the engines with the source model."""
        return self._work.record("verified", Verified, self._verify)

    @cached_property
    def profile(self) -> GammaLatency:
        """Latency of batches on this machine."""
        return self._work.record("profile", GammaLatency, self._measure)

    @cached_property
    def _model(self) -> TransformerModel:
        self.progress("load", 0.0)
        return load_transformer(self.vit, accumulate=self.form.accumulate)

    @cached_property
    def _runner(self) -> OtasRunner:
        form, folder, target = self.form, self.graphs, self.plan.target
        opened = {each: engines.open_one(folder, form, target, each) for each in self.chosen.engines}
        return OtasRunner(form, by_gamma(form, opened))

    def _export(self, folder: Path) -> None:
        self.progress("export", 0.0)
        export_source(self.plan.source, folder)

    def _convert(self, gammas: tuple[int, ...], folder: Path) -> None:
        engines.convert(self._model, self.form, gammas, folder, self.plan.target.kind)

    def _choose(self) -> _ChosenEngines:
        chosen, trials = engines.choose_engines(
            self.graphs,
            self.form,
            self.plan.target,
            static_batches=self.spec.static_batches,
            seconds=self.spec.profile_seconds * _SHARE_OF_TRIALS / len(self.form.gammas),
            progress=partial(self.progress, "choose"),
        )
        return _ChosenEngines(engines=chosen, trials=trials)

    def _verify(self) -> Verified:
        fixed = {engine.batch for engine in self.chosen.engines if engine.batch}
        return verify(
            self._runner,
            self._model,
            self.form,
            reference(self.source),
            sizes={size for size in (1, 3, *fixed) if size <= self.form.max_batch},
            tolerance=self.spec.tolerance,
            progress=partial(self.progress, "verify"),
        )

    def _measure(self) -> GammaLatency:
        return measure_profile(
            self._runner,
            self.form,
            self.vit.config,
            threads=self.plan.target.threads,
            seconds=self.spec.profile_seconds,
            progress=partial(self.progress, "profile"),
        )

    def fill(self, folder: Path) -> None:
        """Write the version's files into `folder`."""
        self._copy_engines(folder / ENGINE_FOLDER)
        # Tasks are trained from the source's weights, also where timm is not installed.
        shutil.copytree(self.source, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(REFERENCE_FILE))

    def manifest(self, profile: GammaLatency, _folder: Path, fields: VersionFields) -> OtasManifest:
        """The manifest of the version."""
        form, target = self.form, self.plan.target
        return OtasManifest(
            kind="otas",
            **fields,
            source=Source(
                model=self.spec.model,
                architecture=self.vit.config.architecture,
                sha256=self.plan.ingredients["source files"],
            ),
            engine=target.kind,
            precision=engines.PRECISION,
            device=device.here(target.device),
            base=self.vit.digest,
            threads=target.threads,
            engines=tuple(
                engine.model_copy(update={"file": f"{ENGINE_FOLDER}/{engine.file}"}) for engine in self.chosen.engines
            ),
            verification=self.verified.found,
            trials=self.chosen.trials,
            profile=profile,
            **{name: getattr(form, name) for name in OtasForm.model_fields},
        )

    def _copy_engines(self, folder: Path) -> None:
        """Copy the files that the chosen engines are opened from; plans without what they were made from."""
        for file in {engine.file for engine in self.chosen.engines}:
            graph = Path(file).parent
            if engine_entry(self.plan.target.kind).uses_plans:
                (folder / graph).mkdir(parents=True, exist_ok=True)
                shutil.copy(self.graphs / file, folder / file)
            else:
                shutil.copytree(self.graphs / graph, folder / graph)
