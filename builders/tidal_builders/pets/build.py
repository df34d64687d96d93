"""From a spec to a published base: export, verify, profile, publish."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path

from pydantic import BaseModel

from tidal import device
from tidal.device import DeviceKind
from tidal.engines import choose_device
from tidal.errors import InvalidArgument
from tidal.manifest import MANIFEST_FILE, Source, TokenizerInfo
from tidal.pets.base import load_base_layers, write_base_layers
from tidal.pets.engine.contract import PetsEngine
from tidal.pets.manifest import ENGINE_FOLDER, PetsManifest
from tidal.pets.opening import open_pets_engine
from tidal.pets.profile import PetsProfile
from tidal_builders.arlo.samples import sample_texts
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
from tidal_builders.planning import Report, build_if_due, file_records, libraries_of, write_config_once
from tidal_builders.runtime_options import DEFAULT_TOLERANCE
from tidal_builders.workspace import Workspace, drop_workspaces

_FACTS = "facts.json"
_TOKENIZER = "tokenizer/tokenizer.json"


class _Facts(BaseModel):
    """What is kept of the source model beside its files."""

    architecture: str
    max_length: int
    pad_token_id: int
    type_ids: bool
    zeroed: tuple[str, ...]


def build_pets(
    spec: PetsSpec,
    repository: Path,
    *,
    spec_file: Path | None = None,
    force: bool = False,
    report: Report = lambda _stage, _share: None,
) -> PetsReport:
    """Build a base into a repository, if it is not there already; its tasks, which lie beside the versions, stay.

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
        The report; its outcome is "missed" where the engine misses its tolerance.

    Raises:
        InvalidArgument: the spec asks for what the source model does not have.
        TidalError: a stage failed.
    """
    base = spec_file.parent if spec_file else Path()
    named = str(spec_file) if spec_file else f"<spec of {spec.name}>"

    def build(plan: PetsPlan, work: Workspace) -> PetsReport:
        stages = _Stages(spec, plan, work, report)
        if stages.verified.misses:
            missed = stages.verified.misses
            return PetsReport(
                name=spec.name, outcome="missed", reasons=missed, verification=stages.verified.verification
            )
        manifest, version = _publish(stages, named)
        write_config_once(plan.entry, partial(pets_config_pbtxt, spec))
        drop_workspaces(plan.entry.folder)
        reasons = plan.reasons or ("forced",)
        return report_of(manifest, version).model_copy(update={"outcome": "published", "reasons": reasons})

    return build_if_due(
        partial(plan_pets, spec, repository, base), partial(_current, spec), build, force=force, report=report
    )


class _Stages:
    """A build's stages, each done when it is first asked for."""

    def __init__(self, spec: PetsSpec, plan: PetsPlan, work: Workspace, report: Report) -> None:
        self.spec, self.plan, self.report = spec, plan, report
        self._work = work

    @cached_property
    def folder(self) -> Path:
        """Engine, layers, tokenizer, and what else is taken from the source."""
        return self._work.directory("base", self._export)

    @cached_property
    def facts(self) -> _Facts:
        """Of the source model."""
        return _Facts.model_validate_json((self.folder / _FACTS).read_bytes())

    @cached_property
    def verified(self) -> PetsVerification:
        """How far the engine is from the source model."""
        return self._work.record("verified", PetsVerification, self._verify)

    @cached_property
    def profile(self) -> PetsProfile:
        """What it costs here."""
        return self._work.record("profile", PetsProfile, self._measure)

    @cached_property
    def _source(self) -> BaseSource:
        self.report("load", 0.0)
        return load_base(self.plan.source)

    @property
    def device(self) -> DeviceKind:
        """Where the engine runs."""
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
        self.report("export", 0.0)
        layers, info = export_encoder(
            source.model, folder / ENGINE_FOLDER, self.spec.engine, attention=self.spec.attention_received
        )
        write_base_layers(folder, layers, info)
        if self.spec.engine == "tensorrt":
            self.report("plan", 0.0)
            bounds = {"max_batch": self.spec.max_batch, "max_length": longest or source.max_length}
            compile_dense(folder / ENGINE_FOLDER, self.spec.tensorrt or PetsPlanOptions(), **bounds)
        content = json.loads(source.tokenizer.backend_tokenizer.to_str())
        # The server decides on both.
        content["truncation"] = content["padding"] = None
        (folder / _TOKENIZER).parent.mkdir()
        (folder / _TOKENIZER).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
        facts = _Facts(
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
            progress=partial(self.report, "verify"),
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
            progress=partial(self.report, "profile"),
        )


def _publish(stages: _Stages, spec_file: str) -> tuple[PetsManifest, int]:
    """Gather everything aside and make it the newest version, all at once."""
    plan, facts, profile = stages.plan, stages.facts, stages.profile
    stages.report("publish", 0.0)
    staging = plan.entry.new_staging()
    shutil.copytree(stages.folder, staging, dirs_exist_ok=True)
    (staging / _FACTS).unlink()
    layers = load_base_layers(staging)
    manifest = PetsManifest(
        kind="pets",
        name=stages.spec.name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        spec=spec_file,
        fingerprint=plan.fingerprint,
        ingredients=plan.ingredients,
        libraries=libraries_of(plan.ingredients),
        files=file_records(staging),
        source=Source(
            model=stages.spec.model, architecture=facts.architecture, sha256=plan.ingredients["source files"]
        ),
        engine=stages.spec.engine,
        precision=stages.spec.precision,
        device=device.here(stages.device),
        tokenizer=TokenizerInfo(
            file=_TOKENIZER, max_length=facts.max_length, pad_token_id=facts.pad_token_id, type_ids=facts.type_ids
        ),
        base=layers.digest,
        width=layers.width,
        max_length=facts.max_length,
        threads=plan.threads,
        attention_received=stages.spec.attention_received,
        zeroed=facts.zeroed,
        verification=stages.verified.verification,
        profile=profile,
    )
    (staging / MANIFEST_FILE).write_text(manifest.model_dump_json(indent=1))
    return manifest, plan.entry.publish(staging)


def _current(spec: PetsSpec, plan: PetsPlan) -> PetsReport:
    assert plan.published is not None
    write_config_once(plan.entry, partial(pets_config_pbtxt, spec))
    return report_of(plan.published, plan.version)
