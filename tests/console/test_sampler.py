"""The console's sampler, its frames and its files, without a server."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from tidal_client.live.recorder import Recorder
from tidal_client.live.scrape import parse
from tidal_gateway.app import create_app
from tidal_gateway.console import assets
from tidal_gateway.errors import Refusal
from tidal_gateway.keys.store import add_key, read_keys
from tidal_gateway.live import sampler as module
from tidal_gateway.live.frames import frame, visible
from tidal_gateway.live.sampler import Sampler, pause_s
from tidal_gateway.live.sources import ServerReport
from tidal_gateway.settings import GatewaySettings
from tidal_gateway.upstream.models import ModelFacts, model_facts

READY = {"ready": True, "wanted": True, "versions": [1], "reason": None}
REPORT = {
    "models": {
        "encoder": READY,
        "broken": {"ready": False, "wanted": True, "versions": [], "reason": "no file /srv/secret"},
        "encoder_len64": READY,
    },
    "server_restarts": 0,
    "restarts": {"encoder": 2},
    "restarting": [],
}
CATALOG = {
    "metrics_port": 1,
    "models": {
        "encoder": {"backend": "pets", "engine": "openvino", "tasks": {"city": {}, "mood": {}}},
        "broken": {"backend": "arlo", "engine": "torch", "tasks": {}},
        "encoder_len64": {"backend": "engine", "tasks": {}},
    },
}


def server_at(address: str, **models: ModelFacts) -> Any:
    """What frames read of a server that is up; a real one needs an event loop."""
    return SimpleNamespace(address=address, up=True, reason="", calls=set(), models=models)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Times of the readings."""
    found: list[float] = []

    async def read(servers: Any) -> list[ServerReport]:
        found.append(asyncio.get_running_loop().time())
        if len(found) == 2:
            raise RuntimeError("one reading that fails")
        return [ServerReport("a:1", parse("", len(found)), REPORT, CATALOG)]

    monkeypatch.setattr(module, "read_servers", read)
    return found


class TestSampler:
    def test_viewers_share_readings_and_nothing_is_read_without_one(self, reads: list[float]) -> None:
        async def run() -> None:
            sampler = Sampler([], 2, interval_s=0.01)
            await asyncio.sleep(0.05)
            assert not reads
            async with sampler.viewer(), sampler.viewer():
                numbers, seen = [], 0
                while len(numbers) < 4:
                    found = await sampler.newer(seen, 5)
                    assert found is not None
                    seen = found["number"]
                    numbers.append(seen)
                assert numbers == [1, 2, 3, 4]
                assert len(reads) - len(sampler.history) in (1, 2)  # one failed, one may go on
                with pytest.raises(Refusal, match="2 viewers") as refused:
                    async with sampler.viewer():
                        pass
                assert refused.value.status == 429
            count = len(reads)
            await asyncio.sleep(0.05)
            assert len(reads) == count
            async with sampler.viewer():  # who looks again does not see what is old
                assert not sampler.history
                assert await sampler.newer(0, 5) is not None

        asyncio.run(run())

    def test_there_may_be_no_newer_frame_in_time(self, reads: list[float]) -> None:
        async def run() -> None:
            sampler = Sampler([], 2, interval_s=60)
            async with sampler.viewer():
                found = await sampler.newer(0, 5)
                assert found is not None
                assert await sampler.newer(found["number"], 0.01) is None

        asyncio.run(run())

    def test_long_readings_are_taken_less_often(self) -> None:
        assert pause_s(took_s=0.01, cpu_s=0.01, interval_s=1.0) == pytest.approx(0.99)
        assert pause_s(took_s=0.6, cpu_s=0.5, interval_s=1.0) == pytest.approx(9.4)  # 0.5 s is 5 % of 10 s
        assert pause_s(took_s=5.0, cpu_s=0.01, interval_s=1.0) == 0.0


class TestFrames:
    @pytest.fixture
    def found(self) -> dict[str, Any]:
        recorder = Recorder()
        for second in (1, 2):
            series = f'tidal_pets_requests_total{{model="encoder",version="1",code="OK"}} {second * 3}'
            text = f"# TYPE tidal_pets_requests_total counter\n{series}\n"
            recorder.add("10.0.0.1:8001", parse(text, second))
        server = server_at("10.0.0.1:8001")
        return frame(recorder, [ServerReport(server.address, parse("", 2.0), REPORT, CATALOG)], [server])

    def test_models_with_state_and_figures(self, found: dict[str, Any]) -> None:
        broken, encoder = found["models"]  # runtimes of a model are no models of clients
        assert (broken["name"], broken["state"], broken["reason"]) == ("broken", "not ready", "no file /srv/secret")
        assert (encoder["state"], encoder["engine"], encoder["restarts"]) == ("ready", "openvino", 2)
        assert encoder["values"]["throughput"] == {"OK": 3.0}
        assert encoder["summary"]["per_second"] == 3.0
        assert found["servers"][0]["name"] == "10.0.0.1:8001"

    def test_a_key_sees_its_models_and_tasks_only(self, found: dict[str, Any], tmp_path: Path) -> None:
        add_key(tmp_path / "keys.json", "some", models=("encoder/city",))
        (key,) = read_keys(tmp_path / "keys.json").keys
        (encoder,) = visible(found, key.allows, restricted=True)["models"]
        assert (encoder["name"], encoder["tasks"], encoder["task_count"]) == ("encoder", ["city"], 1)

    def test_a_restricted_key_sees_no_addresses_and_reasons(self, found: dict[str, Any]) -> None:
        shown = str(visible(found, lambda model, task: True, restricted=True))
        assert "10.0.0.1" not in shown
        assert "secret" not in shown
        assert visible(found, lambda model, task: True, restricted=False) == found

    def test_a_model_of_a_server_without_tidal_serve(self) -> None:
        class Config:
            backend, max_batch_size, parameters = "python", 8, {}  # type: ignore[var-annotated]
            model_transaction_policy = type("Policy", (), {"decoupled": False})

        metadata = type("Metadata", (), {"name": "echo", "inputs": [], "outputs": []})
        server = server_at("a:1", echo=model_facts(metadata, Config, ("3",)))
        (model,) = frame(Recorder(), [ServerReport("a:1", reason="not known")], [server])["models"]
        assert (model["state"], model["versions"], model["restarts"], model["values"]) == ("ready", ["3"], 0, {})


class TestFiles:
    def test_nothing_is_loaded_from_elsewhere(self) -> None:
        for name, each in assets().items():
            text = each.content.decode()
            assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", text), name
            assert "style=" not in text, name
            assert not re.search(r"\son[a-z]+=", text) or name.endswith(".js"), name
        page = assets()["index.html"].content.decode()
        assert "<style" not in page
        assert not re.search(r"<script(?![^>]* src=)", page)

    def test_every_file_that_is_named_is_served_with_its_policy(self) -> None:
        async def run() -> None:
            app = create_app(GatewaySettings(server=("127.0.0.1:1",)))
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
                page = await client.get("/")
                policy = page.headers["content-security-policy"]
                assert "unsafe" not in policy
                assert "default-src 'none'" in policy
                names = set(re.findall(r'(?:href|src)="(/console/[^"]+)"', page.text))
                modules = {f"/console/{each}" for name in assets() for each in re.findall(
                    r'from "\./([^"]+)"', assets()[name].content.decode())}  # fmt: skip
                for name in names | modules:
                    found = await client.get(name)
                    assert found.status_code == 200, name
                    assert found.headers["content-security-policy"] == policy
                    again = await client.get(name, headers={"if-none-match": found.headers["etag"]})
                    assert (again.status_code, again.content) == (304, b"")
                assert len(names | modules) == len(assets()) - 1  # all but the page itself
                missing = await client.get("/console/nothing.js")
                assert (missing.status_code, "open / instead" in missing.text) == (404, True)

        asyncio.run(run())

    def test_the_console_can_be_off(self) -> None:
        async def run() -> None:
            app = create_app(GatewaySettings(server=("127.0.0.1:1",), console_viewers=0))
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
                for path in ("/", "/console/main.js", "/console/api/events"):
                    answer = await client.get(path)
                    assert (answer.status_code, "console_viewers is 0" in answer.text) == (404, True)

        asyncio.run(run())
