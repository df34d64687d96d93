"""Servers that a file lists, while it changes."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY

from tests.gateway.scene import Scene, eventually, runs
from tidal.errors import InvalidArgument
from tidal_gateway.edge.metrics import PoolMetrics
from tidal_gateway.settings import GatewaySettings, read_settings
from tidal_gateway.upstream import server_file
from tidal_gateway.upstream.server_file import follow, read_server_file


def write(path: Path, *servers: str) -> None:
    """Replace the file as a writer does that never leaves a part of it."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"servers": servers}))
    new.replace(path)


def listed(scene: Scene, *numbers: int) -> list[tuple[str, str | None]]:
    return [(f"127.0.0.1:{scene.ports[number]}", None) for number in numbers]


@runs
async def test_a_new_server_gets_requests_and_one_that_is_left_out_gets_none() -> None:
    async with Scene(3) as scene:
        await scene.pool.replace(listed(scene, 0))
        assert [await scene.infer() for _ in range(4)] == ["s0"] * 4
        await scene.pool.replace(listed(scene, 1, 2))
        assert sorted([await scene.infer() for _ in range(6)]) == ["s1"] * 3 + ["s2"] * 3


@runs
async def test_a_new_server_has_been_checked_when_it_is_used() -> None:
    async with Scene(2) as scene:
        await scene.pool.replace(listed(scene, 0))
        await scene.pool.replace(listed(scene, 1))
        assert await scene.infer() == "s1"


@runs
async def test_a_server_that_is_left_out_completes_its_requests() -> None:
    async with Scene(2) as scene:
        answer = asyncio.Event()
        await scene.pool.replace(listed(scene, 0))
        (old,) = scene.pool.servers
        scene.servicers[0].script = [answer]
        asked = asyncio.create_task(scene.infer())
        await eventually(lambda: scene.sent()[0] == 1)
        await scene.pool.replace(listed(scene, 1))
        assert await scene.infer() == "s1"
        assert len(old.calls) == 1
        answer.set()
        assert await asked == "s0"


@runs
async def test_a_request_whose_process_dies_at_a_server_that_is_left_out_is_sent_to_another() -> None:
    async with Scene(2) as scene:
        dies = asyncio.Event()

        await scene.pool.replace(listed(scene, 0))
        scene.servicers[0].script = [dies]
        asked = asyncio.create_task(scene.infer())
        await eventually(lambda: scene.sent()[0] == 1)
        await scene.pool.replace(listed(scene, 1))
        await scene.stop_server(0)
        assert await asked == "s1"


@runs
async def test_a_server_with_the_same_address_keeps_its_state() -> None:
    async with Scene(2) as scene:
        before = list(scene.pool.servers)
        await scene.pool.replace([*listed(scene, 1), *listed(scene, 0)])
        assert scene.pool.servers == before[::-1]


@runs
async def test_metrics_of_a_server_that_is_left_out() -> None:
    async with Scene(2) as scene:
        published = PoolMetrics(scene.pool)
        published.publish()
        first, second = (address for address, _ in listed(scene, 0, 1))

        def up(address: str) -> float | None:
            return REGISTRY.get_sample_value("tidal_gateway_server_up", {"server": address})

        assert (up(first), up(second)) == (1, 1)
        await scene.pool.replace(listed(scene, 1))
        published.publish()
        assert math.isnan(up(first) or 0)
        assert up(second) == 1


def test_changes_are_passed_on_and_errors_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server_file, "_RECHECK_S", 0.01)
    path, found = tmp_path / "servers.json", list[Any]()
    write(path, "a:1", "b:2,status=b:3")

    @runs
    async def scenario() -> None:
        async def use(servers: Any) -> None:
            found.append(servers)

        task = asyncio.create_task(follow(path, use))
        try:
            await eventually(lambda: found == [[("a:1", None), ("b:2", "b:3")]])
            with caplog.at_level(logging.ERROR, "tidal_gateway"):
                for content in ("{", '{"servers": []}', '{"servers": ["nonsense"]}'):
                    caplog.clear()
                    path.write_text(content)
                    await eventually(lambda: "previous servers stay in use" in caplog.text)
                path.unlink()
                await eventually(lambda: "cannot be read" in caplog.text)
            assert len(found) == 1
            write(path, "c:4")
            await eventually(lambda: len(found) == 2)
            assert found[1] == [("c:4", None)]
        finally:
            task.cancel()

    scenario()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "is not a file of servers"),
        ('{"servers": []}', "servers: "),
        ('{"servers": ["a"]}', "servers: server 'a': expected HOST:PORT"),
        ('{"servers": ["a:1", "a:1"]}', "servers: server a:1 is listed twice"),
        ('{"servers": ["a:1"], "more": 1}', "more: "),
    ],
)
def test_a_file_of_another_form_is_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "servers.json"
    path.write_text(content)
    with pytest.raises(InvalidArgument, match=message):
        read_server_file(path)


def test_the_setting_excludes_named_servers_and_needs_a_file(tmp_path: Path) -> None:
    path = tmp_path / "servers.json"
    with pytest.raises(InvalidArgument, match="is not a file"):
        read_settings({"servers_file": path}, {}, None)
    write(path, "a:1")
    with pytest.raises(InvalidArgument, match="server and servers_file: expected one of them"):
        read_settings({"servers_file": path, "server": ["a:1"]}, {}, None)
    assert read_settings({}, {"TIDAL_GATEWAY_SERVERS_FILE": str(path)}, None) == GatewaySettings(servers_file=path)
