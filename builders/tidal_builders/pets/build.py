"""Builds and publishes a base for fine-tuned tasks: export, verify, profile, publish."""

from __future__ import annotations

import shutil
from functools import cached_property, partial
from pathlib import Path
from typing import Unpack

from pydantic import BaseModel

from tidal import device
from tidal.device import DeviceKind
from tidal.engines import choose_device, engine_entry
from tidal.errors import InvalidArgument
from tidal.manifest import Source, TokenizerInfo
from tidal.pets.base import load_base_layers, write_base_layers
from tidal.pets.engine.contract import PetsEngine
from tidal.pets.manifest import ENGINE_FOLDER, PetsManifest
from tidal.pets.opening import open_pets_engine
from tidal.pets.profile import PetsProfile
from tidal_builders.pets.base import export_encoder
from tidal_builders.pets.config import pets_config_pbtxt
from tidal_builders.pets.dense import compile_dense
from tidal_builders.pets.plan import PetsPlan, plan_pets
from tidal_builders.pets.profiling import measure_profile
from tidal_builders.pets.report import PetsReport, report_of
from tidal_builders.pets.source import BaseSource, load_base
from tidal_builders.pets.spec import PetsPlanOptions, PetsSpec
from tidal_builders.pets.typical import served_kinds
from tidal_builders.pets.verify import PetsVerification, verify
from tidal_builders.publishing import VersionFields, current_report, publish_version
from tidal_builders.runner import BuildOptions, BuildRun, Recipe, run_build
from tidal_builders.samples import sample_texts
from tidal_builders.source_tokenizer import write_tokenizer
from tidal_builders.tolerances import DEFAULT_TOLERANCE

_FACTS = "facts.json"
_TOKENIZER = "tokenizer/tokenizer.json"


class _SourceFacts(BaseModel):
    """Properties of the source model that serving needs."""

    architecture: str
    max_length: int
    pad_token_id: int
    type_ids: bool
    zeroed: tuple[str, ...]


def build_pets(spec: PetsSpec, repository: Path, **options: Unpack[BuildOptions]) -> PetsReport:
    """Build a base into a repository, unless its newest version is current; tasks beside the versions stay.

    See `run_build` for arguments, result and errors.
    """
    return run_build(Recipe(plan_pets, _current, _build), spec, repository, **options)


def _current(spec: PetsSpec, plan: PetsPlan) -> PetsReport:
    return current_report(plan, lambda _: pets_config_pbtxt(spec), report_of)


def _build(run: BuildRun[PetsSpec, PetsPlan]) -> PetsReport:
    stages = _PetsStages(run)
    verified = stages.verified
    if verified.misses:
        return PetsReport(
            name=run.spec.name, outcome="missed", reasons=verified.misses, verification=verified.verification
        )
    manifest, version = publish_version(
        run, stages.fill, partial(stages.manifest, stages.profile), lambda _: pets_config_pbtxt(run.spec)
    )
    return report_of(manifest, version)


class _PetsStages:
    """The stages of a build, each run at its first use unless an earlier process finished it."""

    def __init__(self, run: BuildRun[PetsSpec, PetsPlan]) -> None:
        self.spec, self.plan, self.progress = run.spec, run.plan, run.progress
        self._work = run.work

    @cached_property
    def folder(self) -> Path:
        """Folder with the engine, layers, tokenizer and properties of the source model."""
        return self._work.directory("base", self._export)

    @cached_property
    def facts(self) -> _SourceFacts:
        """Properties of the source model."""
        return _SourceFacts.model_validate_json((self.folder / _FACTS).read_bytes())

    @cached_property
    def verified(self) -> PetsVerification:
        """Comparison of the engine with the source model."""
        return self._work.record("verified", PetsVerification, self._verify)

    @cached_property
    def profile(self) -> PetsProfile:
        """Cost of batches on this machine."""
        return self._work.record("profile", PetsProfile, self._measure)

    @cached_property
    def _source(self) -> BaseSource:
        self.progress("load", 0.0)
        return load_base(self.plan.source)

    @property
    def device(self) -> DeviceKind:
        """Device that the engine runs on."""
        return choose_device(self.spec.engine, self.spec.device)

    @cached_property
    def _engine(self) -> PetsEngine:
        folder = self.folder / ENGINE_FOLDER
        return open_pets_engine(
            self.spec.engine, folder, threads=self.plan.threads, device=self.device, precision=self.spec.precision
        )

    def _export(self, folder: Path) -> None:
        source, longest = self._source, self.spec.max_length
        if longest is not None and longest > source.max_length:
            raise InvalidArgument(
                f"field 'max_length': {longest} tokens exceed the model's longest input of {source.max_length}"
            )
        self.progress("export", 0.0)
        layers, info = export_encoder(
            source.model, folder / ENGINE_FOLDER, self.spec.engine, attention=self.spec.attention_received
        )
        write_base_layers(folder, layers, info)
        if engine_entry(self.spec.engine).uses_plans:
            self.progress("plan", 0.0)
            bounds = {"max_batch": self.spec.max_batch, "max_length": longest or source.max_length}
            compile_dense(folder / ENGINE_FOLDER, self.spec.tensorrt or PetsPlanOptions(), **bounds)
        write_tokenizer(source.tokenizer, folder / _TOKENIZER)
        facts = _SourceFacts(
            architecture=type(source.model).__name__,
            max_length=longest or source.max_length,
            pad_token_id=source.tokenizer.pad_token_id or 0,
            type_ids=source.type_ids,
            zeroed=source.zeroed,
        )
        (folder / _FACTS).write_text(facts.model_dump_json())

    def _verify(self) -> PetsVerification:
        samples = None if self.plan.samples is None else self.plan.samples.read_text(encoding="utf-8")
        texts, _ = sample_texts(samples)
        return verify(
            self._engine,
            self._source,
            load_base_layers(self.folder),
            texts,
            kinds=served_kinds(self.spec.engine),
            max_length=self.facts.max_length,
            precision=self.spec.precision,
            tolerance=self.spec.tolerance or DEFAULT_TOLERANCE[self.spec.precision],
            attention=self.spec.attention_received,
            progress=partial(self.progress, "verify"),
        )

    def _measure(self) -> PetsProfile:
        return measure_profile(
            self._engine,
            load_base_layers(self.folder),
            kinds=served_kinds(self.spec.engine),
            max_length=self.facts.max_length,
            max_batch=self.spec.max_batch,
            max_tokens=self.spec.max_tokens,
            threads=self.plan.threads,
            seconds=self.spec.profile_seconds,
            progress=partial(self.progress, "profile"),
        )

    def fill(self, folder: Path) -> None:
        """Write the version's files into `folder`."""
        shutil.copytree(self.folder, folder, dirs_exist_ok=True)
        (folder / _FACTS).unlink()

    def manifest(self, profile: PetsProfile, folder: Path, fields: VersionFields) -> PetsManifest:
        """The manifest of the version in `folder`."""
        facts, layers = self.facts, load_base_layers(folder)
        return PetsManifest(
            kind="pets",
            **fields,
            source=Source(
                model=self.spec.model,
                architecture=facts.architecture,
                sha256=self.plan.ingredients["source files"],
            ),
            engine=self.spec.engine,
            precision=self.spec.precision,
            device=device.here(self.device),
            tokenizer=TokenizerInfo(
                file=_TOKENIZER, max_length=facts.max_length, pad_token_id=facts.pad_token_id, type_ids=facts.type_ids
            ),
            base=layers.digest,
            width=layers.width,
            max_length=facts.max_length,
            threads=self.plan.threads,
            attention_received=self.spec.attention_received,
            zeroed=facts.zeroed,
            verification=self.verified.verification,
            profile=profile,
        )
