"""The opened front of a partitioned model, for any policy that dispatches over its runtimes."""

from __future__ import annotations

from dataclasses import dataclass

from tidal import device
from tidal.arlo.instances import RuntimeModels
from tidal.arlo.manifest import ArloManifest
from tidal.arlo.model import open_text_tokenizer
from tidal.arlo.parameters import ArloParameters
from tidal.arlo.partitioned import PartitionedService, WatchedAllocation
from tidal.arlo.policies import PartitionedPolicy
from tidal.encoder_tasks.cutting import Cutter, longest_text, open_cutter
from tidal.service import ServiceContext
from tidal.text import TextTokenizer


@dataclass(frozen=True, slots=True)
class PartitionedFront:
    """What is opened once for a version, and outlives its services.

    Attributes:
        manifest: Manifest of the version.
        tokenizer: Tokenizer of its texts.
        cutter: Divides texts that are longer than the model permits; None where they are not divided.
        lengths: The runtimes' `max_length` in tokens, ascending.
        latencies_s: Latency of one query in each runtime, in seconds.
        allocation: Instances of each runtime, followed while they change.
        runner: Runs queries in the runtimes' models.
    """

    manifest: ArloManifest
    tokenizer: TextTokenizer
    cutter: Cutter | None
    lengths: list[int]
    latencies_s: list[float]
    allocation: WatchedAllocation
    runner: RuntimeModels

    def service(self, context: ServiceContext, policy: PartitionedPolicy) -> PartitionedService:
        """Start a service.

        Args:
            context: Context of the service.
            policy: Policy that selects an instance for each query.
        """
        return PartitionedService(
            context, self.manifest, self.tokenizer, policy, self.runner, self.allocation, self.cutter
        )


def open_front(context: ServiceContext, manifest: ArloManifest, parameters: ArloParameters) -> PartitionedFront:
    """Open the front of a partitioned model.

    Args:
        context: Context of the model; its name, version and folders are the front's.
        manifest: Manifest of the version.
        parameters: Parameters of config.pbtxt.

    Raises:
        InvalidArgument: The manifest does not match the files or this device, or the allocation cannot be determined.
    """
    manifest.check(context.version_dir, device.here(manifest.device.kind))
    cutter = open_cutter(manifest.task, manifest.max_length, parameters.truncate, parameters.stride)
    tokenizer = open_text_tokenizer(
        manifest, context.version_dir, truncate=parameters.truncate is True, longest=longest_text(cutter)
    )
    lengths = [runtime.max_length for runtime in manifest.runtimes]
    return PartitionedFront(
        manifest,
        tokenizer,
        cutter,
        lengths,
        [manifest.profile.latency_ms(length) / 1e3 for length in lengths],
        WatchedAllocation(context, lengths),
        RuntimeModels(context.call_model, context.model, context.model_dir, context.version, manifest),
    )
