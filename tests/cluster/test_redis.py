"""A head with its state in a real Redis: after it is lost and started again, nodes and their agents are still there."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from testing.serving import tidal_in_process
from testing.waiting import until
from tests.cluster.made_up import MODEL, FileServer
from tidal.cluster import ray_node
from tidal.cluster.connection import LOOPBACK, call_controller, connected, environment
from tidal.cluster.redis import check_redis, forget_head, redis_variables
from tidal.controller.decisions import PlanSettings
from tidal.errors import InvalidArgument, Unavailable
from tidal.server.endpoints import choose_port

REDIS = shutil.which("redis-server")
needs_redis = pytest.mark.skipif(REDIS is None, reason="needs Debian's redis-server")
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the extra ray")


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[str]:
    assert REDIS is not None
    port = choose_port(LOOPBACK)
    options = ["--port", str(port), "--bind", LOOPBACK, "--save", "", "--dir", str(tmp_path)]
    process = subprocess.Popen([REDIS, *options], stdout=subprocess.DEVNULL)
    try:
        yield f"{LOOPBACK}:{port}"
    finally:
        process.terminate()
        process.wait()


@needs_ray
@needs_redis
@pytest.mark.slow
def test_a_lost_head_continues_with_its_nodes(tmp_path: Path, redis: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    for name in environment(Path("token")):
        monkeypatch.setenv(name, "")  # `connected` sets them
    token, port = ray_node.new_token(), choose_port(LOOPBACK)
    address, settings = f"{LOOPBACK}:{port}", PlanSettings(period_s=3600)
    started = [ray_node.start_head(LOOPBACK, port, token, redis)]
    try:
        ray_node.wait_for_head(started[0], address)
        started.append(ray_node.start_node(address, LOOPBACK, token, {}))
        with connected(address, LOOPBACK, token) as ray:
            server, node_id = FileServer.create(tmp_path / "a"), ray_node.wait_for_node(ray, started[1])
            ray_node.start_agent(ray, node_id, server, "a", tmp_path / "a.json", tmp_path / "a-servers.json")
            ray_node.start_controller(ray, started[0], settings)
            assert until(lambda: plan_state() == "done")
            before = call_controller("status")
        kill_session(started[0].process.pid)
        started[0].process.wait()
        shutil.rmtree(started[0].folder)
        started[0] = ray_node.start_head(LOOPBACK, port, token, redis)
        ray_node.wait_for_head(started[0], address)
        with connected(address, LOOPBACK, token) as ray:
            ray_node.start_controller(ray, started[0], settings)
            assert until(lambda: plan_state() == "done")
            after = call_controller("status")
        assert after["controller"]["pid"] != before["controller"]["pid"]
        same = ("node", "state", "agent", "grpc")
        assert [{key: row[key] for key in same} for row in after["nodes"]] == [
            {key: row[key] for key in same} for row in before["nodes"]
        ]
        assert after["plans"] == before["plans"]
    finally:
        for each in reversed(started):
            each.started.end(5)
            each.process.wait()
            shutil.rmtree(each.folder, ignore_errors=True)
    assert keys(redis)
    forget_head(redis, address)
    assert not keys(redis)


def plan_state() -> str | None:
    try:
        state: dict[str, Any] = call_controller("status")
    except Unavailable:
        return None
    return str(state["plans"].get(MODEL, {}).get("state"))


def kill_session(leader: int) -> None:
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == leader:
                process.send_signal(signal.SIGKILL)
        except (OSError, psutil.NoSuchProcess):
            continue


def keys(redis: str) -> list[str]:
    client = shutil.which("redis-cli")
    assert client is not None
    found = subprocess.run(
        [client, "-p", redis.rpartition(":")[2], "keys", "*"], capture_output=True, text=True, check=True
    )
    return found.stdout.split()


def test_clusters_of_one_redis_are_apart() -> None:
    one, other = (redis_variables("10.0.0.5:6379", f"10.0.0.1:{port}") for port in (6379, 6380))
    assert one["RAY_REDIS_ADDRESS"] == other["RAY_REDIS_ADDRESS"] == "10.0.0.5:6379"
    assert one["RAY_external_storage_namespace"] != other["RAY_external_storage_namespace"]


@pytest.mark.parametrize(
    ("address", "port", "kept", "message"),
    [
        ("redis", 6379, True, r"--redis: 'redis' is not an address; expected host:port"),
        ("10.0.0.5:6379", 0, True, r"--redis needs a fixed --port"),
        ("10.0.0.5:6379", 6379, False, r"--redis needs --token-file: .* `openssl rand -hex 32`"),
    ],
)
def test_a_head_that_could_not_continue_is_refused(address: str, port: int, kept: bool, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        check_redis(address, port, kept_secret=kept)
    check_redis("10.0.0.5:6379", 6379, kept_secret=True)


@needs_ray
def test_an_absent_redis_is_named(tmp_path: Path) -> None:
    address = f"{LOOPBACK}:{choose_port(LOOPBACK)}"
    (tmp_path / "run").mkdir(mode=0o700)
    (tmp_path / "token").write_text("secret")
    options = ["--redis", address, "--token-file", str(tmp_path / "token"), "--port", str(choose_port(LOOPBACK))]
    there = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path / "run")}
    outcome = tidal_in_process("cluster", "start", *options, environment=there)
    assert outcome.returncode == 1
    assert f"no Redis answers at {address}" in outcome.stderr
    outcome = tidal_in_process("cluster", "start", "--redis", address, environment=there)
    assert outcome.returncode == 2
    assert "--redis needs --token-file" in outcome.stderr
