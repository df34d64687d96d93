"""A model of every backend behind the gateway of `tidal serve --gateway-port`: tasks, labels, tokens, its end."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import signal
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import psutil
import pytest
from PIL import Image

from testing.serving import Served, serving
from testing.waiting import until
from tests.every_backend.conftest import cascades, repository
from tidal_client import Client
from tidal_gateway.keys.store import add_key

__all__ = ["cascades", "repository"]

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def served(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, str]]:
    """The running server, and an API key of its gateway for all models."""
    folder = tmp_path_factory.mktemp("gateway_beside")
    key, _ = add_key(folder / "keys.json", "all")
    config = folder / "gateway.yaml"
    config.write_text(json.dumps({"keys": str(folder / "keys.json"), "access_log": str(folder / "access.jsonl")}))
    options = ("--gateway-port", "0", "--gateway-config", str(config), "--exit-timeout", "5")
    with serving(repository, folder / "runtime", *options) as found:
        with httpx.Client(base_url=found.report["gateway"]) as client:
            headers = {"Authorization": f"Bearer {key}"}
            assert until(lambda: "encoder/city" in client.get("/v1/models", headers=headers).text, 60)
        yield found, key


@pytest.fixture
def client(served: tuple[Served, str]) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {served[1]}"}
    with httpx.Client(base_url=served[0].report["gateway"], headers=headers, timeout=60) as found:
        yield found


@pytest.fixture
def direct(served: tuple[Served, str]) -> Iterator[Client]:
    with Client(f"grpc://{served[0].report['grpc']}") as found:
        yield found


def image() -> bytes:
    content = BytesIO()
    pixels = np.random.default_rng(3).integers(0, 255, (20, 20, 3), np.uint8)
    Image.fromarray(pixels).save(content, "PNG")
    return content.getvalue()


class TestTasks:
    def test_are_listed_with_kind_and_labels(self, served: tuple[Served, str], client: httpx.Client) -> None:
        with openai.OpenAI(base_url=f"{served[0].report['gateway']}/v1", api_key=served[1]) as library:
            wanted = {"encoder", "encoder/city", "digits/digit", "intents", "intents_cascade", "writer"}
            # The gateway lists a model from its next look at the server on.
            assert until(lambda: wanted <= {each.id for each in library.models.list()})
            rows = {each.id: each for each in library.models.list()}
            assert rows["encoder/city"].created > 1_600_000_000
            assert library.models.retrieve("digits/digit").id == "digits/digit"
        found = {each["id"]: each for each in client.get("/v1/models").json()["data"]}
        city = found["encoder/city"]
        assert (city["parent"], city["task"], city["task_kind"]) == ("encoder", "city", "lora")
        assert city["uses"] == ["text classification"]
        record = json.loads((Path(served[0].state["repository"]) / "encoder/tasks/city/task.json").read_text())
        assert city["labels"] == record["labels"]
        assert found["digits/digit"]["uses"] == ["image classification"]
        assert len(found["digits/digit"]["labels"]) == 10
        missing = client.get("/v1/models/encoder/nope")
        assert (missing.status_code, "has no task 'nope'" in missing.json()["error"]["message"]) == (404, True)

    def test_a_task_that_is_added_and_removed(self, served: tuple[Served, str], client: httpx.Client) -> None:
        tasks = Path(served[0].state["repository"]) / "encoder/tasks"

        def names() -> set[str]:
            return {each["id"] for each in client.get("/v1/models").json()["data"]}

        shutil.copytree(tasks / "city", tasks / "town")
        document = {"model": "encoder/town", "input": "a b", "top_k": 1}
        assert client.post("/v1/classify", json=document).status_code == 200  # at once, labels included
        assert "encoder/town" in names()
        shutil.rmtree(tasks / "town")
        assert until(lambda: "encoder/town" not in names())

    def test_a_key_sees_its_tasks_alone(self, served: tuple[Served, str]) -> None:
        keys = served[0].runtime.parent / "keys.json"
        key, _ = add_key(keys, "one", models=("encoder/city",))
        headers = {"Authorization": f"Bearer {key}"}

        def ids() -> list[str]:
            response = httpx.get(f"{served[0].report['gateway']}/v1/models", headers=headers, timeout=30)
            return [each["id"] for each in response.json().get("data", ())]

        assert until(lambda: ids() == ["encoder/city"])


class TestLabels:
    @pytest.mark.parametrize(("name", "task"), [("intents", ""), ("intents_cascade", ""), ("encoder", "city")])
    def test_of_texts_with_scores(self, client: httpx.Client, direct: Client, name: str, task: str) -> None:
        texts = ["good bad", "wake me up"]
        model = f"{name}/{task}" if task else name
        data = client.post("/v1/classify", json={"model": model, "input": texts, "top_k": 2}).json()["data"]
        everything = [client.post("/predict", json={"model": model, "inputs": text}).json() for text in texts]
        for text, row, all_labels in zip(texts, data, everything, strict=True):
            truth = direct.classify(name, text, **({"task": task} if task else {}), request_id="same")
            assert truth.probabilities is not None
            values = np.asarray(truth.probabilities).reshape(-1)
            assert all_labels[0]["label"] == row["labels"][0]["label"] == row["label"]
            assert len(all_labels) == len(values)
            assert len({each["label"] for each in all_labels}) == len(values)
            found = [each["score"] for each in all_labels]
            assert found == sorted(found, reverse=True)
            assert len(row["labels"]) == min(2, len(found))
            if name != "intents_cascade":  # whose path depends on the request's id
                assert found == pytest.approx(sorted(values, reverse=True), abs=1e-4)
                assert [each["score"] for each in row["labels"]] == pytest.approx(found[:2], abs=1e-4)

    def test_of_images_as_json_and_form(self, client: httpx.Client, direct: Client) -> None:
        content = image()
        truth = direct.classify_image("digits", content, task="digit")
        assert truth.probabilities is not None
        best = sorted(np.asarray(truth.probabilities).reshape(-1), reverse=True)[:3]
        sent = {"image": base64.b64encode(content).decode()}
        as_json = client.post("/v1/classify", json={"model": "digits/digit", "input": sent, "top_k": 3}).json()
        form = {"model": "digits/digit", "top_k": "3"}
        as_form = client.post("/v1/classify", data=form, files={"image": ("a.png", content)}).json()
        for found in (as_json, as_form):
            (row,) = found["data"]
            assert row["label"] == truth.label == row["labels"][0]["label"]
            assert [each["score"] for each in row["labels"]] == pytest.approx(best, abs=0.05)
        wrong = client.post("/v1/classify", data={**form, "top_k": "x"}, files={"image": ("a.png", content)})
        assert (wrong.status_code, "'top_k'" in wrong.json()["error"]["message"]) == (400, True)


class TestUsage:
    def test_counts_the_tokens_of_every_backend(
        self, served: tuple[Served, str], client: httpx.Client, direct: Client
    ) -> None:
        texts = ["good bad good", "a"]
        for name, task in (("intents", ""), ("encoder", "city"), ("intents_cascade", "")):
            options: Any = {"task": task} if task else {}
            inputs = {"text_input": np.array([[each.encode()] for each in texts], object)}
            tokens = direct.infer(name, inputs, outputs=["input_tokens"], **options)["input_tokens"]
            document = {"model": name, "input": texts, **options}
            usage = client.post("/v1/classify", json=document).json()["usage"]
            assert usage["prompt_tokens"] == usage["total_tokens"] == int(tokens.sum()) >= 4 + 3
        sent = {"image": base64.b64encode(image()).decode()}
        usage = client.post("/v1/classify", json={"model": "digits/digit", "input": [sent, sent]}).json()["usage"]
        manifest = json.loads((Path(served[0].state["repository"]) / "digits/1/manifest.json").read_text())
        assert usage["prompt_tokens"] == 2 * manifest["tokens"]


class TestBeside:
    def test_its_log_is_apart_and_it_has_no_admin_key(self, served: tuple[Served, str]) -> None:
        state = served[0].state
        assert state["gateway"] == served[0].report["gateway"]
        assert Path(state["gateway_log"]) != Path(state["log"])
        assert "is in" in Path(state["gateway_log"]).read_text()
        assert "TIDAL_ADMIN_KEY" not in _gateway(served[0]).environ()

    def test_it_is_started_again_on_its_port(self, served: tuple[Served, str], client: httpx.Client) -> None:
        killed = _gateway(served[0])
        for each in (killed, *killed.children(recursive=True)):
            each.send_signal(signal.SIGKILL)

        def answers() -> bool:
            try:
                return client.get("/health").status_code == 200
            except httpx.TransportError:
                return False

        assert until(lambda: not killed.is_running() or killed.status() == psutil.STATUS_ZOMBIE)
        assert until(answers)
        assert client.post("/v1/classify", json={"model": "intents", "input": "a"}).status_code == 200

    def test_a_wrong_setting_fails_the_start(self, repository: Path, tmp_path: Path) -> None:
        from testing.serving import tidal_in_process

        config = tmp_path / "gateway.yaml"
        config.write_text("prot: 5\n")
        ports = [part for name in ("http", "grpc", "metrics", "gateway") for part in (f"--{name}-port", "0")]
        environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}
        command = ["serve", str(repository), *ports]
        for options, message in (
            (
                ["--gateway-config", str(config)],
                "the gateway does not start: unknown setting 'prot': did you mean 'port'",
            ),
            (["--", "--grpc-use-ssl=true"], "the gateway does not connect to gRPC with TLS"),
        ):
            result = tidal_in_process(*command, *options, environment=environment)
            assert result.returncode == 1
            assert message in re.sub(r"\s+", " ", result.stderr)

    def test_it_ends_before_the_server(self, repository: Path, tmp_path: Path) -> None:
        """A request that is in flight at SIGTERM is answered, and nothing is left behind."""
        options = ("--gateway-port", "0", "--model", "writer", "--exit-timeout", "10")
        with serving(repository, tmp_path / "runtime", *options) as found:
            url = found.report["gateway"]
            assert until(lambda: httpx.get(f"{url}/health").status_code == 200)
            document = {"model": "writer", "prompt": "hello", "max_tokens": 60, "stream": True}
            with httpx.stream("POST", f"{url}/v1/completions", json=document, timeout=30) as response:
                lines = response.iter_lines()
                assert next(lines)
                found.process.send_signal(signal.SIGTERM)
                rest = [line for line in lines if line]
            assert rest[-1] == "data: [DONE]"
            assert found.process.wait(30) == 0
            assert found.left_behind() == []


def _gateway(served: Served) -> psutil.Process:
    (found,) = [each for each in psutil.Process(served.process.pid).children() if "gateway" in each.cmdline()]
    return found
