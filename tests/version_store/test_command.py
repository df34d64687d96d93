"""`tidal cluster` as users call it, and a new version that reaches a running server without a failed request."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from testing.pets import tiny_base
from testing.serving import TIDAL, environment_in, serving, tidal_in_process
from testing.waiting import until
from tests.core.manifests import publish_front
from tests.serve.partitioned import publish_partitioned
from tests.serve.partitioned_server import load_on, loaded, versions
from tests.version_store.support import add_plain, contents
from tidal import device
from tidal.tasks.folder import remove_task, tasks_folder
from tidal_client import Client, InvalidArgument
from tidal_client.extras import install_command


def tidal(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    return tidal_in_process("cluster", *map(str, arguments), environment=environment_in(folder / "environment"))


def data(folder: Path, *arguments: object) -> Any:
    done = tidal(folder, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    return json.loads(done.stdout)


def test_publish_versions_and_fetch(tmp_path: Path) -> None:
    publish_partitioned(tmp_path / "a", "m", [16])
    add_plain(tmp_path / "a", "p", 1)
    add_plain(tmp_path / "a", "p", 2)
    store = f"file://{tmp_path}/store"
    published = data(tmp_path, "publish", "m", "p", "p:1", "--to", store, "--repository", tmp_path / "a")
    assert [(each["model"], each["version"], each["state"]) for each in published] == [
        ("m_len16", 1, "published"), ("m", 1, "published"), ("p", 2, "published"), ("p", 1, "published"),
    ]  # fmt: skip
    listed = data(tmp_path, "versions", store)
    assert [(each["model"], each["version"], each["kind"], each["state"]) for each in listed] == [
        ("m", 1, "arlo", "fits"), ("m_len16", 1, "engine", "fits"), ("p", 1, None, "fits"), ("p", 2, None, "fits"),
    ]  # fmt: skip
    assert listed[0]["requires"] == ["m_len16:1"]
    assert listed[0]["device"] == json.loads(device.cpu().model_dump_json())
    fetched = data(tmp_path, "fetch", store, "p:1", "--repository", tmp_path / "b")
    assert [(each["model"], each["version"], each["state"]) for each in fetched] == [("p", 1, "fetched")]
    text = tidal(tmp_path, "fetch", tmp_path / "store", "--repository", tmp_path / "b")  # a path, and all models
    assert (text.returncode, text.stderr) == (0, "")
    assert [line.partition(",")[0] for line in text.stdout.splitlines()] == [
        "m_len16: version 1 fetched", "m: version 1 fetched", "p: version 2 fetched",
    ]  # fmt: skip
    assert contents(tmp_path / "b") == contents(tmp_path / "a")


def test_failures_and_their_exit_codes(tmp_path: Path) -> None:
    add_plain(tmp_path / "a", "p")
    publish_front(tmp_path / "a", "m", 1, [16], device={**device.cpu().model_dump(), "name": "Other 9"})
    store = f"file://{tmp_path}/store"
    for refused in (
        tidal(tmp_path, "publish", "p", "--to", "s4://x", "--repository", tmp_path / "a"),
        tidal(tmp_path, "publish", "p:x", "--to", store, "--repository", tmp_path / "a"),
        tidal(tmp_path, "publish", "--to", store),
        tidal(tmp_path, "fetch", store, "--server", "8000"),
    ):
        assert refused.returncode == 2
    missing = tidal(tmp_path, "publish", "q", "--to", store, "--repository", tmp_path / "a")
    assert (missing.returncode, missing.stderr.count("\n")) == (1, 1)
    assert tidal(tmp_path, "fetch", store, "--repository", tmp_path / "b").stderr == f"error: {store} has no models\n"
    data(tmp_path, "publish", "p", "m", "--to", store, "--repository", tmp_path / "a")
    # The other models are fetched.
    some = tidal(tmp_path, "fetch", store, "--repository", tmp_path / "b")
    assert (some.returncode, some.stdout.partition(",")[0]) == (1, "p: version 1 fetched")
    assert "version 1 of model 'm' was built for another machine: device.name is 'Other 9'" in some.stderr
    states = {each["model"]: each["state"] for each in data(tmp_path, "versions", store)}
    assert states["p"] == "fits"
    assert states["m"].startswith("device.name is 'Other 9'")
    assert tidal(tmp_path, "versions", store, "q").returncode == 1
    (tmp_path / "store/models/p/1.json").write_text("{")
    damaged = tidal(tmp_path, "versions", store)
    assert damaged.returncode == 0
    assert "models/p/1.json is not the manifest of a version" in damaged.stdout


def test_without_the_extra_the_command_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    missing = tidal(tmp_path, "versions", tmp_path)
    assert missing.returncode == 2
    assert missing.stderr == (
        f"tidal cluster requires the Python module 'fsspec', which is not installed: {install_command('cluster')}\n"
    )


@pytest.mark.server
def test_a_published_version_reaches_a_running_server_without_a_failed_request(tmp_path: Path) -> None:
    """`fetch --watch --reload` beside the server, from a repository that another machine publishes from."""
    store, built, served = f"file://{tmp_path}/store", tmp_path / "built", tmp_path / "served"
    publish_partitioned(built, "m", [16])
    data(tmp_path, "publish", "m", "--to", store, "--repository", built)
    data(tmp_path, "fetch", store, "--repository", served)
    with serving(served, tmp_path / "run") as server:
        watching = subprocess.Popen(
            [*TIDAL, "cluster", "fetch", store, "--repository", str(served), "--watch", "1", "--reload"],
            env=server.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            with load_on(server) as load:
                assert load.grown_by(20)
                publish_partitioned(built, "m", [16], version=2)
                data(tmp_path, "publish", "m", "--to", store, "--repository", built)
                assert until(lambda: versions(server) == {"m": [2], "m_len16": [2]})
                assert load.grown_by(20)
            assert load.failures == []
            assert {version for _, version in load.answers} == {1, 2}
            assert loaded(server) == {"m_len16": (2, 1)}
            # What a build generates followed; the working folder is gone, and nothing but models is in the repository.
            for path in ("m_len16/config.pbtxt", "m/2", "m_len16/2"):
                assert (served / path).exists()
            assert until(lambda: sorted(os.listdir(served)) == ["m", "m_len16"])
        finally:
            watching.send_signal(signal.SIGTERM)
            out, err = watching.communicate(timeout=60)
        assert (watching.returncode, err) == (0, "")
        assert "m: version 2 fetched" in out
        assert "m: version 2 serves now, version 1 before" in out


@pytest.mark.server
def test_tasks_of_a_shared_encoder_reach_a_running_server_without_a_reload(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """One machine adds, replaces and removes tasks and publishes; another one fetches beside its server."""
    base = tiny_base(tmp_path_factory)
    store, built, served = f"file://{tmp_path}/store", tmp_path / "built", tmp_path / "served"
    tasks = base.copy(built, "m")
    base.add(tasks, "lora", 1, "one")
    data(tmp_path, "publish", "m", "--to", store, "--repository", built)
    rows = data(tmp_path, "fetch", store, "--repository", served)
    assert [(each.get("task"), each["state"]) for each in rows] == [(None, "fetched"), ("one", "fetched")]
    with serving(served, tmp_path / "run") as server, Client(f"grpc://{server.state['grpc']}") as client:

        def error(task: str) -> str:
            try:
                client.classify("m", "a text", task=task)
            except InvalidArgument as refused:
                return str(refused)
            return ""

        assert error("one") == ""
        assert "unknown task 'two'" in error("two")
        base.add(tasks, "adapter", 2, "two")
        data(tmp_path, "publish", "m", "--to", store, "--repository", built)
        text = tidal(tmp_path, "fetch", store, "--repository", served)
        assert (text.returncode, text.stdout.splitlines()[1:]) == (
            0,
            ["m: task one here before", "m: task two fetched"],
        )
        assert until(lambda: error("two") == "")
        remove_task(tasks, "one")
        text = tidal(tmp_path, "publish", "m", "--to", store, "--repository", built, "--remove-tasks")
        assert text.stdout.splitlines()[1:] == ["m: task two published before", "m: task one removed"]
        base.add(tasks_folder(served / "m"), "bitfit", 3, "two", replace=True)  # by the operator of that machine
        kept = tidal(tmp_path, "fetch", store, "--repository", served)
        assert kept.returncode == 1
        assert kept.stderr == (
            "error: task 'two' of model 'm' was changed here and is kept: publish it, or remove it with tidal tasks "
            "remove m two\n"
        )
        assert until(lambda: "unknown task 'one'" in error("one"))
        assert error("two") == ""
