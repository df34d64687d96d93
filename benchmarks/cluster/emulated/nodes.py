"""Several nodes of one machine that run the queries of one partitioned model on emulated devices."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from benchmarks.cluster.emulated.devices import EmulatedModel, write_model
from benchmarks.cluster.emulated.runs import history_of, warm
from benchmarks.cluster.simulated.figures import Setting
from benchmarks.cluster.simulated.inputs import MAX_LENGTHS, ClusterData
from benchmarks.report import progress
from tidal.arlo.scheduling import (
    ClusterNode,
    RuntimeProfile,
    assign_nodes,
    demand_by_runtime,
    plan_cluster,
    preferred_nodes,
)
from tidal.repository.cluster_table import ClusterTable, RemoteNode, write_cluster_table
from tidal.server.child import RunningServer, tidal_serve

#: Instances by runtime of each node.
Instances = Mapping[str, tuple[int, ...]]
_TABLE_READ_S = 1.0


def plan_nodes(data: ClusterData, setting: Setting, devices: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """Return the instances by runtime of each node, as the controller plans them.

    Args:
        data: Arrivals and lengths.
        setting: Model, objective and rate.
        devices: Number of devices of each node.
    """
    stream, history = setting.stream, history_of(data, setting)
    profiles = [RuntimeProfile.from_service(each, stream.slo_s, 120.0) for each in stream.times.static_s]
    demand = demand_by_runtime(history.by_length, MAX_LENGTHS, observed_s=history.seconds, slo_s=stream.slo_s)
    none = (0,) * len(MAX_LENGTHS)
    nodes = [ClusterNode(name, number, none, none) for name, number in devices.items()]
    return dict(zip(devices, plan_cluster(nodes, profiles, demand, 0.0).after, strict=True))


@contextmanager
def serving_nodes(
    source: Path,
    model: EmulatedModel,
    instances: Instances,
    add: Callable[[Path, EmulatedModel], None] = lambda _repository, _model: None,
) -> Iterator[dict[str, RunningServer]]:
    """Serve a model on several nodes until the block ends.

    Args:
        source: Repository with the built model.
        model: The model; each node has its own instances.
        instances: Those instances.
        add: Adds further models to the repository of a node.
    """
    with tempfile.TemporaryDirectory(prefix="tidal-bench-") as folder, ExitStack() as stack:
        servers = {}
        for name, counts in instances.items():
            repository = Path(folder) / name
            repository.mkdir()
            own = replace(model, instances=counts)
            write_model(source, repository, own)
            add(repository, own)
            progress(f"starting node {name}")
            servers[name] = stack.enter_context(tidal_serve(repository, "--exit-timeout", "3"))
            warm(servers[name].grpc, model.name)
        yield servers


def write_tables(servers: Mapping[str, RunningServer], model: str, instances: Instances, entrances: int) -> None:
    """Write what the controller writes when queries arrive at the first nodes, and wait until it is read.

    Args:
        servers: Servers of the nodes.
        model: Name of the model.
        instances: Instances by runtime of each node.
        entrances: Number of nodes at which queries arrive.
    """
    names: Sequence[str] = list(servers)
    assigned = assign_nodes(instances, dict.fromkeys(names[:entrances], 1.0))
    for name, server in servers.items():
        ranks = {other: rank for rank, other in enumerate(preferred_nodes(name, assigned, names))}
        nodes = {
            other: RemoteNode(
                grpc=servers[other].state.grpc,
                http=servers[other].state.http,
                instances=dict(zip(MAX_LENGTHS, instances[other], strict=True)),
                rank=rank,
                assigned=other in assigned.get(name, ()),
                tls=None,
            )
            for other, rank in ranks.items()
        }
        write_cluster_table(server.state.repository / model, ClusterTable(nodes=nodes, share=1 / entrances))
    time.sleep(_TABLE_READ_S)
