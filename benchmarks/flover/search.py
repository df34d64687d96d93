"""Search for the best settings of each baseline, on requests that are not measured later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.flover.bench import FloverBench
from benchmarks.flover.kept_run import FloverRun
from benchmarks.flover.load import FloverLoad, FloverLoadGenerator, at_once, equal
from benchmarks.flover.prepare import SLOTS
from benchmarks.flover.systems import (
    BATCHES,
    GENAI,
    INSTANCES,
    LABELS,
    PEERS,
    TRANSFORMERS,
    Form,
    batches,
    genai_forms,
    instances,
    transformers_forms,
)
from benchmarks.report import progress

_SEED = 1
_ENGINES = ("openvino", "tidal", "transformers")
_BATCH, _PEERS_TOGETHER = 8, 16


@dataclass(frozen=True)
class Search:
    """Chooses the settings of all baselines that have none yet.

    Args:
        bench: Bench to measure with.
        run: Run that receives the chosen settings.
        loads: Generator of loads.
        tokens: Number of tokens per request.
        batched: Whether batches are measured later.
        quick: Whether to skip settings that rarely win.
    """

    bench: FloverBench
    run: FloverRun
    loads: FloverLoadGenerator
    tokens: int
    batched: bool
    quick: bool

    def search(self) -> None:
        """Choose settings of all baselines; those that do not run are recorded as missing.

        Raises:
            SystemExit: No engine runs.
        """
        engines = _ENGINES[:2] if self.quick else _ENGINES
        if INSTANCES not in self.run.forms:
            self._instances(engines)
        if self.batched and BATCHES not in self.run.forms:
            self._keep(BATCHES, self._fastest(BATCHES, [batches(each, most=_BATCH) for each in engines], _BATCH))
        for model, forms in (
            (TRANSFORMERS, transformers_forms(quick=self.quick)),
            (GENAI, genai_forms(quick=self.quick)),
        ):
            if model not in self.run.forms and model not in self.run.missing:
                self._peer(model, forms)

    def _instances(self, engines: Sequence[str]) -> None:
        cores = self.bench.artefacts.manifest.threads
        fastest = self._fastest(INSTANCES, [instances(each, cores, most=1) for each in engines], 1)
        engine = fastest.settings["engine"]
        forms = [instances(engine, cores)]
        if not self.quick:
            streams = cores if engine == "openvino" else 1
            for most in (SLOTS, SLOTS // 2, cores):
                form = instances(engine, cores, most=most, streams=streams)
                forms += [] if form in forms else [form]
        self._keep(INSTANCES, forms[0] if len(forms) == 1 else self._fastest(INSTANCES, forms, SLOTS))

    def _peer(self, model: str, forms: Sequence[Form]) -> None:
        reason = self.bench.artefacts.no_genai if model == GENAI else ""
        if not reason:
            try:
                self._keep(model, self._fastest(model, forms, _PEERS_TOGETHER))
            except SystemExit as error:
                reason = str(error)
        if reason:
            progress(f"{LABELS[model]} does not run: {reason}")
            self.run.drop(model, reason)
            self.run.save()

    def _keep(self, model: str, form: Form) -> None:
        self.run.forms[model] = form
        self.run.save()

    def _fastest(self, model: str, forms: Sequence[Form], count: int) -> Form:
        """Return the settings with the least time for `count` simultaneous requests, without those that fail.

        Raises:
            SystemExit: All settings fail; states the error of the last one.
        """
        load = self._load(count)
        seconds: dict[int, float] = {}
        error = ""
        for number, form in enumerate(forms):
            progress(f"search: {form.model}, {_described(form)}; {count} at once")
            try:
                seconds[number] = self.bench.run(form, load).total_s
            except Exception as caught:
                error = " ".join(str(caught).split())[:300] or type(caught).__name__
                progress(f"search: {_described(form)} does not run: {error}")
                self.bench.unload(form.model)
        best = min(seconds, key=lambda number: seconds[number], default=-1)
        what = f"{LABELS.get(model, model)}, {count} at once"
        for number, form in enumerate(forms):
            self.run.searched.append((what, _described(form), seconds.get(number), number == best))
        if not seconds:
            raise SystemExit(error)
        if model in PEERS:
            self.run.peers_s[model] = seconds[best]
        return forms[best]

    def _load(self, count: int) -> FloverLoad:
        return self.loads.make("search", at_once(count), equal(count, self.tokens), _SEED)


def _described(form: Form) -> str:
    engine = form.settings.get("engine", "")
    return form.label if form.label.startswith(engine) else f"{engine}, {form.label}"
