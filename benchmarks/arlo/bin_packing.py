"""INFaaS-like dispatching: bin packing among the instances that are long enough (Arlo §5, "Compared schemes").

This file is copied next to `bin_packing_model.py` in the model repository, so it cannot import the benchmarks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pydantic import Field

from tidal.arlo.instances import RuntimeModels
from tidal.arlo.manifest import load_arlo_manifest
from tidal.arlo.parameters import ArloParameters
from tidal.arlo.partitioned import PartitionedService, WatchedAllocation
from tidal.repository.entries import ModelEntry
from tidal.service import Service, ServiceContext
from tidal.simulator.arlo.dispatch import BinPacking
from tidal.text import TextTokenizer


class BinPackingParameters(ArloParameters):
    """Parameters of the front in its config.pbtxt."""

    fill: float = Field(gt=0, le=1)
    front: str = Field(description="partitioned model whose runtimes and allocation this model uses")


def load(context: ServiceContext, parameters: BinPackingParameters) -> Callable[[ServiceContext], Service]:
    """Load the model, as `tidal.arlo.loading.load` does, over the runtimes of another front."""
    front = ModelEntry(context.model_dir.parent / parameters.front)
    version_dir = front.latest()
    assert version_dir is not None
    assert parameters.slo_ms is not None
    slo_s = parameters.slo_ms / 1e3
    manifest = load_arlo_manifest(version_dir)
    tokenizer = TextTokenizer(version_dir / manifest.tokenizer.file, manifest.max_length)
    lengths = [runtime.max_length for runtime in manifest.runtimes]
    latencies_s = [manifest.profile.latency_ms(length) / 1e3 for length in lengths]
    allocation = WatchedAllocation(replace(context, model_dir=front.folder), lengths)
    runner = RuntimeModels(context.call_model, parameters.front, front.folder, int(version_dir.name), manifest)

    def start(fresh: ServiceContext) -> Service:
        policy = BinPacking(lengths, latencies_s, slo_s, allocation.instances, fill=parameters.fill)
        return PartitionedService(fresh, manifest, tokenizer, policy, runner, allocation)

    return start
