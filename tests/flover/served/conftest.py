"""Two tiny decoders of random weights, built once, and a real server over them."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from testing.config import parameter
from testing.decoders import EOS, build_decoder, tiny_model, write_decoder
from testing.metrics import published
from testing.servers import RunningServer, running_server
from tests.flover.chat.templates import TEMPLATES
from tests.flover.generating import generated_by_transformers
from tests.flover.tasks.adapters import peft_model, save_adapter
from tidal.commands.tasks import tasks as tasks_command
from tidal.flover.manifest import FloverPrecision
from tidal_client.main import build_app

# Families and slots of the models. `narrow` has few slots, a short queue and no shuffle.
FAMILIES = {"writer": "gpt2", "narrow": "llama", "experts": "qwen2_moe"}
SLOTS = {"writer": 6, "narrow": 2, "experts": 3}
MOST_OPEN = 16
# Models with weights of integers, which are built from the source of `writer`. Random weights keep no bounds on text.
INTEGERS: dict[str, FloverPrecision] = {"writer8": "int8", "writer4": "int4"}
UNBOUNDED = {"tolerance": 100, "quality": {"perplexity_ratio": 100, "agreement": 0, "max_kl": 100}}
# Tasks of `writer`, with different weights.
TASKS = ("bard", "clerk")


@dataclass(frozen=True)
class Served:
    """A server over the models of `FAMILIES`.

    Attributes:
        server: The running server.
        repository: Its model repository.
        sources: Each model in transformers.
        tasks: `writer` in transformers with each task merged.
        saved: Folder that peft saved, of each task.
    """

    server: RunningServer
    repository: Path
    sources: dict[str, Any]
    tasks: dict[str, Any]
    saved: dict[str, Path]

    def url(self, protocol: str) -> str:
        return f"{protocol}://{getattr(self.server, protocol)}"

    def metric(self, family: str, model: str, **labels: str) -> float:
        """Return the sum of a model's published series of a family with these labels."""
        return published(self.server.metrics_text(), f"tidal_flover_{family}", model=model, **labels)

    def greedy(self, model: str, prompt: Sequence[int], count: int, task: str | None = None) -> list[int]:
        """Return what transformers generates greedily: up to `count` tokens, or the end-of-text token."""
        source = self.sources[model] if task is None else self.tasks[task]
        tokens = generated_by_transformers(source, np.array(prompt), count)
        return tokens[: tokens.index(EOS) + 1] if EOS in tokens else tokens

    def post(self, model: str, how: str, **fields: Any) -> tuple[int, str]:
        """Return status and body of a request to `generate` or `generate_stream`, sent without a client library."""
        url = f"http://{self.server.http}/v2/models/{model}/{how}"
        request = urllib.request.Request(url, json.dumps(fields).encode(), method="POST")
        try:
            with urllib.request.urlopen(request, timeout=20) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()


@pytest.fixture(scope="package")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("flover")
    for name, family in FAMILIES.items():
        source = write_decoder(folder / "sources" / name, family)
        if name == "writer":
            (source / "chat_template.jinja").write_text(TEMPLATES["chatml"])
        build_decoder(folder, name, source, slots=SLOTS[name])
    for name, precision in INTEGERS.items():
        kept = "int8" if precision == "int8" else "auto"
        fields = {"precision": precision, "kv_cache_dtype": kept, "group_size": 32, **UNBOUNDED}
        build_decoder(folder, name, folder / "sources/writer", slots=3, **fields)
    more = parameter("max_queue_size", MOST_OPEN) + parameter("shuffle", "false") + parameter("default_max_tokens", 5)
    with (folder / "repository" / "narrow" / "config.pbtxt").open("a") as config:
        config.write(more)
    sources = {name: tiny_model(family) for name, family in FAMILIES.items()}
    saved = {task: save_adapter(folder / "saved" / task, seed=seed) for seed, task in enumerate(TASKS)}
    for task, source in saved.items():
        base = ("--base-model", str(folder / "sources/writer"))  # the adapter was saved from a model in memory
        run_tasks(folder / "repository", "add", "writer", str(source), "--name", task, *base)
    merged = {task: peft_model(source, merged=True) for task, source in saved.items()}
    # A stream that is cancelled during its last response can delay the end of the server by this time.
    with running_server(folder / "repository", exit_timeout_s=3) as server:
        for name in (*FAMILIES, *INTEGERS):
            assert server.load_error(name) == ""
        yield Served(server, folder / "repository", sources, merged, saved)


def run_tasks(repository: Path, *arguments: str) -> str:
    """Run `tidal tasks` and return its output."""
    done = CliRunner(env={"COLUMNS": "200"}).invoke(tasks_command, [*arguments, "--repository", str(repository)])
    assert done.exit_code == 0, done.output
    return done.stdout


def run_generate(*arguments: str, stdin: bytes | None = None) -> Any:
    """Run `tidal generate` and return its result."""
    runner = CliRunner(env={"COLUMNS": "160", "NO_COLOR": "1"})
    return runner.invoke(build_app(), ["generate", *arguments], input=stdin)


@pytest.fixture(params=["grpc", "http"])
def url(request: pytest.FixtureRequest, served: Served) -> str:
    """URL of the server, over each protocol."""
    return served.url(request.param)
