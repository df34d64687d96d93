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
import yaml
from typer.testing import CliRunner

from testing.config import parameter
from testing.decoders import EOS, tiny_model, write_decoder
from testing.servers import RunningServer, running_server
from tests.flover.generating import generated_by_transformers
from tests.flover.tasks.adapters import peft_model, save_adapter
from tidal.commands.tasks import tasks as tasks_command
from tidal_builders.flover.build import build_flover
from tidal_builders.specs import load_spec

#: The models by name, their families and slots: `narrow` takes few requests and computes its holes.
FAMILIES = {"writer": "gpt2", "narrow": "llama"}
SLOTS = {"writer": 6, "narrow": 2}
MOST_OPEN = 16
#: Tasks of `writer`, each of other values.
TASKS = ("bard", "clerk")


@dataclass(frozen=True)
class Served:
    """A server with the models of `FAMILIES` in `repository`, and their sources in transformers; tasks of the first in
    peft, and the folders that it saved."""

    server: RunningServer
    repository: Path
    sources: dict[str, Any]
    tasks: dict[str, Any]
    saved: dict[str, Path]

    def url(self, protocol: str) -> str:
        return f"{protocol}://{getattr(self.server, protocol)}"

    def metric(self, family: str, model: str, **labels: str) -> float:
        """The sum of a family's series of a model with these labels, as published."""
        wanted = [f'{name}="{value}"' for name, value in {"model": model, **labels}.items()]
        return sum(
            float(line.split()[-1])
            for line in self.server.metrics_text().splitlines()
            if line.startswith(f"tidal_flover_{family}{{") and all(each in line for each in wanted)
        )

    def greedy(self, model: str, prompt: Sequence[int], count: int, task: str | None = None) -> list[int]:
        """What transformers generates, or peft: up to `count` tokens, or the one that ends the text."""
        source = self.sources[model] if task is None else self.tasks[task]
        tokens = generated_by_transformers(source, np.array(prompt), count)
        return tokens[: tokens.index(EOS) + 1] if EOS in tokens else tokens

    def post(self, model: str, how: str, **fields: Any) -> tuple[int, str]:
        """Status and body of a request to `generate` or `generate_stream`, as curl would send it."""
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
        build(folder, name, write_decoder(folder / "sources" / name, family), slots=SLOTS[name])
    more = parameter("max_queue_size", MOST_OPEN) + parameter("shuffle", "false") + parameter("default_max_tokens", 5)
    with (folder / "repository" / "narrow" / "config.pbtxt").open("a") as config:
        config.write(more)
    sources = {name: tiny_model(family) for name, family in FAMILIES.items()}
    saved = {task: save_adapter(folder / "saved" / task, seed=seed) for seed, task in enumerate(TASKS)}
    for task, source in saved.items():
        base = ("--base-model", str(folder / "sources/writer"))  # made of a model that no folder holds
        run_tasks(folder / "repository", "add", "writer", str(source), "--name", task, *base)
    merged = {task: peft_model(source, merged=True) for task, source in saved.items()}
    # A stream that is cancelled as its last response goes out may hold up the server's end until then.
    with running_server(folder / "repository", exit_timeout_s=3) as server:
        for name in FAMILIES:
            assert server.load_error(name) == ""
        yield Served(server, folder / "repository", sources, merged, saved)


def run_tasks(repository: Path, *arguments: str) -> str:
    """What `tidal tasks` prints."""
    done = CliRunner(env={"COLUMNS": "200"}).invoke(tasks_command, [*arguments, "--repository", str(repository)])
    assert done.exit_code == 0, done.output
    return done.stdout


def build(folder: Path, name: str, source: Path, *, slots: int) -> None:
    """Build a model into the folder `repository` of a folder."""
    fields = {"kind": "flover", "name": name, "model": str(source), "max_concurrency": slots, "threads": 1}
    spec_file = folder / f"{name}.yaml"
    spec_file.write_text(yaml.safe_dump({**fields, "profile_seconds": 0.01}))
    spec: Any = load_spec(spec_file)
    build_flover(spec, folder / "repository", spec_file=spec_file, force=False)


@pytest.fixture(params=["grpc", "http"])
def url(request: pytest.FixtureRequest, served: Served) -> str:
    """The server over each protocol in turn."""
    return served.url(request.param)
