"""INFaaS-like dispatching: bin packing among the instances whose length suffices (Arlo §5, "Compared schemes").

Copied beside `bin_packing_model.py` into the model repository; imports nothing of the benchmarks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from pydantic import Field

from tidal.arlo.instances import InstanceModels
from tidal.arlo.parameters import ArloParameters
from tidal.arlo.partitioned import PartitionedService, WatchedAllocation
from tidal.arlo.policies.levels import Instance, Level
from tidal.arlo.policies.partitioned import PartitionedPolicy
from tidal.manifest import load_manifest
from tidal.repository import ModelEntry
from tidal.service import Service, ServiceContext
from tidal.text import TextTokenizer


class BinPackingPolicy(PartitionedPolicy):
    """Arlo's partitioned placement, but for who gets a query.

    An instance is a bin. A query goes to the fullest bin that still has room, to the shortest runtime among equals;
    where none has room, to the emptiest.

    Args:
        arguments: those of `PartitionedPolicy`.
        fill: share of an instance's capacity, the queries that it finishes within the SLO, that its bin holds; one
            query at least. 1 packs up to the SLO, so that instances stay idle and latency is what the SLO allows.
        options: those of `PartitionedPolicy`.
    """

    def __init__(self, *arguments: Any, fill: float, **options: Any) -> None:
        self._fill = fill
        super().__init__(*arguments, **options)

    def _choose(self, candidates: Sequence[Level]) -> tuple[Level, Instance]:
        bins = [
            (instance.load / level.capacity, level, instance)
            for level in candidates
            for instance in self._instances.values()
            if self._levels[instance.runtime] is level and instance.lane not in self._leaving
        ]
        room = [each for each in bins if each[2].load < max(1.0, self._fill * each[1].capacity)]
        _, level, instance = max(room, key=lambda each: each[0]) if room else min(bins, key=lambda each: each[0])
        return level, instance


class BinPackingParameters(ArloParameters):
    """Parameters of the front in its config.pbtxt."""

    fill: float = Field(gt=0, le=1)
    front: str = Field(description="the partitioned model whose runtimes this one uses, under its allocation")


def load(context: ServiceContext, parameters: BinPackingParameters) -> Callable[[ServiceContext], Service]:
    """As `tidal.arlo.loading.load`, over another front's runtimes."""
    front = ModelEntry(context.model_dir.parent / parameters.front)
    version_dir = front.latest()
    assert version_dir is not None
    assert parameters.slo_ms is not None
    slo_s = parameters.slo_ms / 1e3
    manifest = load_manifest(version_dir)
    tokenizer = TextTokenizer(version_dir / manifest.tokenizer.file, manifest.max_length)
    lengths = [runtime.max_length for runtime in manifest.runtimes]
    latencies_s = [manifest.profile.latency_ms(length) / 1e3 for length in lengths]
    allocation = WatchedAllocation(replace(context, model_dir=front.folder), lengths)
    runner = InstanceModels(context.call_model, parameters.front, front.folder, int(version_dir.name), manifest)

    def start(fresh: ServiceContext) -> Service:
        policy = BinPackingPolicy(lengths, latencies_s, slo_s, allocation.instances, fill=parameters.fill)
        return PartitionedService(fresh, manifest, tokenizer, policy, runner, allocation)

    return start
