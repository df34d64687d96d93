"""The stages of an encoder's build. Each result is kept in the workspace as soon as it is complete."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from tidal.arlo.manifest import Placement, Trial
from tidal.device import DeviceKind
from tidal.engines import EngineKind, Precision, choose_device, compile_engine, engine_file, stored_as
from tidal.errors import Internal, TidalError
from tidal.gpus import visible_gpus
from tidal_builders.arlo.choices import (
    LadderChoice,
    Ladders,
    candidate_ladders,
    choose_ladder,
    choose_placement,
    mean_latencies,
)
from tidal_builders.arlo.ladder import Ladder
from tidal_builders.arlo.learned_lengths import LearnedLengths
from tidal_builders.arlo.length_distribution import LengthDistribution, lengths_of_texts
from tidal_builders.arlo.opened import Compiled, Opened, open_form
from tidal_builders.arlo.plan import ArloPlan
from tidal_builders.arlo.precision import PrecisionChoice, choose_precision
from tidal_builders.arlo.profiling import Profiles, measure_profiles
from tidal_builders.arlo.reference import Reference, read_reference, write_reference
from tidal_builders.arlo.spec import ArloSpec
from tidal_builders.arlo.verify import Comparison, Outputs, Verified, compare_with_source
from tidal_builders.arlo.workers import default_workers, one_per_thread
from tidal_builders.encoder_tasks.entries import BUILD_TASKS
from tidal_builders.encoder_tasks.prepared import PrepareOptions
from tidal_builders.long_texts import check_long_texts
from tidal_builders.runner import StageProgress
from tidal_builders.samples import Row, longest, pad
from tidal_builders.workspace import Workspace

if TYPE_CHECKING:
    from tidal_builders.arlo.source import Source
    from tidal_builders.encoder_tasks.measures import Measure


@dataclass
class ArloStages:
    """The stages of one build, each run at its first use unless an earlier process finished it.

    Attributes:
        spec: Spec of the model.
        plan: Plan of the build.
        work: Workspace with the finished stages.
        progress: Called with the name of the running stage and the completed share of it.
    """

    spec: ArloSpec
    plan: ArloPlan
    work: Workspace
    progress: StageProgress
    # Engines that the precision was verified with, where they are those that are served, and their comparison.
    _compared: tuple[Opened, Comparison] | None = field(default=None, init=False)

    @cached_property
    def source(self) -> Source:
        """The source model, which takes seconds to load."""
        from tidal_builders.arlo.source import load_source

        self.progress("load the source model", 0.0)
        spec = self.spec
        options = PrepareOptions(
            labels=spec.labels,
            pooling=spec.pooling,
            normalize=spec.normalize,
            prompts=spec.prompts,
            default_prompt=spec.default_prompt,
            similarity=spec.similarity,
            max_answer_tokens=spec.max_answer_tokens,
            impossible_answers=spec.impossible_answers,
        )
        found = load_source(self.plan.source, self.plan.task, options)
        check_long_texts(spec, self.plan.task, found.max_length)
        return found

    @cached_property
    def measure(self) -> Measure:
        """Measure of the task."""
        return BUILD_TASKS[self.plan.task].load_measure(self.reference.facts.labels)

    @property
    def device(self) -> DeviceKind:
        """Device that the engines run on."""
        return choose_device(self.spec.engine, self.spec.device)

    @cached_property
    def reference(self) -> Reference:
        """Properties of the source model, samples, and its outputs for them."""
        text = self.plan.samples.read_text(encoding="utf-8") if self.plan.samples else None
        folder = self.work.directory(
            "reference",
            lambda path: write_reference(
                path, self.source, self.spec, text, lambda share: self.progress("run the source model", share)
            ),
        )
        return read_reference(folder)

    @cached_property
    def distribution(self) -> LengthDistribution:
        """Distribution of the texts' lengths that choices are made for."""
        plan, max_length = self.plan, self.reference.facts.max_length
        like = self.spec.lengths_like
        if like == "even":
            return LengthDistribution.even(max_length)
        if plan.learned is not None:
            return LearnedLengths.read(plan.learned).distribution(max_length)
        field, file = ("lengths_like", plan.lengths_like) if plan.lengths_like else ("samples", plan.samples)
        if like == "short" or file is None:
            return LengthDistribution.short(max_length)
        pairs = BUILD_TASKS[plan.task].pairs
        found = lengths_of_texts(file, field, self.reference.tokenizer, pairs=pairs)
        return LengthDistribution.of_lengths(found, max_length)

    def compiled(self, precision: Precision) -> Compiled:
        """The model compiled for a precision. Precisions that differ only when the model is opened share a file."""
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
        module = Exported(self.source, attention="attention_received" in self.spec.outputs)
        self.progress(f"compile for {kind}, {stored}", 0.0)
        # With padding in the example a tracer does not treat the mask as a constant; with a batch of 2, not its size.
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
        except Exception as error:  # compilers raise many types of errors on graphs that they do not support
            reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
            raise Internal(f"{kind} cannot compile {facts.architecture} to {stored}: {reason[:300]}") from error

    @cached_property
    def precision(self) -> PrecisionChoice:
        """The spec's precision; for `auto`, the most precise one within the tolerance and `MIN_GAIN` of the fastest."""
        return self.work.record("precision", PrecisionChoice, self._choose_precision)

    def _choose_precision(self) -> PrecisionChoice:
        facts = self.reference.facts

        def mean_ms(engines: Mapping[Precision, Opened]) -> Mapping[Precision, float]:
            return mean_latencies(
                engines, facts, self.distribution, lambda share: self.progress("compare precisions", share)
            )

        def compare(opened: Opened) -> Comparison:
            comparison = self._compare(opened)
            if self.spec.precision != "auto" and self.spec.form == "dynamic":  # nothing is left to choose
                self._compared = opened, comparison
            return comparison

        return choose_precision(self.spec, self.device, facts, self.compiled, compare, mean_ms, self.progress)

    def _compare(self, opened: Opened) -> Comparison:
        reference = self.reference

        def run(rows: list[Row]) -> Outputs:
            return opened.run(pad(rows, opened.padded_length(longest(rows)), reference.facts.pad_token_id))

        main = reference.facts.main_output
        return compare_with_source(run, reference.rows, reference.outputs, main, self.measure, self.spec.max_batch)

    @cached_property
    def chosen(self) -> Compiled:
        """The model compiled for the chosen precision."""
        assert self.precision.chosen is not None
        return self.compiled(self.precision.chosen)

    @cached_property
    def ladders(self) -> Ladders:
        """Lengths that the runtimes may have."""
        return self.work.record(
            "lengths",
            Ladders,
            lambda: candidate_ladders(
                self.chosen,
                self.reference.facts,
                self.distribution,
                self.spec,
                default_workers(self.spec),
                lambda share: self.progress("measure latencies by length", share),
            ),
        )

    @cached_property
    def form(self) -> LadderChoice:
        """The runtimes' lengths, and which of them are static."""
        return self.work.record(
            "form",
            LadderChoice,
            lambda: choose_ladder(
                self.chosen,
                self.reference.facts,
                self.ladders.candidates,
                self.distribution,
                default_workers(self.spec),
                lambda share: self.progress("compare static and dynamic", share),
            ),
        )

    @property
    def ladder(self) -> Ladder:
        """The runtimes' lengths."""
        return self.form.ladder

    @property
    def placement(self) -> Placement:
        """Placement of the runtimes."""
        devices = len(visible_gpus()) if self.device == "gpu" else 1
        return choose_placement(self.spec, self.ladder.form, devices)

    @property
    def trials(self) -> tuple[Trial, ...]:
        """Alternatives that were compared: precisions, then forms of the chosen one."""
        return self.precision.trials + self.form.trials

    @cached_property
    def opened(self) -> Opened:
        """The engines as they are served."""
        if self._compared is not None:
            return replace(self._compared[0], ladder=self.ladder)
        return open_form(self.chosen, self.ladder, default_workers(self.spec))

    @property
    def files(self) -> tuple[Path, ...]:
        """File that the engines of each runtime are opened from."""
        files, ladder = self.chosen.files(self.ladder.bounds), self.ladder
        return (*files[: len(ladder.static)], *files[-1:] * (len(ladder.lengths) - len(ladder.static)))

    @cached_property
    def verified(self) -> Verified:
        """Comparison of the final engines with the source model."""
        return self.work.record("verified", Verified, self._verify)

    def _verify(self) -> Verified:
        precision = self.chosen.precision
        opened = self.opened
        self.progress("verify", 0.0)
        comparison = self._compare(opened) if self._compared is None else self._compared[1]
        bounds = (0, *self.ladder.lengths)
        return Verified(
            verification=comparison.verification(precision, self.spec.tolerance),
            errors={upto: comparison.max_error(above, upto) for above, upto in itertools.pairwise(bounds)},
            misses=tuple(comparison.shortfalls(precision, self.spec.tolerance)),
        )

    @cached_property
    def profiles(self) -> Profiles:
        """Latencies of the workers that the server chooses from."""
        return self.work.record("profiles", Profiles, self._measure_profiles)

    def _measure_profiles(self) -> Profiles:
        sets = [(self.opened, default_workers(self.spec))]
        if (split := one_per_thread(self.spec)) is not None:
            opened = open_form(self.chosen, self.ladder, split)
            sets.append((opened, split))
        return measure_profiles(
            sets, self.reference.facts, self.spec.max_batch, lambda share: self.progress("profile", share)
        )
