"""Write a finished build as a new version of the model repository."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from pathlib import Path

from tidal import device
from tidal.arlo.manifest import ArloManifest
from tidal.engine_model.manifest import ExtraOutput, Runtime
from tidal.engines import EngineKind
from tidal.manifest import MANIFEST_FILE, Source, TokenizerInfo
from tidal_builders.arlo.profiling import Profiles
from tidal_builders.arlo.reference import TOKENIZER
from tidal_builders.arlo.runtimes import publish_family
from tidal_builders.arlo.stages import Stages
from tidal_builders.planning import file_records, libraries_of

CURVE_DATA, CURVE_PLOT = "latency_curve.json", "latency_curve.png"


def publish(stages: Stages, spec_file: str, needed: Collection[int]) -> tuple[ArloManifest, int]:
    """Gather engine, tokenizer, curve and manifest aside and make them the newest version, all at once.

    Of a partitioned model, each runtime's model gets the version before. Older versions that are `needed` stay.

    Returns:
        The manifest and the version's number.
    """
    profiles, curve = stages.profiles, stages.lengths.curve
    stages.report("publish", 0.0)
    entry = stages.plan.entry
    staging = entry.new_staging()
    engine_paths = _copy_engines(stages, staging)
    (staging / "tokenizer").mkdir()
    shutil.copyfile(stages.reference.tokenizer, staging / "tokenizer" / TOKENIZER)
    if curve is not None:
        from tidal_builders.plots import plot_curve

        (staging / CURVE_DATA).write_text(curve.model_dump_json(indent=1))
        title = f"{stages.spec.name}, {stages.spec.engine} {stages.chosen.precision}"
        plot_curve(curve, stages.lengths.lengths, title, staging / CURVE_PLOT)
    manifest = _manifest(stages, profiles, spec_file, engine_paths, staging)
    (staging / MANIFEST_FILE).write_text(manifest.model_dump_json(indent=1))
    return manifest, publish_family(entry, manifest, staging, stages.report, needed)


def _copy_engines(stages: Stages, staging: Path) -> list[str]:
    """Copy what the runtimes are opened from; returns each one's file, by its path in `staging`.

    A kind that takes its shapes when it is opened has one file, with what belongs to it in its folder; files that were
    made for their shapes stand by themselves, each in a folder of its own.
    """
    compiled = stages.chosen.path
    if set(stages.files) == {compiled}:
        shutil.copytree(compiled.parent, staging / "engines")
        return [f"engines/{compiled.name}"] * len(stages.files)
    for file in set(stages.files):
        (staging / "engines" / file.stem).mkdir(parents=True)
        shutil.copyfile(file, staging / "engines" / file.stem / file.name)
    return [f"engines/{file.stem}/{file.name}" for file in stages.files]


def _manifest(
    stages: Stages, profiles: Profiles, spec_file: str, engine_paths: Sequence[str], staging: Path
) -> ArloManifest:
    spec, plan, facts = stages.spec, stages.plan, stages.reference.facts
    kind: EngineKind = spec.engine
    return ArloManifest(
        kind="arlo",
        name=spec.name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        spec=spec_file,
        fingerprint=plan.fingerprint,
        ingredients=plan.ingredients,
        source=Source(model=spec.model, architecture=facts.architecture, sha256=plan.ingredients["source files"]),
        tokenizer=TokenizerInfo(
            file=f"tokenizer/{TOKENIZER}",
            max_length=facts.max_length,
            pad_token_id=facts.pad_token_id,
            type_ids=facts.type_ids,
        ),
        labels=facts.labels,
        placement=stages.placement,
        native=spec.plan_options.native,
        engine=kind,
        precision=stages.chosen.precision,
        device=device.here(stages.device),
        libraries=libraries_of(plan.ingredients),
        runtimes=tuple(
            Runtime(
                max_length=length,
                file=path,
                dynamic=stages.form.form == "dynamic",
                max_batch=spec.max_batch,
            )
            for length, path in zip(stages.lengths.lengths, engine_paths, strict=True)
        ),
        extra_outputs=tuple(ExtraOutput(name=name, per_token=True) for name in spec.outputs if name != "logits"),
        verification=stages.verified.verification,
        trials=stages.trials,
        profile=profiles.profile,
        parallel=profiles.parallel,
        files=file_records(staging),
    )
