"""Publishes a finished encoder, and with it the models of a partitioned model's runtimes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection
from pathlib import Path

from tidal import device
from tidal.arlo.manifest import ArloManifest
from tidal.engine_model.manifest import ExtraOutput, Runtime
from tidal.manifest import Source, TokenizerInfo
from tidal_builders.arlo.plan import ArloPlan
from tidal_builders.arlo.profiling import Profiles
from tidal_builders.arlo.reference import TOKENIZER
from tidal_builders.arlo.runtimes import publish_with_runtimes
from tidal_builders.arlo.spec import ArloSpec
from tidal_builders.arlo.stages import ArloStages
from tidal_builders.publishing import VersionFields, publish_version
from tidal_builders.runner import BuildRun

CURVE_DATA, CURVE_PLOT = "latency_curve.json", "latency_curve.png"


def publish_classifier(
    run: BuildRun[ArloSpec, ArloPlan],
    stages: ArloStages,
    config: Callable[[ArloManifest], str],
    needed: Collection[int],
) -> tuple[ArloManifest, int]:
    """Publish engines, tokenizer, latency curve and manifest as the newest version.

    Args:
        run: The build.
        stages: Its stages, which keep the tolerance.
        config: Makes the text of `config.pbtxt`, which is written if there is none.
        needed: Older versions that must stay.

    Returns:
        The manifest and the version's number.
    """
    profiles = stages.profiles  # measured before anything is published
    return publish_version(
        run,
        lambda folder: _fill(stages, folder),
        lambda _, fields: _manifest(stages, profiles, fields),
        config,
        lambda manifest, staging: publish_with_runtimes(run.plan.entry, manifest, staging, run.progress, needed),
    )


def _fill(stages: ArloStages, folder: Path) -> None:
    _copy_engines(stages, folder)
    (folder / "tokenizer").mkdir()
    shutil.copyfile(stages.reference.tokenizer, folder / "tokenizer" / TOKENIZER)
    curve = stages.ladders.curve
    if curve is not None:
        from tidal_builders.arlo.plots import plot_curve

        (folder / CURVE_DATA).write_text(curve.model_dump_json(indent=1))
        title = f"{stages.spec.name}, {stages.spec.engine} {stages.chosen.precision}"
        plot_curve(curve, stages.ladder.lengths, title, folder / CURVE_PLOT)


def _copy_engines(stages: ArloStages, folder: Path) -> None:
    """Copy the files that the runtimes are opened from.

    An engine without plans has one file, with other files beside it that belong to it. Each plan is copied alone, into
    a folder of its own.
    """
    compiled = stages.chosen.path
    if _one_file(stages):
        shutil.copytree(compiled.parent, folder / "engines")
        return
    for file in set(stages.files):
        (folder / "engines" / file.stem).mkdir(parents=True)
        shutil.copyfile(file, folder / "engines" / file.stem / file.name)


def _engine_paths(stages: ArloStages) -> list[str]:
    """File of each runtime by its path in the version."""
    if _one_file(stages):
        return [f"engines/{stages.chosen.path.name}"] * len(stages.files)
    return [f"engines/{file.stem}/{file.name}" for file in stages.files]


def _one_file(stages: ArloStages) -> bool:
    """Whether all runtimes are opened from the compiled file."""
    return set(stages.files) == {stages.chosen.path}


def _manifest(stages: ArloStages, profiles: Profiles, fields: VersionFields) -> ArloManifest:
    spec, facts = stages.spec, stages.reference.facts
    return ArloManifest(
        kind="arlo",
        **fields,
        source=Source(
            model=spec.model, architecture=facts.architecture, sha256=stages.plan.ingredients["source files"]
        ),
        tokenizer=TokenizerInfo(
            file=f"tokenizer/{TOKENIZER}",
            max_length=facts.max_length,
            pad_token_id=facts.pad_token_id,
            type_ids=facts.type_ids,
        ),
        task=stages.plan.task,
        settings=facts.settings,
        labels=facts.labels,
        placement=stages.placement,
        native=spec.plan_options.native,
        engine=spec.engine,
        precision=stages.chosen.precision,
        device=device.here(stages.device),
        runtimes=tuple(
            Runtime(
                max_length=length,
                file=path,
                dynamic=length > stages.ladder.static_upto,
                max_batch=spec.max_batch,
            )
            for length, path in zip(stages.ladder.lengths, _engine_paths(stages), strict=True)
        ),
        main_output=facts.main_output,
        extra_outputs=tuple(ExtraOutput(name=name, per_token=True) for name in spec.outputs if name != "logits"),
        verification=stages.verified.verification,
        trials=stages.trials,
        profile=profiles.profile,
        parallel=profiles.parallel,
    )
