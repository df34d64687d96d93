"""Opening of a published version: engines in this process, or the front of a partitioned model."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Protocol

from tidal.arlo.front import open_front
from tidal.arlo.manifest import ArloManifest, load_arlo_manifest
from tidal.arlo.metrics import publish_objective
from tidal.arlo.model import open_model, queued_batches
from tidal.arlo.parameters import SLO_LATENCIES, ArloParameters
from tidal.arlo.policies import (
    SERVED_DEPTH,
    CompletionRule,
    CongestionRule,
    DispatchRule,
    PartitionedPolicy,
    PolymorphicPolicy,
)
from tidal.arlo.service import ArloService
from tidal.encoder_tasks.cutting import longest_text, open_cutter
from tidal.errors import InvalidArgument
from tidal.service import Service, ServiceContext

# Padding, starting and answering a batch while client and server share the cores. Without it the policy splits the
# queries of fast models into too many batches: 1,381 requests/s (1,255 to 1,695) instead of 1,595 (1,245 to 2,215) with
# a one-layer model and 16 in flight, on two cores of an AMD EPYC.
_BATCH_OVERHEAD_S = 0.3e-3


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
    _check_task(manifest, parameters)
    if manifest.placement == "partitioned":
        return _load_partitioned(context, manifest, parameters)
    return load_polymorphic(context, parameters)


def _check_task(manifest: ArloManifest, parameters: ArloParameters) -> None:
    """Reject a config.pbtxt whose task differs from the manifest's."""
    if parameters.task is not None and parameters.task != manifest.task:
        raise InvalidArgument(
            f"parameter 'task' in config.pbtxt is '{parameters.task}', but the task of this version is "
            f"{manifest.task}; delete config.pbtxt and run `tidal build` to write it again"
        )
    if parameters.task_settings is None:
        return
    try:
        same = json.loads(parameters.task_settings) == manifest.settings
    except ValueError:
        same = False
    if not same:
        raise InvalidArgument(
            f"parameter 'task_settings' in config.pbtxt is '{parameters.task_settings[:300]}', but the settings of "
            f"this version are {json.dumps(manifest.settings)[:300]}; copy them there, or remove the parameter"
        )


class StartPolymorphic(Protocol):
    """Starts a service on a version whose engines are open."""

    def __call__(self, context: ServiceContext, replied: Callable[[], None] | None = None, /) -> ArloService:
        """Start a service; see `ArloService`."""


def load_polymorphic(context: ServiceContext, parameters: ArloParameters) -> StartPolymorphic:
    """Open a version whose engines all run in this process; see `load`."""
    published = load_arlo_manifest(context.version_dir)
    cutter = open_cutter(published.task, published.max_length, parameters.truncate, parameters.stride)
    truncate = parameters.truncate is True
    model = open_model(context.version_dir, truncate=truncate, longest=longest_text(cutter))
    manifest = model.manifest

    def start(fresh: ServiceContext, replied: Callable[[], None] | None = None) -> ArloService:
        policy = PolymorphicPolicy(
            [runtime.max_length for runtime in manifest.runtimes],
            manifest.profile,
            manifest.parallel,
            static_upto=manifest.static_upto,
            max_batch=min(runtime.max_batch for runtime in manifest.runtimes),
            service_weight=parameters.service_weight,
            overhead_s=_BATCH_OVERHEAD_S,
            queued=queued_batches(manifest),
        )
        return ArloService(fresh, manifest, model.tokenizer, policy, model, cutter, replied)

    return start


def _load_partitioned(
    context: ServiceContext, manifest: ArloManifest, parameters: ArloParameters
) -> Callable[[ServiceContext], Service]:
    front = open_front(context, manifest, parameters)
    longest_ms = 1e3 * front.latencies_s[-1]
    slo_ms = SLO_LATENCIES * longest_ms if parameters.slo_ms is None else parameters.slo_ms
    if slo_ms < longest_ms:
        context.log.warning(
            f"slo_ms is {slo_ms:g}, but one query of {front.lengths[-1]} tokens takes {longest_ms:.3g} ms alone"
        )
    publish_objective(context.metrics, slo_ms / 1e3)

    def start(fresh: ServiceContext) -> Service:
        # The allocation may have changed since the last service failed.
        front.allocation.refresh()
        policy = PartitionedPolicy(
            front.lengths,
            front.latencies_s,
            slo_ms / 1e3,
            front.allocation.instances,
            rule=dispatch_rule(parameters),
            depth=SERVED_DEPTH,
            accepts=front.allocation.entrance,
        )
        return front.service(fresh, policy)

    return start


def dispatch_rule(parameters: ArloParameters) -> DispatchRule:
    """Return the rule that chooses a runtime for a query."""
    if parameters.dispatch == "completion":
        return CompletionRule()
    return CongestionRule(parameters.congestion_threshold, parameters.threshold_decay, parameters.peek_levels)
