"""The stages of a build. Each result is kept in the workspace as soon as it is complete."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel

from tidal.arlo.manifest import Placement, Trial
from tidal.device import DeviceKind
from tidal.engines import EngineKind, Precision, choose_device, compile_engine, engine_file, stored_as
from tidal.errors import Internal, InvalidArgument, TidalError, Unsupported, did_you_mean
from tidal.gpus import visible_gpus
from tidal.manifest import Verification
from tidal_builders.arlo.choices import (
    WORTH,
    FormChoice,
    Lengths,
    choose_form,
    choose_placement,
    find_lengths,
    mean_latencies,
)
from tidal_builders.arlo.opened import Compiled, Opened, bounds_of, open_form
from tidal_builders.arlo.plan import ArloPlan
from tidal_builders.arlo.profiling import Profiles, measure_profiles
from tidal_builders.arlo.reference import Reference, read_reference, write_reference
from tidal_builders.arlo.spec import ArloSpec
from tidal_builders.arlo.verify import Answers, Comparison, compare, shortfalls, tolerance
from tidal_builders.arlo.workers import default_workers, one_per_thread
from tidal_builders.runner import StageProgress
from tidal_builders.samples import Row, longest, pad
from tidal_builders.workspace import Workspace

if TYPE_CHECKING:
    from tidal_builders.arlo.source import Source


class PrecisionChoice(BaseModel):
    """The precision to build with, or None and what every candidate misses."""

    chosen: Precision | None
    trials: tuple[Trial, ...]
    misses: tuple[str, ...]


class Verified(BaseModel):
    """The final engines against the source model; `errors` by runtime length, None where no sample fell."""

    verification: Verification
    errors: dict[int, float | None]
    misses: tuple[str, ...]


@dataclass
class ArloStages:
    """Results of one build, each made when it is first asked for and not in the workspace."""

    spec: ArloSpec
    plan: ArloPlan
    work: Workspace
    progress: StageProgress

    @cached_property
    def source(self) -> Source:
        """The source model. Loading it takes seconds, so only what needs it asks for it."""
        from tidal_builders.arlo.source import load_source

        self.progress("load the source model", 0.0)
        return load_source(self.plan.source, self.spec)

    @property
    def device(self) -> DeviceKind:
        """What the engines run on."""
        return choose_device(self.spec.engine, self.spec.device)

    @cached_property
    def reference(self) -> Reference:
        """Facts, samples and the source model's answers."""
        text = self.plan.samples.read_text(encoding="utf-8") if self.plan.samples else None
        folder = self.work.directory(
            "reference",
            lambda path: write_reference(
                path, self.source, self.spec, text, lambda share: self.progress("ask the source model", share)
            ),
        )
        return read_reference(folder)

    def compiled(self, precision: Precision) -> Compiled:
        """The model compiled for a precision. Precisions that only differ in how it is opened share a file."""
        kind = self.spec.engine
        stored = stored_as(kind, self.device)[precision]
        folder = self.work.directory(f"engine-{stored}", lambda path: self._compile(kind, stored, path))
        names = self.reference.facts.input_names
        options = self.spec.plan_options
        return Compiled(kind, folder / engine_file(kind), precision, names, self.spec.max_batch, self.device, options)

    def _compile(self, kind: EngineKind, stored: Precision, folder: Path) -> None:
        from tidal_builders.arlo.source import Exported
        from tidal_builders.quiet import quiet_transformers

        reference, facts = self.reference, self.reference.facts
        module = Exported(self.source, self.spec.outputs)
        self.progress(f"compile for {kind}, {stored}", 0.0)
        # Padding in the example keeps a tracer from taking the mask for a constant, and a batch of 2 from taking its
        # size for one.
        pair = sorted(reference.rows, key=lambda row: len(row["input_ids"]))[:2]
        length = min(longest(pair) + 1, facts.max_length)
        try:
            with quiet_transformers():
                compile_engine(
                    kind,
                    module,
                    folder,
                    precision=stored,
                    shapes=dict.fromkeys(facts.input_names, ((1, max(2, self.spec.max_batch)), (1, facts.max_length))),
                    example=pad(pair, length, facts.pad_token_id),
                    calibration=[
                        pad([row], len(row["input_ids"]), facts.pad_token_id) for row in reference.calibration
                    ],
                )
        except TidalError:
            raise
        except Exception as error:  # whatever a compiler raises on a graph that it cannot take
            reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
            raise Internal(f"{kind} cannot compile {facts.architecture} to {stored}: {reason[:300]}") from error

    @cached_property
    def precision(self) -> PrecisionChoice:
        """The spec's precision; for `auto` the most precise one inside the tolerance that is about the fastest."""
        return self.work.record("precision", PrecisionChoice, self._choose_precision)

    def _choose_precision(self) -> PrecisionChoice:
        offered, wanted = stored_as(self.spec.engine, self.device), self.spec.precision
        if wanted != "auto" and wanted not in offered:
            raise InvalidArgument(
                f"field 'precision': engine {self.spec.engine} does not run {wanted} on a {self.device}; "
                f"{did_you_mean(wanted, [*offered, 'auto'])}"
            )
        facts = self.reference.facts
        passed: dict[Precision, Opened] = {}
        errors: dict[Precision, float] = {}
        misses: list[str] = []
        trials: list[Trial] = []
        for precision in offered if wanted == "auto" else (wanted,):
            try:
                opened = open_form(
                    self.compiled(precision),
                    (facts.max_length,),
                    dynamic=True,
                    workers=default_workers(self.spec),
                )
            except Unsupported as error:
                if wanted != "auto":
                    raise
                misses.append(f"{precision}: {error}")
                trials.append(self._trial(precision, None, None, "not offered here"))
                continue
            self.progress(f"verify {precision}", 0.0)
            comparison = self._compare(opened)
            errors[precision] = float(comparison.logit_error.max())
            if said := shortfalls(comparison, self.spec, precision):
                misses += [f"{precision}: {clause}" for clause in said]
                trials.append(self._trial(precision, None, errors[precision], "misses tolerance"))
            else:
                passed[precision] = opened
        if not passed:
            return PrecisionChoice(chosen=None, trials=tuple(trials), misses=tuple(misses))
        means: dict[Precision, float | None] = dict.fromkeys(passed)
        chosen = next(iter(passed))
        if len(passed) > 1:
            timed = mean_latencies(passed, facts, lambda share: self.progress("compare precisions", share))
            # The first that is as good as the fastest: they go from the most precise to the least.
            fastest = min(timed.values())
            means, chosen = dict(timed), next(name for name in timed if timed[name] * (1 - WORTH) <= fastest)
        trials += [
            self._trial(name, means[name], errors[name], "chosen" if name == chosen else "slower") for name in passed
        ]
        return PrecisionChoice(chosen=chosen, trials=tuple(trials), misses=())

    @staticmethod
    def _trial(precision: Precision, mean_ms: float | None, error: float | None, verdict: str) -> Trial:
        return Trial.model_validate(
            {
                "precision": precision,
                "form": "dynamic",
                "choice": "precision",
                "mean_ms": mean_ms,
                "max_abs_error": None if error == float("inf") else error,
                "verdict": verdict,
            }
        )

    def _compare(self, opened: Opened) -> Comparison:
        reference = self.reference

        def run(rows: list[Row]) -> Answers:
            return opened.run(pad(rows, opened.padded_length(longest(rows)), reference.facts.pad_token_id))

        return compare(run, reference.rows, reference.answers, self.spec.max_batch)

    @cached_property
    def chosen(self) -> Compiled:
        """The model compiled for the chosen precision."""
        assert self.precision.chosen is not None
        return self.compiled(self.precision.chosen)

    @cached_property
    def lengths(self) -> Lengths:
        """The runtimes' lengths."""
        return self.work.record(
            "lengths",
            Lengths,
            lambda: find_lengths(
                self.chosen,
                self.reference.facts,
                self.spec,
                default_workers(self.spec),
                lambda share: self.progress("measure the staircase", share),
            ),
        )

    @cached_property
    def form(self) -> FormChoice:
        """Static runtimes or a dynamic one."""
        return self.work.record(
            "form",
            FormChoice,
            lambda: choose_form(
                self.chosen,
                self.reference.facts,
                self.lengths.lengths,
                self.spec,
                default_workers(self.spec),
                lambda share: self.progress("compare static and dynamic", share),
            ),
        )

    @property
    def placement(self) -> Placement:
        """Where the engines run."""
        devices = len(visible_gpus()) if self.device == "gpu" else 1
        return choose_placement(self.spec, self.form.form, devices)

    @property
    def trials(self) -> tuple[Trial, ...]:
        """Everything that was compared: precisions, then forms of the chosen one."""
        return self.precision.trials + self.form.trials

    @cached_property
    def opened(self) -> Opened:
        """The engines as they will be served."""
        return open_form(
            self.chosen,
            self.lengths.lengths,
            dynamic=self.form.form == "dynamic",
            workers=default_workers(self.spec),
        )

    @property
    def files(self) -> tuple[Path, ...]:
        """The file that each runtime's engines are opened from."""
        dynamic, lengths = self.form.form == "dynamic", self.lengths.lengths
        files = self.chosen.files(bounds_of(lengths, dynamic=dynamic))
        return files * len(lengths) if dynamic else files

    @cached_property
    def verified(self) -> Verified:
        """The final engines against the source model."""
        return self.work.record("verified", Verified, self._verify)

    def _verify(self) -> Verified:
        precision = self.chosen.precision
        opened = self.opened
        self.progress("verify", 0.0)
        comparison = self._compare(opened)
        bounds = (0, *self.lengths.lengths)
        return Verified(
            verification=comparison.verification(tolerance(self.spec, precision)),
            errors={upto: comparison.max_error(above, upto) for above, upto in itertools.pairwise(bounds)},
            misses=tuple(shortfalls(comparison, self.spec, precision)),
        )

    @cached_property
    def profiles(self) -> Profiles:
        """Latency by length and batch of the ways to run that the server will choose from."""
        return self.work.record("profiles", Profiles, self._measure_profiles)

    def _measure_profiles(self) -> Profiles:
        sets = [(self.opened, default_workers(self.spec))]
        if (split := one_per_thread(self.spec)) is not None:
            opened = open_form(self.chosen, self.lengths.lengths, dynamic=self.form.form == "dynamic", workers=split)
            sets.append((opened, split))
        return measure_profiles(
            sets, self.reference.facts, self.spec.max_batch, lambda share: self.progress("profile", share)
        )
