"""Systems that are compared, and the measurement of one under a load."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.otas.live.load import OtasLoad
from benchmarks.otas.live.outcome import OtasOutcome, Watch, outcome_of
from benchmarks.otas.live.repository import PAPER_MODEL, PARETO_MODEL, SIZES, fixed_model
from benchmarks.otas.live.sending import Answers, Sending
from benchmarks.otas.live.switching import Switch, unload
from tidal.server.child import RunningServer

PARETO, PAPER = "OTAS (pareto)", "OTAS (paper)"
PETS, TOME, VPT = "PetS (0)", "ToMe", "VPT"
INFAAS, RESIDENT = "INFaaS", "INFaaS, all resident"
#: In the order of tables.
SYSTEMS = (PARETO, PAPER, PETS, TOME, VPT, INFAAS, RESIDENT)
# A model that answers a larger share of the queries is not at its limit.
_SATURATED = 0.75
_WARM_QUERIES, _WARM_S = 40, 0.5


@dataclass(frozen=True)
class OtasBench:
    """A server with the models of `write_repository`, the process that sends to it, and the models to switch between:
    some of `SIZES`, in their order."""

    server: RunningServer
    sending: Sending
    sizes: tuple[str, ...] = tuple(SIZES)

    def measure(
        self, system: str, load: OtasLoad, *, gamma: int = 0, throughputs: tuple[float, ...] = ()
    ) -> OtasOutcome:
        """Measure a system under a load.

        Args:
            system: System, one of `SYSTEMS`; its model must be loaded, unless it switches models.
            load: Load to send.
            gamma: The γ of `TOME` and `VPT`.
            throughputs: Throughputs of all model sizes, for systems that switch.
        """
        if system in (INFAAS, RESIDENT):
            return self._switching(load, throughputs, resident=system == RESIDENT)
        models = {PARETO: PARETO_MODEL, PAPER: PAPER_MODEL}
        return self.measure_model(models.get(system) or fixed_model(gamma), load)

    def measure_model(self, model: str, load: OtasLoad) -> OtasOutcome:
        """Measure a loaded model under a load."""
        self.warm_up(model, load)
        return self._measured(model, load, [model], lasting=True)

    def capacity(self, model: str, like: OtasLoad, *, roughly: float, seconds: float) -> float:
        """Return the throughput in queries per second, at an arrival rate of twice the throughput.

        Args:
            model: Name of the model, which is loaded.
            like: Queries to send repeatedly, without their deadlines.
            roughly: Estimated throughput, in queries per second.
            seconds: Approximate duration of a measurement, in seconds.
        """
        self.warm_up(model, like)
        found = roughly
        while True:
            offered = 2 * found
            load = like.steady(max(20, round(found * seconds)), offered)
            answers = self.sending.send(model, load)
            found = _answered(answers) / float((load.times + answers.seconds).max())
            if found < _SATURATED * offered:
                return found

    def warm_up(self, model: str, like: OtasLoad) -> None:
        """Warm up a model: load its tasks and run a few batches."""
        self.sending.send(model, like.steady(_WARM_QUERIES, _WARM_QUERIES / _WARM_S))

    def _switching(self, load: OtasLoad, throughputs: tuple[float, ...], *, resident: bool) -> OtasOutcome:
        models = list(self.sizes)
        there = models if resident else [models[len(models) // 2]]
        for model in there:
            self.server.control.load(model, None)
            self.warm_up(model, load)
        try:
            of_models = tuple(each for model, each in zip(SIZES, throughputs, strict=True) if model in models)
            return self._measured(Switch(models, of_models, resident), load, models, lasting=resident)
        finally:
            unload(self.server.control, models)

    def _measured(self, target: str | Switch, load: OtasLoad, models: list[str], *, lasting: bool) -> OtasOutcome:
        watch = Watch()
        with watch.over(self.server, models, lasting=lasting):
            answers = self.sending.send(target, load)
        return outcome_of(load, answers, watch)


def _answered(answers: Answers) -> int:
    return len(answers.labels) - sum(answers.errors.values())
