"""From a spec to a published decoder: weights, verification, profile, publication."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from pydantic import BaseModel

from tidal import device
from tidal.engines import choose_device
from tidal.errors import InvalidArgument
from tidal.flover.manifest import (
    TOKENIZER_FILE,
    WEIGHTS_FILE,
    FloverManifest,
    FloverProfile,
    FloverTrial,
    GenerationVerification,
)
from tidal.flover.memory.available import available_bytes
from tidal.flover.memory.buffers import buffer_bytes, kept_type
from tidal.flover.models.form import DecoderForm
from tidal.flover.models.weights import convert, load_weights, save_weights
from tidal.flover.runner import FloverRunner
from tidal.manifest import MANIFEST_FILE, Source
from tidal_builders.arlo.samples import sample_texts
from tidal_builders.flover.config import flover_config_pbtxt
from tidal_builders.flover.plan import FloverPlan, plan_flover
from tidal_builders.flover.profiling import measure_profile
from tidal_builders.flover.report import FloverReport, report_of
from tidal_builders.flover.source import DecoderSource, load_decoder, not_served
from tidal_builders.flover.spec import DEFAULT_TOLERANCE, LONGEST_DEFAULT, FloverSpec
from tidal_builders.flover.verify import misses, read_references, verify, write_references
from tidal_builders.planning import Report, build_if_due, file_records, libraries_of, write_config_once
from tidal_builders.workspace import Workspace, drop_workspaces

Computed = Literal["fp32", "bf16"]
_TYPES: dict[Computed, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}
_FACTS = "facts.json"
_REFERENCES = "references.npz"


class _Facts(BaseModel):
    """What is kept of the source model beside its files."""

    architecture: str
    base: str
    form: DecoderForm
    max_length: int
    eos_token_ids: tuple[int, ...]


def build_flover(
    spec: FloverSpec,
    repository: Path,
    *,
    spec_file: Path | None = None,
    force: bool = False,
    report: Report = lambda _stage, _share: None,
) -> FloverReport:
    """Build a decoder into a repository, if it is not there already.

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
        The report; its outcome is "missed" where no precision stays inside the tolerance.

    Raises:
        InvalidArgument: the spec asks for what the source model does not have, or for more memory than there is.
        TidalError: a stage failed.
    """
    base = spec_file.parent if spec_file else Path()
    named = str(spec_file) if spec_file else f"<spec of {spec.name}>"

    def build(plan: FloverPlan, work: Workspace) -> FloverReport:
        stages = _Stages(spec, plan, work, report)
        if not stages.sound:
            reasons = tuple(
                f"{precision}: {reason}"
                for precision in stages.candidates
                for reason in misses(stages.verified(precision), precision)
            )
            return FloverReport(name=spec.name, outcome="missed", reasons=reasons)
        manifest, version = _publish(stages, named)
        write_config_once(plan.entry, partial(flover_config_pbtxt, spec))
        drop_workspaces(plan.entry.folder)
        update = {"outcome": "published", "reasons": plan.reasons or ("forced",), "warnings": not_served(plan.source)}
        return report_of(manifest, version).model_copy(update=update)

    return build_if_due(
        partial(plan_flover, spec, repository, base), partial(_current, spec), build, force=force, report=report
    )


class _Stages:
    """A build's stages, each done when it is first asked for."""

    def __init__(self, spec: FloverSpec, plan: FloverPlan, work: Workspace, report: Report) -> None:
        self.spec, self.plan, self.report = spec, plan, report
        self._work = work

    @property
    def candidates(self) -> tuple[Computed, ...]:
        """Precisions to try."""
        return ("fp32", "bf16") if self.spec.precision == "auto" else (self.spec.precision,)

    @cached_property
    def folder(self) -> Path:
        """Tokenizer, and what else is taken from the source."""
        return self._work.directory("source", self._take)

    @cached_property
    def facts(self) -> _Facts:
        """Of the source model."""
        return _Facts.model_validate_json((self.folder / _FACTS).read_bytes())

    @cached_property
    def sound(self) -> tuple[Computed, ...]:
        """Candidates that stay inside their tolerance."""
        return tuple(each for each in self.candidates if not misses(self.verified(each), each))

    @cached_property
    def chosen(self) -> Computed:
        """The fastest of those."""
        return min(self.sound, key=self.step_ms)

    def weights(self, precision: Computed) -> Path:
        """The folder with the weights in a precision, laid out as a version."""
        return self._work.directory(f"weights-{precision}", partial(self._convert, precision))

    def verified(self, precision: Computed) -> GenerationVerification:
        """How far a precision is from the source model."""
        return self._work.record(f"verified-{precision}", GenerationVerification, partial(self._verify, precision))

    def profile(self, precision: Computed) -> FloverProfile:
        """What a precision costs here."""
        return self._work.record(f"profile-{precision}", FloverProfile, partial(self._measure, precision))

    def step_ms(self, precision: Computed) -> float:
        """A step of all slots, mean over lengths."""
        return float(np.mean([row[-1] for row in self.profile(precision).step.median_ms]))

    def trials(self) -> tuple[FloverTrial, ...]:
        """The candidates compared; none where there was no choice."""
        if len(self.candidates) == 1:
            return ()
        return tuple(
            FloverTrial(
                precision=each,
                step_ms=self.step_ms(each) if each in self.sound else None,
                max_error=self.verified(each).max_error,
                match_rate=self.verified(each).match_rate,
                verdict=("chosen" if each == self.chosen else "slower" if each in self.sound else "misses tolerance"),
            )
            for each in self.candidates
        )

    @cached_property
    def _source(self) -> DecoderSource:
        self.report("load", 0.0)
        return load_decoder(self.plan.source)

    @property
    def device(self) -> device.DeviceKind:
        """Where the decoder runs."""
        return choose_device(self.spec.engine, self.spec.device)

    @property
    def place(self) -> torch.device:
        """The same, as torch names it."""
        return torch.device("cuda" if self.device == "gpu" else "cpu")

    def runner(self, precision: Computed) -> FloverRunner:
        """A runner of the weights in a precision."""
        torch.set_num_threads(self.plan.threads)
        return FloverRunner(
            self.facts.form,
            load_weights(self.weights(precision) / WEIGHTS_FILE, self.facts.form, self.place),
            slots=self.spec.max_concurrency,
            max_length=self.facts.max_length,
            available=available_bytes(self.place),
        )

    def memory_bytes(self, precision: Computed) -> int:
        """Of all slots' keys and values."""
        dtype = kept_type(_TYPES[precision], self.place)
        return buffer_bytes(self.facts.form, self.spec.max_concurrency, self.facts.max_length, dtype)

    def _take(self, folder: Path) -> None:
        source, longest = self._source, self.spec.max_length
        positions = source.form.positions
        if longest is not None and longest > positions:
            raise InvalidArgument(
                f"field 'max_length': {longest} tokens exceed the model's longest sequence of {positions}"
            )
        content = json.loads(source.tokenizer.backend_tokenizer.to_str())
        # The server decides on both.
        content["truncation"] = content["padding"] = None
        (folder / TOKENIZER_FILE).parent.mkdir()
        (folder / TOKENIZER_FILE).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
        facts = _Facts(
            architecture=type(source.model).__name__,
            base=source.digest,
            form=source.form,
            max_length=longest or min(positions, LONGEST_DEFAULT),
            eos_token_ids=source.eos_token_ids,
        )
        (folder / _FACTS).write_text(facts.model_dump_json())
        self.report("generate", 0.0)
        samples = None if self.plan.samples is None else self.plan.samples.read_text(encoding="utf-8")
        write_references(source, sample_texts(samples)[0], facts.max_length, folder / _REFERENCES)

    def _convert(self, precision: Computed, folder: Path) -> None:
        self.report("convert", 0.0)
        model = self._source.model
        weights = convert(model.state_dict(), self.facts.form, tied=bool(model.config.tie_word_embeddings))
        (folder / WEIGHTS_FILE).parent.mkdir()
        save_weights(weights, folder / WEIGHTS_FILE, _TYPES[precision])

    def _verify(self, precision: Computed) -> GenerationVerification:
        return verify(
            self.runner(precision),
            read_references(self.folder / _REFERENCES),
            self.spec.tolerance or DEFAULT_TOLERANCE[precision],
            partial(self.report, "verify"),
        )

    def _measure(self, precision: Computed) -> FloverProfile:
        return measure_profile(
            self.runner(precision),
            threads=self.plan.threads,
            seconds=self.spec.profile_seconds,
            progress=partial(self.report, "profile"),
        )


def _publish(stages: _Stages, spec_file: str) -> tuple[FloverManifest, int]:
    """Gather everything aside and make it the newest version, all at once."""
    plan, facts, precision = stages.plan, stages.facts, stages.chosen
    profile, trials = stages.profile(precision), stages.trials()
    stages.report("publish", 0.0)
    staging = plan.entry.new_staging()
    shutil.copytree(stages.weights(precision), staging, dirs_exist_ok=True)
    shutil.copytree(stages.folder / "tokenizer", staging / "tokenizer")
    manifest = FloverManifest(
        kind="flover",
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
        precision=precision,
        device=device.here(stages.device),
        base=facts.base,
        form=facts.form,
        eos_token_ids=facts.eos_token_ids,
        max_concurrency=stages.spec.max_concurrency,
        max_length=facts.max_length,
        memory_bytes=stages.memory_bytes(precision),
        threads=plan.threads,
        verification=stages.verified(precision),
        trials=trials,
        profile=profile,
    )
    (staging / MANIFEST_FILE).write_text(manifest.model_dump_json(indent=1))
    return manifest, plan.entry.publish(staging)


def _current(spec: FloverSpec, plan: FloverPlan) -> FloverReport:
    assert plan.published is not None
    write_config_once(plan.entry, partial(flover_config_pbtxt, spec))
    return report_of(plan.published, plan.version).model_copy(update={"warnings": not_served(plan.source)})
