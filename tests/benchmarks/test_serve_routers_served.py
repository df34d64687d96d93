"""Dispatchers on two real servers with emulated devices, and Ray Serve on two nodes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.closed_loop import batches
from benchmarks.cluster.emulated.devices import EmulatedModel, prepare, write_latencies
from benchmarks.cluster.emulated.nodes import serving_nodes, write_tables
from benchmarks.cluster.serve_routers import __main__ as benchmark
from benchmarks.cluster.serve_routers.loads import Load, Loads
from benchmarks.cluster.serve_routers.ray_serve import ROUTED, Form, Ingress, ray_nodes
from benchmarks.cluster.serve_routers.systems import RaySystem, TidalFront
from benchmarks.cluster.simulated.inputs import BASE, MAX_LENGTHS, ClusterData
from benchmarks.environments import SERVERS, why_not
from tidal.repository.names import runtime_model

pytestmark = [pytest.mark.server, pytest.mark.slow]
SHORT = Load([20] * 40, 1.0, np.arange(40) / 100)


def test_round_robin_uses_all_instances_of_all_nodes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TIDAL_CACHE", str(tmp_path))
    one_each = (1, 0, 0, 0, 0, 0, 0, 1)
    instances = {"a": one_each, "b": one_each}
    model = EmulatedModel(benchmark.MODEL, BASE, 1.0, ())
    with serving_nodes(prepare(), model, instances, benchmark._add_dispatchers) as servers:
        write_tables(servers, model.name, instances, 2)
        a, b = servers.values()

        def executed() -> list[int]:
            names = [runtime_model(model.name, MAX_LENGTHS[at]) for at in (0, -1)]
            return [int(batches(server, name)[1]) for server in (a, b) for name in names]

        before = executed()
        found = TidalFront("round_robin", [a], model.name).send(SHORT)
        assert (found.failed, len(found.latencies_ms)) == (0, 40), found.error
        assert [after - each for after, each in zip(executed(), before, strict=True)] == [10] * 4
        for server in servers.values():  # devices that run read it
            write_latencies(server.state.repository, EmulatedModel(model.name, BASE, 100.0, ()))
        slow = TidalFront("least_outstanding", [a, b], model.name).send(Load([20] * 2, 1.0, np.zeros(2)))
        assert (slow.failed, len(slow.latencies_ms)) == (0, 2), slow.error
        assert min(slow.latencies_ms) >= 1e5 * BASE.times.static_s[0]


@pytest.mark.skipif(bool(why_not(SERVERS)), reason="make peers has not installed Ray Serve")
def test_every_node_of_ray_serve_answers_by_every_ingress() -> None:
    loads = Loads(ClusterData(None))
    with ray_nodes(ROUTED[0], [1, 1], benchmark._by_length(1.0)) as nodes:
        for form in (Form(), Form(Ingress.GRPC, max_ongoing=2), Form(Ingress.HANDLE, threaded=True)):
            system = RaySystem(nodes, form)
            system.prepare()
            found = system.send(SHORT)
            assert (found.failed, len(found.latencies_ms)) == (0, 40), found.error
            closed = system.send(loads.closed(in_flight=4, seconds=0.5, warm_s=0.1, seed=0))
            assert (closed.failed, len(closed.latencies_ms) > 4) == (0, True), closed.error
        nodes.set_seconds(benchmark._by_length(100.0))
        slow = RaySystem(nodes, Form(threaded=True)).send(Load([20] * 2, 1.0, np.zeros(2)))
        assert min(slow.latencies_ms) >= 1e5 * BASE.times.static_s[0]
