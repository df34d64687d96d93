"""Builds on the nodes of a cluster: which node builds what, and a real build as a task of Ray, into a real store."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from testing.serving import tidal_in_process
from tests.cluster.made_up import FileServer
from tests.cluster.one_node import ray_of_one_node
from tidal import device
from tidal.cluster import ray_node
from tidal.cluster.builds import BuildLine, ClassBuild, NodeDevice, device_slug, plan_builds, run_builds
from tidal.cluster.handles import RayAgents
from tidal.errors import InvalidArgument
from tidal.version_store.store import open_store

AMD, INTEL = "AMD EPYC (avx2)", "Intel Xeon (avx512f, amx_tile)"
NODES = {"a": NodeDevice("1", AMD), "b": NodeDevice("2", INTEL), "c": NodeDevice("3", AMD)}
Run = Callable[..., Any]
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the extra ray")


class TestPlan:
    def test_one_node_of_each_class_builds_into_its_store(self) -> None:
        assert plan_builds(NODES, "s3://models/{device}") == [
            ClassBuild(AMD, "a", "1", "s3://models/amd-epyc-avx2", ("a", "c")),
            ClassBuild(INTEL, "b", "2", "s3://models/intel-xeon-avx512f-amx-tile", ("b",)),
        ]

    def test_nodes_can_be_named(self) -> None:
        (only,) = plan_builds(NODES, "store", ["c"])
        assert (only.node, only.nodes, only.store) == ("c", ("a", "c"), "store")
        assert [each.node for each in plan_builds(NODES, "{device}", ["c", "b"])] == ["c", "b"]

    @pytest.mark.parametrize(
        ("only", "message"),
        [
            ((), r"--to store: the nodes have 2 classes of devices, .* add \{device\} to the URI"),
            (("z",), "--node z: the cluster's nodes are a, b, c"),
        ],
    )
    def test_bad_input(self, only: tuple[str, ...], message: str) -> None:
        with pytest.raises(InvalidArgument, match=message):
            plan_builds(NODES, "store", only)

    def test_a_slug_is_a_part_of_a_path(self) -> None:
        assert device_slug("NVIDIA H200 (compute capability 9.0)") == "nvidia-h200-compute-capability-9-0"


@pytest.fixture(scope="module")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A Ray of one node with the agent of a made-up server."""
    folder = tmp_path_factory.mktemp("builds")
    with ray_of_one_node(folder) as (module, _, node_id):
        server = FileServer.create(folder / "a")
        ray_node.start_agent(module, node_id, server, "a", folder / "a.json", folder / "servers.json")
        yield module


@pytest.fixture
def spec(source: Path, tmp_path: Path) -> Path:
    file = tmp_path / "spec.yaml"
    fields = {"kind": "arlo", "name": "tiny", "model": str(source), "lengths": [16], "form": "static", "threads": 1}
    file.write_text(yaml.safe_dump(fields))
    return file


@needs_ray
@pytest.mark.slow
def test_a_build_is_published_once(ray: Any, spec: Path, tmp_path: Path) -> None:
    devices: Any = RayAgents().call({"a": ("device",)}, 30)
    assert devices["a"].device == str(device.cpu())
    builds = plan_builds(devices, f"{tmp_path}/store/{{device}}")
    for state in ("published", "published before"):
        *lines, last = run_builds(ray, builds, [str(spec)], ["tiny"])
        assert not last.failed, last.text
        assert last.models is not None
        assert [(each["model"], each["version"], each["state"]) for each in last.models] == [("tiny", 1, state)]
        assert any("verify" in line.text for line in lines) == (state == "published")
    assert open_store(builds[0].store).versions("tiny") == [1]


class TestCommand:
    @pytest.fixture
    def run(self, ray: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
        """Run the command in the fixture's cluster."""
        here = SimpleNamespace(address="", host="", token=None)
        monkeypatch.setattr("tidal.commands.cluster_build.this_cluster", lambda: here)
        monkeypatch.setattr("tidal.commands.cluster_build.connected", lambda *_: nullcontext(ray))
        monkeypatch.setattr("tidal.commands.cluster_build.run_builds", made_up_builds)
        return lambda *words: tidal_in_process("cluster", "build", *words, environment=dict(os.environ))

    @needs_ray
    @pytest.mark.slow
    def test_progress_and_results(self, run: Run, spec: Path, tmp_path: Path) -> None:
        outcome = run(str(spec), "--to", f"{tmp_path}/{{device}}")
        assert outcome.returncode == 0, outcome.stderr
        assert "a: verify fp32" in outcome.stderr
        assert "tiny:3 published" in outcome.stdout
        assert str(device.cpu()) in outcome.stdout
        (row,) = json.loads(run(str(spec), "--to", f"{tmp_path}/{{device}}", "--json").stdout)
        assert (row["node"], row["nodes"], row["error"]) == ("a", ["a"], None)
        assert row["store"] == f"{tmp_path}/{device_slug(str(device.cpu()))}"

    @needs_ray
    @pytest.mark.slow
    def test_a_failure_is_an_exit_code(self, run: Run, tmp_path: Path) -> None:
        spec = tmp_path / "bad.yaml"
        spec.write_text("name: bad")
        outcome = run(str(spec), "--to", str(tmp_path / "store"))
        assert (outcome.returncode, "1 of 1 builds failed: a: out of disk" in outcome.stderr) == (1, True)

    @needs_ray
    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("content", "words", "message"),
        [
            ("name: x", ["--to", "ftp://h/p"], "ftp"),
            ("kind: arlo", ["--to", "store"], "field 'name' is missing"),
            ("[", ["--to", "store"], "cannot be read"),
            ("name: x", ["--to", "store", "--node", "z"], "--node z: the cluster's nodes are a"),
        ],
    )
    def test_bad_input(self, run: Run, tmp_path: Path, content: str, words: list[str], message: str) -> None:
        spec = tmp_path / "x.yaml"
        spec.write_text(content)
        outcome = run(str(spec), *words)
        assert (outcome.returncode, message in outcome.stderr) == (2, True), outcome.stderr


def made_up_builds(_: Any, builds: list[ClassBuild], specs: list[str], names: list[str]) -> Iterator[BuildLine]:
    """A build of one model that succeeds unless it is called `bad`."""
    (build,) = builds
    yield BuildLine(build, "verify fp32")
    if names == ["bad"]:
        yield BuildLine(build, "out of disk", failed=True)
    else:
        yield BuildLine(build, "done", models=[{"model": names[0], "version": 3, "state": "published"}])


@needs_ray
@pytest.mark.slow
def test_a_failed_build_says_why(ray: Any, tmp_path: Path) -> None:
    devices: Any = RayAgents().call({"a": ("device",)}, 30)
    builds = plan_builds(devices, str(tmp_path / "store"))
    *_, last = run_builds(ray, builds, [str(tmp_path / "none.yaml")], ["none"])
    assert last.failed
    assert last.text.startswith(f"{tmp_path}/none.yaml is not on this node: put specs and models into a folder")
    spec = tmp_path / "spec.yaml"
    spec.write_text(yaml.safe_dump({"kind": "arlo", "name": "tiny", "model": str(tmp_path / "no-model")}))
    *_, last = run_builds(ray, builds, [str(spec)], ["tiny"])
    assert last.failed
    assert "build" in last.text
    assert "no-model" in last.text
