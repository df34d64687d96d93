"""Probes of a real server during reloads, crashes, restarts and its end."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from testing.serving import FREE_PORTS, MODEL, TIDAL, Served, environment_in, left_behind, publish, serving, tidal
from testing.waiting import until

pytestmark = pytest.mark.server

BROKEN = "import no_such_module\n"


def get(address: str, path: str) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as response:
            return response.status, json.loads(response.read() or b"{}")
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read() or b"{}")


def ready(served: Served) -> tuple[int, dict[str, Any]]:
    return get(served.report["status"], "/ready")


def becomes(served: Served, code: int) -> bool:
    return until(lambda: ready(served)[0] == code)


def spare_version(served: Served) -> int:
    """Newest version of `spare`; the state may not show yet that another test has just loaded it."""
    assert until(lambda: bool(ready(served)[1]["models"]["spare"]["versions"]))
    return int(max(ready(served)[1]["models"]["spare"]["versions"]))


def test_ready_when_all_models_serve(served: Served) -> None:
    assert becomes(served, 200)
    code, document = ready(served)
    assert (code, document["state"], document["reason"]) == (200, "serving", None)
    assert document["models"]["echo"]["wanted"] is document["models"]["echo"]["ready"] is True
    assert get(served.report["status"], "/live")[0] == 200
    assert served.state["status"] == served.report["status"]


def test_a_bad_publish_leaves_the_server_ready(served: Served, repository: Path) -> None:
    version = spare_version(served)
    broken = publish(repository, "spare", version=version + 1, code=BROKEN)
    try:
        assert served.tidal("models", "reload", "spare").returncode == 1
        assert until(lambda: ready(served)[1]["models"]["spare"]["reason"] is not None)
        code, document = ready(served)
        assert (code, document["models"]["spare"]["versions"]) == (200, [version])
        assert document["models"]["spare"]["reason"].startswith(f"version {version + 1} does not load: ModuleNotFound")
        assert get(served.report["http"], "/v2/health/ready")[0] == 200
    finally:
        broken.rename(repository.parent / "broken-too")


def test_a_reload_stays_ready(served: Served, repository: Path) -> None:
    go_on = repository.parent / "go_on"
    version = spare_version(served)
    wait = f"import pathlib, time\nwhile not pathlib.Path('{go_on}').exists():\n    time.sleep(0.05)\n"
    # Above the versions that did not load: tests of this server leave them in the server's index.
    publish(repository, "spare", version=version + 10, code=wait + MODEL.read_text())
    answers: list[int] = []
    command = ("models", "reload", "spare")
    reload = threading.Thread(target=lambda: answers.append(tidal(*command, environment=served.environment).returncode))
    reload.start()
    try:
        assert until(lambda: "LOADING" in served.tidal("models", "status").stdout)
        assert [ready(served)[0] for _ in range(5)] == [200] * 5
        assert get(served.report["http"], "/v2/health/ready")[0] == 200
    finally:
        go_on.touch()
        reload.join()
    assert answers == [0]
    assert until(lambda: ready(served)[1]["models"]["spare"]["versions"] == [version + 10])
    assert ready(served)[0] == 200


def test_an_unloaded_model_is_not_wanted(served: Served) -> None:
    assert served.tidal("models", "unload", "spare").returncode == 0
    assert until(lambda: not ready(served)[1]["models"]["spare"]["wanted"])
    assert ready(served)[0] == 200
    assert get(served.report["http"], "/v2/health/ready")[0] == 200
    assert served.tidal("models", "load", "spare").returncode == 0
    assert until(lambda: ready(served)[1]["models"]["spare"]["wanted"])
    assert ready(served)[0] == 200


def test_a_stub_that_is_restarted_is_not_ready_until_it_serves(served: Served) -> None:
    served.stubs("echo")[0].kill()
    assert becomes(served, 503)
    document = ready(served)[1]
    assert "one of its Python processes ended" in document["not_ready"]["echo"]
    assert document["models"]["spare"]["ready"] is True
    assert becomes(served, 200)
    assert served.infer() == 0.0


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server that was started with three models, one of which does not load, and an ensemble of that one."""
    folder = tmp_path_factory.mktemp("broken")
    models = folder / "models"
    publish(models, "echo")
    publish(models, "spare")
    publish(models, "broken", code=BROKEN)
    (models / "both" / "1").mkdir(parents=True)
    (models / "both" / "config.pbtxt").write_text(
        'platform: "ensemble"\n'
        'input [ { name: "SECONDS" data_type: TYPE_FP32 dims: [ 1 ] } ]\n'
        'output [ { name: "SLEPT" data_type: TYPE_FP32 dims: [ 1 ] } ]\n'
        'ensemble_scheduling { step [ { model_name: "broken" model_version: -1\n'
        '  input_map { key: "SECONDS" value: "SECONDS" } output_map { key: "SLEPT" value: "SLEPT" } } ] }\n'
    )
    with serving(models, folder, "--exit-timeout", "60") as server:
        yield server


def errors(served: Served) -> str:
    return (served.runtime / "stderr").read_text()


def test_a_start_serves_the_models_that_load_and_reports_the_others(broken: Served) -> None:
    assert [model["name"] for model in broken.report["models"]] == ["echo", "spare"]
    failed = {each["name"]: each["reason"] for each in broken.report["failed"]}
    assert set(failed) == {"broken", "both"}
    assert failed["broken"].startswith("ModuleNotFoundError: No module named 'no_such_module'")
    log = errors(broken)
    assert "loading 4 models" in log
    assert "echo: loaded after" in log
    assert "(2 of 4)" in log
    assert "model 'broken' does not load: ModuleNotFoundError" in log
    assert "; both depends on it" in log
    assert broken.infer() == broken.infer("spare") == 0.0


def test_is_ready_for_the_models_that_loaded(broken: Served) -> None:
    assert becomes(broken, 200)
    document = ready(broken)[1]
    assert document["models"]["broken"]["wanted"] is document["models"]["broken"]["ready"] is False
    assert "ModuleNotFoundError" in document["models"]["broken"]["reason"]


def test_a_model_that_did_not_load_can_be_loaded_later(broken: Served) -> None:
    model = Path(broken.report["repository"]) / "broken" / "1" / "model.py"
    model.write_text((model.parents[2] / "echo" / "1" / "model.py").read_text())
    loaded = broken.tidal("models", "load", "both")
    assert loaded.returncode == 0, loaded.stderr
    assert until(lambda: ready(broken)[1]["models"]["broken"]["wanted"])
    assert ready(broken)[0] == 200
    assert broken.infer("both") == 0.0


def test_a_hung_tritonserver_is_not_ready(broken: Served) -> None:
    server = psutil.Process(broken.state["server_pid"])
    server.suspend()
    try:
        assert becomes(broken, 503)
        assert "tritonserver has not answered for" in ready(broken)[1]["reason"]
        assert get(broken.report["status"], "/live")[0] == 200
    finally:
        server.resume()
    assert becomes(broken, 200)


def test_a_restart_of_tritonserver_shows(broken: Served) -> None:
    """Commands report the restart while it is in progress, and count it afterwards."""
    times = broken.state["server_restarts"] + 1  # more than 1 where this test is tried again
    psutil.Process(broken.state["server_pid"]).kill()
    assert becomes(broken, 503)
    assert until(lambda: ready(broken)[1]["state"] == "restarting")
    answers = {name: broken.tidal("models", *name.split()) for name in ("status", "reload echo")}
    if ready(broken)[1]["state"] == "restarting":
        for answer in answers.values():
            assert answer.returncode == 3, answer
            assert "is restarting: it ended by itself, killed by SIGKILL at " in answer.stderr
            assert len(answer.stderr.splitlines()) == 1
    assert becomes(broken, 200)
    assert ready(broken)[1]["server_restarts"] == times
    # The state file is written after the probe's answer changes.
    assert until(lambda: broken.state["server_restarts"] == times and broken.state["restarting"] is None)
    answer = broken.tidal("models", "status")
    rows = [line.split() for line in answer.stdout.splitlines()]
    assert ["echo", "1", "READY", "1", "of", "1", str(times), "-"] in rows
    assert (
        f"tritonserver was restarted {'once' if times == 1 else f'{times} times'}; it last ended: killed by SIGKILL at "
        in answer.stdout
    )
    assert "\nready\n" in answer.stdout


def test_ends_cleanly_after_a_reload_that_failed(broken: Served) -> None:
    """Triton keeps a version that failed to load again as a live model and waits for it until its exit timeout."""
    model = Path(broken.report["repository"]) / "echo" / "1" / "model.py"
    model.write_text(BROKEN)
    reload = broken.tidal("models", "reload", "echo")
    assert reload.returncode == 1
    assert reload.stderr.endswith("; version 1 keeps serving\n")
    assert ready(broken)[0] == 200
    assert broken.infer() == 0.0
    broken.process.send_signal(signal.SIGINT)
    assert broken.process.wait(50) == 0, errors(broken)
    assert "tritonserver had unloaded every model and did not end: killed it" in errors(broken)
    assert broken.left_behind() == []


def test_probes_are_answered_while_it_starts(tmp_path: Path) -> None:
    """A start without a model that loads fails, strict or not."""
    models, state = tmp_path / "models", environment_in(tmp_path)
    go_on = tmp_path / "go_on"
    wait = f"import pathlib, time\nwhile not pathlib.Path('{go_on}').exists():\n    time.sleep(0.05)\n"
    publish(models, "broken", code=wait + BROKEN)
    ports: set[int] = set()
    with (tmp_path / "stderr").open("w") as stderr:
        process = subprocess.Popen([*TIDAL, "serve", str(models), *FREE_PORTS], env=state, stderr=stderr)
    try:

        def listening() -> bool:
            found = psutil.Process(process.pid).net_connections()
            ports.update(each.laddr.port for each in found if each.status == psutil.CONN_LISTEN)
            return bool(ports)

        assert until(listening)
        address = f"127.0.0.1:{ports.pop()}"
        code, document = get(address, "/ready")
        assert (code, document["state"]) == (503, "starting")
        assert get(address, "/live")[0] == 200
        go_on.touch()
        assert process.wait(60) == 1
    finally:
        process.kill()
        process.wait()
    assert "error: model 'broken' does not load: ModuleNotFoundError" in (tmp_path / "stderr").read_text()
    assert left_behind(process.pid, tmp_path) == []
