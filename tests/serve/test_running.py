"""A running `tidal serve`: endpoints, the admin key, model commands, supervision."""

from __future__ import annotations

import json
import os
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from testing.serving import Served, publish
from testing.waiting import until
from tidal.server.supervision import POLL_S

pytestmark = pytest.mark.server


def status(served: Served) -> dict[str, dict[str, object]]:
    answer = served.tidal("models", "status", "--json")
    assert answer.returncode == 0, answer.stderr
    return {row["model"]: row for row in json.loads(answer.stdout)["models"] if row["state"] == "READY"}


def restarts(served: Served) -> dict[str, int]:
    return served.state["restarts"]


def test_serves_over_http_and_grpc(served: Served) -> None:
    assert served.infer(seconds=0.25) == 0.25
    assert served.infer_grpc(seconds=0.25) == 0.25


def test_the_report_lists_the_served_models(served: Served) -> None:
    models = [(m["name"], m["version"], m["backend"], m["state"]) for m in served.report["models"]]
    assert models == [("echo", 1, "python", "READY"), ("spare", 1, "python", "READY")]
    assert served.report["unpublished"] == [{"name": "later", "command": "tidal build SPEC.yaml"}]
    assert "key" not in served.report


def test_state_file_is_for_its_owner_only(served: Served) -> None:
    (path,) = (served.runtime / "tidal").glob("*.json")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert served.state["pid"] == served.process.pid
    assert len(served.state["key"]) >= 24


def test_admin_over_http_needs_the_key(served: Served) -> None:
    client = served.http()
    with pytest.raises(InferenceServerException, match="restricted"):
        client.get_model_repository_index()
    with pytest.raises(InferenceServerException, match="restricted"):
        client.unload_model("echo")
    with pytest.raises(InferenceServerException, match="restricted"):
        client.get_log_settings()
    assert {row["name"] for row in client.get_model_repository_index(headers=served.admin)} >= {"echo", "spare"}


def test_admin_over_grpc_needs_the_key(served: Served) -> None:
    with tritonclient.grpc.InferenceServerClient(served.report["grpc"]) as client:
        with pytest.raises(InferenceServerException, match="restricted"):
            client.get_model_repository_index()
        headers = {"triton-grpc-protocol-tidal-admin-key": served.state["key"]}
        assert client.get_model_repository_index(headers=headers).models


def test_listens_on_loopback_only(served: Served) -> None:
    connections = psutil.Process(served.state["server_pid"]).net_connections()
    listening = {c.laddr.ip.removeprefix("::ffff:") for c in connections if c.status == psutil.CONN_LISTEN}
    assert listening == {"127.0.0.1"}


def test_models_list_shows_repository_and_server(served: Served, repository: Path) -> None:
    answer = served.tidal("models", "list", "--json")
    rows = {row["name"]: row for row in json.loads(answer.stdout)}
    assert rows["echo"]["serves"][-1] == rows["echo"]["published"][-1]
    assert (rows["later"]["state"], rows["later"]["backend"]) == ("not published", "arlo")
    without = served.tidal("models", "list", str(repository.parent))
    assert without.returncode == 0, without.stderr


def test_reload_serves_a_new_publish(served: Served, repository: Path) -> None:
    version = int(status(served)["spare"]["version"]) + 1
    publish(repository, "spare", version=version)
    answer = served.tidal("models", "reload", "spare")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout == f"spare: version {version} serves now, version {version - 1} before\n"
    again = served.tidal("models", "reload", "spare")
    assert again.stdout == f"spare: version {version} serves, as before\n"
    assert status(served)["spare"]["version"] == version


def test_reload_of_a_broken_version_keeps_the_old_one(served: Served, repository: Path) -> None:
    version = int(status(served)["spare"]["version"])
    broken = publish(repository, "spare", version=version + 1, code="import no_such_module\n")
    answer = served.tidal("models", "reload", "spare")
    assert answer.returncode == 1
    assert answer.stderr.startswith("error: model 'spare' does not load: ModuleNotFoundError: No module named 'no_such")
    assert answer.stderr.endswith(f"; version {version} keeps serving\n")
    assert served.infer("spare") == 0.0
    broken.rename(repository.parent / "broken")


def test_a_killed_stub_is_replaced(served: Served) -> None:
    before = restarts(served).get("echo", 0)
    stubs = served.stubs("echo")
    stubs[0].kill()
    killed = time.monotonic()
    assert until(lambda: restarts(served).get("echo", 0) == before + 1), (served.runtime / "stderr").read_text()
    assert len(set(served.stubs("echo")) - set(stubs)) == 2
    with ThreadPoolExecutor(4) as pool:  # concurrently, so that every instance gets one
        assert list(pool.map(lambda _: served.infer(seconds=0.2), range(4))) == pytest.approx([0.2] * 4)
    print(f"served again after {time.monotonic() - killed:.1f} s")
    assert "model 'echo' serves again" in (served.runtime / "stderr").read_text()
    assert status(served)["echo"]["restarts"] == before + 1


def test_a_second_crash_soon_after_is_repaired_too(served: Served) -> None:
    before = restarts(served).get("echo", 0)
    for stub in served.stubs("echo"):
        stub.kill()
    assert until(lambda: restarts(served).get("echo", 0) > before)
    assert until(lambda: status(served)["echo"]["instances"] == "2 of 2")
    assert [served.infer() for _ in range(4)] == [0.0] * 4


def test_supervision_leaves_changes_by_others_alone(served: Served) -> None:
    before, client, key = restarts(served), served.http(), served.admin
    config = client.get_model_config("echo")
    for count in (4, 1, 2):
        config["instance_group"][0]["count"] = count
        client.load_model("echo", headers=key, config=json.dumps(config))
    assert served.tidal("models", "unload", "spare").returncode == 0
    time.sleep(4 * POLL_S)  # four polls of the supervisor
    assert restarts(served) == before
    assert "spare" not in status(served)
    assert served.tidal("models", "reload", "spare").returncode == 1
    assert served.tidal("models", "load", "spare").returncode == 0
    assert served.infer("spare") == 0.0


def test_a_stale_state_file_is_ignored_and_removed(served: Served) -> None:
    stale = served.runtime / "tidal" / "1.json"
    stale.write_text(json.dumps({**served.state, "http": "127.0.0.1:1", "pid": os.getpid(), "pid_started": 1.0}))
    assert served.tidal("models", "status").returncode == 0
    assert not stale.exists()


def test_a_taken_port_is_refused_at_once(served: Served, repository: Path) -> None:
    port = served.report["http"].rpartition(":")[2]
    answer = served.tidal("serve", str(repository), "--http-port", port, "--grpc-port", "0", "--metrics-port", "0")
    assert answer.returncode == 1
    assert answer.stderr.startswith(f"error: http port {port} is in use by tritonserver (process ")
    assert len(answer.stderr.splitlines()) == 1
    assert answer.stdout == ""
