"""Opening of a published version: engines in this process, or the front of a partitioned model."""

from __future__ import annotations

from collections.abc import Callable

from tidal import device
from tidal.arlo.instances import RuntimeModels
from tidal.arlo.manifest import ArloManifest, load_arlo_manifest
from tidal.arlo.metrics import publish_objective
from tidal.arlo.model import open_model
from tidal.arlo.parameters import SLO_LATENCIES, ArloParameters
from tidal.arlo.partitioned import PartitionedService, WatchedAllocation
from tidal.arlo.policies import PartitionedPolicy, PolymorphicPolicy
from tidal.arlo.service import ArloService
from tidal.service import Service, ServiceContext
from tidal.text import TextTokenizer


def load(context: ServiceContext, parameters: ArloParameters) -> Callable[[ServiceContext], Service]:
    """Open the published version once and return a function that starts a service on it, also after a failure.

    Args:
        context: Context of the model that is loaded.
        parameters: Parameters of config.pbtxt.

    Raises:
        InvalidArgument: The manifest does not match the files, this device, the engine library or config.pbtxt, or the
            allocation cannot be determined.
    """
    manifest = load_arlo_manifest(context.version_dir)
    if manifest.placement == "partitioned":
        return _load_partitioned(context, manifest, parameters)
    return load_polymorphic(context, parameters)


def load_polymorphic(context: ServiceContext, parameters: ArloParameters) -> Callable[[ServiceContext], ArloService]:
    """Open a version whose engines all run in this process; see `load`."""
    model = open_model(context.version_dir, truncate=parameters.truncate)
    manifest = model.manifest

    def start(fresh: ServiceContext) -> ArloService:
        policy = PolymorphicPolicy(
            [runtime.max_length for runtime in manifest.runtimes],
            manifest.profile,
            manifest.parallel,
            dynamic=manifest.runtimes[-1].dynamic,
            max_batch=min(runtime.max_batch for runtime in manifest.runtimes),
            service_weight=parameters.service_weight,
        )
        return ArloService(fresh, manifest, model.tokenizer, policy, model)

    return start


def _load_partitioned(
    context: ServiceContext, manifest: ArloManifest, parameters: ArloParameters
) -> Callable[[ServiceContext], Service]:
    manifest.check(context.version_dir, device.here(manifest.device.kind))
    tokenizer = TextTokenizer(
        context.version_dir / manifest.tokenizer.file, manifest.max_length, truncate=parameters.truncate
    )
    lengths = [runtime.max_length for runtime in manifest.runtimes]
    latencies_ms = [manifest.profile.latency_ms(length) for length in lengths]
    slo_ms = SLO_LATENCIES * latencies_ms[-1] if parameters.slo_ms is None else parameters.slo_ms
    if slo_ms < latencies_ms[-1]:
        context.log.warning(
            f"slo_ms is {slo_ms:g}, but one query of {lengths[-1]} tokens takes {latencies_ms[-1]:.3g} ms alone"
        )
    publish_objective(context.metrics, slo_ms / 1e3)
    allocation = WatchedAllocation(context, lengths)
    runner = RuntimeModels(context.call_model, context.model, context.model_dir, context.version, manifest)

    def start(fresh: ServiceContext) -> Service:
        # The allocation may have changed since the last service failed.
        allocation.refresh()
        policy = PartitionedPolicy(
            lengths,
            [latency / 1e3 for latency in latencies_ms],
            slo_ms / 1e3,
            allocation.instances,
            threshold=parameters.congestion_threshold,
            decay=parameters.threshold_decay,
            peek=parameters.peek_levels,
        )
        return PartitionedService(fresh, manifest, tokenizer, policy, runner, allocation)

    return start
