"""LoRA tasks on a real server, over HTTP and gRPC, compared with peft's own generation; the commands for tasks."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from testing.decoders import EOS, write_decoder
from testing.waiting import until
from tests.flover.served.conftest import TASKS, Served, run_tasks
from tests.flover.tasks.adapters import edit
from tidal.commands.tasks import tasks as tasks_command
from tidal_builders.flover.importing import import_lora
from tidal_client import AsyncClient, Client, InvalidArgument
from tidal_client.main import build_app

pytestmark = pytest.mark.server


def test_tasks_and_the_base_share_steps(url: str, served: Served) -> None:
    rng = random.Random(4)

    async def one(client: AsyncClient, task: str | None) -> None:
        prompt, limit = [rng.randrange(EOS) for _ in range(rng.randint(1, 40))], rng.randint(5, 30)
        await asyncio.sleep(rng.random() * 0.1)
        options: dict[str, Any] = {} if task is None else {"task": task}
        found = [
            token
            async for part in client.generate_stream("writer", prompt, max_tokens=limit, **options)
            for token in part.tokens
        ]
        assert found == served.greedy("writer", prompt, limit, task)

    async def all_of_them() -> None:
        async with AsyncClient(url) as client:
            await asyncio.gather(*(one(client, task) for task in (None, *TASKS) * 4))

    asyncio.run(all_of_them())
    assert until(lambda: served.metric("tasks_resident", "writer") == len(TASKS))
    assert served.metric("task_bytes", "writer") > 0


def test_a_task_applies_to_all_prompts_of_a_request(url: str, served: Served) -> None:
    with Client(url) as client:
        alone = [client.generate("writer", text, max_tokens=12, task="bard").tokens for text in ("the cat", "a dog")]
        both = client.generate("writer", ["the cat", "a dog"], max_tokens=12, task="bard")
        base = client.generate("writer", "the cat", max_tokens=12)
    assert [each.tokens for each in both] == alone
    assert base.tokens != alone[0]


def test_similar_task_names_are_suggested(url: str, served: Served) -> None:
    with Client(url) as client:
        with pytest.raises(InvalidArgument, match="unknown task 'brd': did you mean 'bard'"):
            client.generate("writer", "hi", task="brd")
        with pytest.raises(InvalidArgument, match="unknown task 'bard': the model has no tasks"):
            client.generate("narrow", "hi", task="bard")


def test_a_task_is_added_and_removed_without_a_reload(url: str, served: Served) -> None:
    """A generation that began before its task was removed finishes with it; later requests are refused."""
    prompt, limit = [5, 6, 7], 100
    wanted = served.greedy("writer", prompt, limit, "clerk")
    with Client(url) as client:
        stored = str(served.repository / "writer/tasks/clerk")
        run_tasks(served.repository, "add", "writer", stored, "--name", "guest")
        parts = client.generate_stream("writer", prompt, max_tokens=limit, task="guest")
        found = list(next(parts).tokens)
        run_tasks(served.repository, "remove", "writer", "guest")
        found += [token for part in parts for token in part.tokens]
        assert found == wanted

        def refused() -> bool:
            try:
                client.generate("writer", prompt, max_tokens=1, task="guest")
            except InvalidArgument as error:
                return "unknown task 'guest'" in str(error)
            return False

        assert until(refused)


def test_the_commands(served: Served, tmp_path: Path) -> None:
    lines = run_tasks(served.repository, "list", "writer").splitlines()
    assert [line.split()[:3] for line in lines[1:]] == [["bard", "lora", "-"], ["clerk", "lora", "-"]]
    assert all(line.rstrip().endswith("fits") for line in lines[1:])
    shown = run_tasks(served.repository, "show", "writer", "bard")
    assert "low-rank differences (rank 4) in 8 layers" in shown
    assert "(--base-model), whose weights are those of this model's base" in shown
    assert "compared with peft's generations: 100.0% of " in shown
    described = json.loads(run_tasks(served.repository, "show", "writer", "bard", "--json"))
    assert described["changes"] == {"layers": 8, "ranks": [4]}
    copy, saved = str(served.repository / "writer/tasks/bard"), str(served.saved["bard"])
    for arguments, message in (
        (["add", "writer", str(tmp_path)], "is not a task of a decoder"),
        (["add", "writer", copy], "task 'bard' already exists"),
        (["add", "writer", copy, "--name", "other", "--half"], "copied as it is: without --half"),
        (
            ["add", "writer", saved, "--name", "other", "--labels", "a"],
            "are for tasks that classify",
        ),
        (["add", "narrow", saved], "fan_in_fan_out is set"),
        (["add", "writer", saved, "--name", "other"], "names no base: on another base than its own, a task gives"),
        (["add", "narrow", copy], "it was made for the base"),
        (["train", "writer", str(tmp_path)], "is not a vision transformer"),
    ):
        done = CliRunner().invoke(tasks_command, [*arguments, "--repository", str(served.repository)])
        assert (done.exit_code, message in done.stderr) == (1, True), done.stderr


class TestImporting:
    """Checks before `tidal tasks add` adds a LoRA; a refused one leaves no files."""

    def refused(self, served: Served, *arguments: str | Path) -> str:
        given = ["add", "writer", *map(str, arguments), "--name", "new", "--repository", str(served.repository)]
        done = CliRunner().invoke(tasks_command, given)
        assert done.exit_code == 1, done.output
        assert not (served.repository / "writer/tasks/new").exists()
        return done.stderr

    def test_a_base_is_compared_by_its_weights(self, served: Served, tmp_path: Path) -> None:
        saved = shutil.copytree(served.saved["bard"], tmp_path / "lora")
        other, own = write_decoder(tmp_path / "other", seed=1), write_decoder(tmp_path / "own")
        assert "is not the base that the model was built from" in self.refused(served, saved, "--base-model", other)
        edit(saved, base_model_name_or_path=str(other))
        message = self.refused(served, saved)
        assert f"was trained on {other}, whose weights are not those of this model's base" in message
        edit(saved, base_model_name_or_path="some/decoder")
        assert "was trained on 'some/decoder', which is not on this machine" in self.refused(served, saved)
        edit(saved, base_model_name_or_path=str(own))
        printed = run_tasks(served.repository, "add", "writer", str(saved), "--name", "new")
        run_tasks(served.repository, "remove", "writer", "new")
        assert f"note: trained on {own}, whose weights are those of this model's base" in printed
        assert "compared with peft's generations: 100.0% of " in printed

    def test_a_task_that_generates_differently_from_peft_is_refused(
        self, served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from tidal_builders.flover import importing

        def wrong(folder: Path, base: Any) -> Any:
            found = import_lora(folder, base)
            halved = {path: replace(delta, scale=delta.scale / 2) for path, delta in found.deltas.items()}
            return found._replace(deltas=halved)

        own = write_decoder(tmp_path / "own")
        monkeypatch.setattr(importing, "import_lora", wrong)
        message = self.refused(served, served.saved["bard"], "--base-model", own)
        assert "the stored task does not generate as peft does: largest error of a logit is" in message
        forced = ("--base-model", str(own), "--force")
        printed = run_tasks(served.repository, "add", "writer", str(served.saved["bard"]), "--name", "new", *forced)
        run_tasks(served.repository, "remove", "writer", "new")
        assert "note: added by --force: the stored task does not generate as peft does" in printed


def test_generate_with_a_task_on_the_command_line(url: str, served: Served) -> None:
    common = ["generate", "writer", "--url", url, "-n", "12", "-t", "the cat", "--json"]
    done = CliRunner().invoke(build_app(), [*common, "--task", "bard"])
    assert done.exit_code == 0, done.output
    with Client(url) as client:
        assert (
            tuple(json.loads(done.stdout)["tokens"])
            == client.generate("writer", "the cat", max_tokens=12, task="bard").tokens
        )
