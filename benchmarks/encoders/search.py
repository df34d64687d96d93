"""Search for the best settings of each peer, on texts that are not measured later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.encoders.agreement import References, agreement
from benchmarks.encoders.cells import measure_closed
from benchmarks.encoders.prepare import EncoderArtefacts
from benchmarks.encoders.processes import NotStarted
from benchmarks.encoders.run import EncoderCell, EncoderRun
from benchmarks.encoders.sides import warm_up
from benchmarks.encoders.starting import started
from benchmarks.encoders.systems import SEARCHED, Form, forms
from benchmarks.encoders.workload import Traffic, Workload
from benchmarks.report import progress

#: Seeds of searched texts are above those of measured ones.
SEEDS = 1_000_000
#: Upper limit of requests per second for which texts are made.
MOST_PER_SECOND = 900
_WARM_S = 1.0


@dataclass(frozen=True)
class PeerSearch:
    """Chooses the settings of peers that have none yet.

    Args:
        artefacts: Prepared artefacts.
        run: Run that receives the chosen settings.
        workload: Generator of requests.
        references: Answers of the source models.
        seconds: Length of a measurement in seconds.
        quick: Whether to measure one setting of each peer only.
    """

    artefacts: EncoderArtefacts
    run: EncoderRun
    workload: Workload
    references: References
    seconds: float
    quick: bool

    def search(self, traffic: Traffic, system: str) -> None:
        """Choose the settings of a peer for one, and for more requests in flight; its failure is stored as reason.

        Args:
            traffic: Kind of the requests.
            system: Name of the peer.
        """
        task = traffic.task
        if system in self.run.forms.get(task, {}) or system in self.run.missing.get(task, {}):
            return
        measured: dict[int, dict[int, EncoderCell]] = {}
        reason, every = "", forms(system, quick=self.quick)
        for number, form in enumerate(every):
            progress(f"search: {task}, {system}, {form.label}")
            try:
                measured[number] = self._measure(traffic, form)
            except (NotStarted, RuntimeError, OSError) as error:
                reason = " ".join(str(error).split())[:300] or type(error).__name__
                progress(f"search: {system}, {form.label} does not run: {reason}")
        for number, cells in measured.items():
            figures = [f"{each.per_second:.0f}" for each in cells.values()]
            self.run.searched.append([f"{task}, {system}", every[number].label, *figures])
        if measured:
            best = best_of({number: _speeds(cells) for number, cells in measured.items()})
            self.run.forms.setdefault(task, {})[system] = [dict(every[number].settings) for number in best]
            self.run.speeds.setdefault(task, {})[system] = measured[best[1]][SEARCHED[1]].per_second
        else:
            progress(f"{system} is left out of {task}: {reason}")
            self.run.missing.setdefault(task, {})[system] = reason
        self.run.save()

    def _measure(self, traffic: Traffic, form: Form) -> dict[int, EncoderCell]:
        count = round((self.seconds + _WARM_S) * MOST_PER_SECOND)
        with started(form, traffic.task, self.artefacts) as side:
            agreed = agreement(side, self.references, traffic.task)
            self.run.agreement.setdefault(traffic.task, {})[form.system] = agreed
            warm_up(side, self.workload.requests(traffic, count, SEEDS), in_flight=SEARCHED[1], seconds=_WARM_S)
            return {
                in_flight: measure_closed(
                    side,
                    self.workload.requests(traffic, count, SEEDS + in_flight),
                    in_flight=in_flight,
                    seconds=self.seconds,
                    warm_s=_WARM_S / 2,
                )
                for in_flight in SEARCHED
            }


def best_of(speeds: Mapping[int, Mapping[int, float]]) -> list[int]:
    """Return the number of the fastest settings at each searched concurrency.

    Args:
        speeds: Requests per second by number of the settings and by concurrency.
    """
    return [max(speeds, key=lambda number: speeds[number][in_flight]) for in_flight in SEARCHED]


def _speeds(cells: Mapping[int, EncoderCell]) -> dict[int, float]:
    return {in_flight: cell.per_second for in_flight, cell in cells.items()}
