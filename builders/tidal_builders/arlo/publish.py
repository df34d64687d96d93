"""Write a finished build as a new version of the model repository."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path

from tidal import device
from tidal.engines import EngineKind
from tidal.manifest import (
    MANIFEST_FILE,
    ExtraOutput,
    FileRecord,
    Manifest,
    Runtime,
    Source,
    TokenizerInfo,
    sha256_file,
)
from tidal_builders.arlo.profiling import Profiles
from tidal_builders.arlo.reference import TOKENIZER
from tidal_builders.arlo.runtimes import publish_family
from tidal_builders.arlo.stages import Stages

CURVE_DATA, CURVE_PLOT = "latency_curve.json", "latency_curve.png"


def publish(stages: Stages, spec_file: str) -> tuple[Manifest, int]:
    """Gather engine, tokenizer, curve and manifest aside and make them the newest version, all at once.

    Of a partitioned model, each runtime's model gets the version before.

    Returns:
        The manifest and the version's number.
    """
    profiles, curve = stages.profiles, stages.lengths.curve
    stages.report("publish", 0.0)
    entry, engine = stages.plan.entry, stages.chosen.path
    staging = entry.new_staging()
    shutil.copytree(engine.parent, staging / "engines")
    (staging / "tokenizer").mkdir()
    shutil.copyfile(stages.reference.tokenizer, staging / "tokenizer" / TOKENIZER)
    if curve is not None:
        from tidal_builders.plots import plot_curve

        (staging / CURVE_DATA).write_text(curve.model_dump_json(indent=1))
        title = f"{stages.spec.name}, {stages.spec.engine} {stages.chosen.precision}"
        plot_curve(curve, stages.lengths.lengths, title, staging / CURVE_PLOT)
    manifest = _manifest(stages, profiles, spec_file, f"engines/{engine.name}", staging)
    (staging / MANIFEST_FILE).write_text(manifest.model_dump_json(indent=1))
    return manifest, publish_family(entry, manifest, staging, stages.report)


def _manifest(stages: Stages, profiles: Profiles, spec_file: str, engine_path: str, staging: Path) -> Manifest:
    spec, plan, facts = stages.spec, stages.plan, stages.reference.facts
    kind: EngineKind = spec.engine
    return Manifest(
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
        engine=kind,
        precision=stages.chosen.precision,
        device=device.cpu(),
        libraries={
            name.removeprefix("library "): version
            for name, version in plan.ingredients.items()
            if name.startswith("library ")
        },
        runtimes=tuple(
            Runtime(
                max_length=length,
                file=engine_path,
                dynamic=stages.form.form == "dynamic",
                max_batch=spec.max_batch,
            )
            for length in stages.lengths.lengths
        ),
        extra_outputs=tuple(ExtraOutput(name=name, per_token=True) for name in spec.outputs if name != "logits"),
        verification=stages.verified.verification,
        trials=stages.trials,
        profile=profiles.profile,
        parallel=profiles.parallel,
        files=tuple(
            FileRecord(path=str(path.relative_to(staging)), bytes=path.stat().st_size, sha256=sha256_file(path))
            for path in sorted(staging.rglob("*"))
            if path.is_file()
        ),
    )
