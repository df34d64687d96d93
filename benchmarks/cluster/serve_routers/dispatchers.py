"""Dispatchers that Tidal's is compared with, over the instances of a front of all nodes.

This file is copied next to `dispatchers_model.py` in the model repository, so it cannot import the benchmarks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, Literal

from pydantic import Field

from tidal.arlo.front import open_front
from tidal.arlo.manifest import load_arlo_manifest
from tidal.arlo.parameters import ArloParameters
from tidal.arlo.policies import SERVED_DEPTH, PartitionedPolicy
from tidal.arlo.policies.levels import RuntimeInstance, RuntimeLevel
from tidal.repository.entries import ModelEntry
from tidal.service import Service, ServiceContext
from tidal.simulator.arlo.dispatch import LeastLoaded

Dispatcher = Literal["round_robin", "least_outstanding"]


class RoundRobin(PartitionedPolicy):
    """Selects the instance that was selected the longest ago, of those whose runtime fits.

    Args:
        arguments: Positional arguments of `PartitionedPolicy`.
        options: Keyword arguments of `PartitionedPolicy`.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._turns = count()
        self._selected: dict[int, int] = {}  # turn by lane
        super().__init__(*arguments, **options)

    def _choose(self, candidates: Sequence[RuntimeLevel]) -> tuple[RuntimeLevel, RuntimeInstance]:
        fitting = [(level, instance) for level in candidates for instance in level]
        level, instance = min(fitting, key=lambda each: self._selected.get(each[1].lane, -1))
        self._selected[instance.lane] = next(self._turns)
        return level, instance


_POLICIES: dict[Dispatcher, type[PartitionedPolicy]] = {
    "round_robin": RoundRobin,
    "least_outstanding": LeastLoaded,
}


class DispatcherParameters(ArloParameters):
    """Parameters of the front in its config.pbtxt."""

    dispatcher: Dispatcher
    front: str = Field(description="partitioned model whose runtimes, allocation and other nodes this model uses")


def load(context: ServiceContext, parameters: DispatcherParameters) -> Callable[[ServiceContext], Service]:
    """Load the model, as `tidal.arlo.loading.load` does, over the instances of another front."""
    folder = ModelEntry(context.model_dir.parent / parameters.front)
    version_dir = folder.latest()
    assert version_dir is not None
    assert parameters.slo_ms is not None
    slo_s = parameters.slo_ms / 1e3

    def of_front(own: ServiceContext) -> ServiceContext:
        """Its table of nodes, and the models that it calls on them, are those of the front."""
        return replace(
            own,
            model=parameters.front,
            version=int(version_dir.name),
            model_dir=folder.folder,
            version_dir=version_dir,
        )

    front = open_front(of_front(context), load_arlo_manifest(version_dir), parameters)

    def start(fresh: ServiceContext) -> Service:
        policy = _POLICIES[parameters.dispatcher](
            front.lengths, front.latencies_s, slo_s, front.allocation.instances, depth=SERVED_DEPTH
        )
        return front.service(of_front(fresh), policy)

    return start
