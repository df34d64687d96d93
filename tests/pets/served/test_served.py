"""The `pets` backend in a real server, over HTTP and gRPC, compared with each task's own unmodified model."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from testing.pets import Base
from testing.waiting import until
from tests.pets.served.conftest import Served
from tests.pets.served.texts import WORDS, make_texts
from tidal.tasks.folder import remove_task
from tidal_builders.pets.typical import TYPICAL_KINDS
from tidal_client import AsyncClient, Client, InvalidArgument, RequestError, Unavailable

pytestmark = pytest.mark.server


def check(base: Base, task: str, text: str, answer: Any, pair: str | None = None) -> None:
    """Compare an answer with the task's own model."""
    expected = base.logits(task, text, pair)
    np.testing.assert_allclose(answer.logits, expected, atol=1e-4)
    np.testing.assert_allclose(answer.probabilities, np.exp(expected) / np.exp(expected).sum(), atol=1e-4)
    kind, _, seed = task.rpartition("_")
    assert answer.label == f"{kind} {seed} {expected.argmax()}"


class TestAnswers:
    def test_single_texts_and_pairs(self, url: str, base: Base, served: Served) -> None:
        with Client(url) as client:
            for number, task in enumerate(served.tasks):
                (text,) = make_texts(1, seed=number)
                check(base, task, text, client.classify("base", text, task=task))
            pair = client.classify("base", "good song", pair="bad weather", task="lora_0")
            check(base, "lora_0", "good song", pair, "bad weather")

    def test_ids(self, url: str, base: Base) -> None:
        encoded = base.tokenizer("good song today")["input_ids"]
        ids = np.array([[*encoded, 0, 0]], np.int64)
        mask = np.array([[1] * len(encoded) + [0, 0]], np.int64)
        with Client(url) as client:
            answer = client.infer("base", {"input_ids": ids, "attention_mask": mask}, task="maskbert_1")
        np.testing.assert_allclose(answer["logits"][0], base.logits("maskbert_1", "good song today"), atol=1e-4)

    @pytest.mark.parametrize(
        ("protocol", "model"), [("grpc", "base"), ("http", "base"), ("grpc", "full"), ("http", "torch")]
    )
    def test_mixtures_of_all_tasks_in_any_order(self, protocol: str, model: str, base: Base, served: Served) -> None:
        draw, url = random.Random(7), served.url(protocol)

        async def ask_all(client: AsyncClient, seed: int) -> None:
            tasks = list(served.tasks) * 2
            draw.shuffle(tasks)
            texts = [make_texts(draw.randint(1, 3), seed=1000 * seed + i) for i in range(len(tasks))]
            calls = (client.classify_many(model, row, task=task) for row, task in zip(texts, tasks, strict=True))
            for row, task, answers in zip(texts, tasks, await asyncio.gather(*calls), strict=True):
                for text, answer in zip(row, answers, strict=True):
                    check(base, task, text, answer)

        async def rounds(most: int) -> None:
            async with AsyncClient(url) as client:
                for seed in range(most):
                    await ask_all(client, seed)
                    if model != "full" or await asyncio.to_thread(self._crowded, served):
                        return

        asyncio.run(rounds(60))
        if model == "full":
            assert self._crowded(served)
            assert served.metric("batch_distinct_kinds_sum", "full") > served.metric("batch_size_queries_count", "full")

    @staticmethod
    def _crowded(served: Served) -> bool:
        """Whether batches with rows of 4 or more different tasks have run, as far as metrics are published."""

        def seen() -> bool:
            fewer = served.metric("batch_distinct_tasks_bucket", "full", le="3")
            return served.metric("batch_distinct_tasks_count", "full") > fewer

        return until(seen, 0.3)

    def test_rows_of_every_kind_are_counted(self, url: str, served: Served) -> None:
        """Earlier queries may be published meanwhile: a busy server publishes its metrics some seconds late."""

        def rows(**kind: str) -> float:
            return served.metric("executed_queries_total", "base", **kind)

        before = rows(kind="adapter")
        with Client(url) as client:
            client.classify_many("base", ["good"] * 3, task="adapter_0")
        assert until(lambda: rows(kind="adapter") >= before + 3)
        assert until(lambda: rows() == served.metric("batch_size_queries_sum", "base"))


BAD: list[tuple[str | None, str]] = [
    (None, "the request names no task in its option 'task'"),
    ("adaptr_0", "unknown task 'adaptr_0': did you mean 'adapter_0'"),
    ("no such thing", "unknown task 'no such thing'"),
    ("../base/tasks/lora_0", "unknown task"),
]


class TestRefusals:
    @pytest.mark.parametrize(("task", "message"), BAD)
    def test_an_unknown_task(self, url: str, served: Served, task: str | None, message: str) -> None:
        options: Any = {} if task is None else {"task": task}
        with Client(url) as client, ThreadPoolExecutor(9) as pool:
            good = [pool.submit(client.classify, "base", text, task="lora_1") for text in make_texts(8, seed=3)]
            with pytest.raises(InvalidArgument) as caught:
                client.classify("base", "good", **options)
            assert message in str(caught.value)
            assert all(future.result().label for future in good)

    def test_a_deadline(self, url: str, served: Served) -> None:
        with Client(url) as client:
            with pytest.raises(Unavailable, match=r"deadline of 0\.001 ms"):
                client.classify("base", "good", task="lora_0", latency_ms=0.001)
            assert client.classify("base", "good", task="lora_0", latency_ms=20_000).label

    def test_a_damaged_task_is_refused_and_others_are_served(self, url: str, base: Base, served: Served) -> None:
        folder = served.folder("base")
        name = base.add(folder, "lora", 77, name=f"damaged_{url[:4]}")
        file = folder / name / "task.safetensors"
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
        with Client(url) as client:
            for _ in range(2):
                with pytest.raises(InvalidArgument, match=f"task '{name}' is refused: .* damaged"):
                    client.classify("base", "good", task=name)
            check(base, "bitfit_0", "good", client.classify("base", "good", task="bitfit_0"))
        remove_task(folder, name)

    def test_a_task_of_another_base(self, url: str, base: Base, served: Served) -> None:
        folder = served.folder("base")
        name = base.add(folder, "bitfit", 78, name=f"foreign_{url[:4]}")
        file = folder / name / "task.json"
        file.write_text(file.read_text().replace(base.layers.digest, "0" * 64))
        with Client(url) as client, pytest.raises(InvalidArgument, match="made for the base 000000000000"):
            client.classify("base", "good", task=name)
        remove_task(folder, name)


class TestChanges:
    def test_adding_and_removing_tasks_under_load_fails_no_request(self, base: Base, served: Served) -> None:
        folder, stop = served.folder("base"), threading.Event()
        failures, answered = list[str](), [0]

        async def one(client: AsyncClient, first: int) -> None:
            number = first
            while not stop.is_set():
                task, text = served.tasks[number % len(served.tasks)], WORDS[number % len(WORDS)]
                number += 1
                try:
                    check(base, task, text, await client.classify("base", text, task=task))
                    answered[0] += 1
                except (RequestError, AssertionError) as error:
                    failures.append(f"{task}: {error}")

        async def load() -> None:
            async with AsyncClient(served.url("grpc")) as grpc, AsyncClient(served.url("http")) as http:
                await asyncio.gather(*(one((grpc, http)[n % 2], n) for n in range(6)))

        thread = threading.Thread(target=asyncio.run, args=(load(),))
        thread.start()
        try:
            with Client(served.url("grpc")) as client:
                for number, kind in enumerate(TYPICAL_KINDS):
                    name = base.add(folder, kind, 100 + number)
                    for _ in range(3):
                        check(base, name, "good song", client.classify("base", "good song", task=name))
                    remove_task(folder, name)
                    assert until(lambda name=name: not self._serves(client, name))  # type: ignore[misc]
            assert until(lambda: answered[0] > 100)
        finally:
            stop.set()
            thread.join(30)
        assert failures == []

    @staticmethod
    def _serves(client: Client, task: str) -> bool:
        try:
            client.classify("base", "good", task=task)
        except InvalidArgument as error:
            assert "unknown task" in str(error)
            return False
        return True

    def test_the_memory_budget_is_kept_while_all_tasks_are_used(self, base: Base, served: Served) -> None:
        texts = make_texts(6, seed=9)

        def ask(client: Client, number: int) -> None:
            task, text = served.tasks[number % len(served.tasks)], texts[number % len(texts)]
            check(base, task, text, client.classify("small", text, task=task))

        most = 0.0
        with Client(served.url("grpc")) as client, ThreadPoolExecutor(8) as pool:
            asked = [pool.submit(ask, client, number) for number in range(4 * len(served.tasks))]
            while not all(future.done() for future in asked):
                most = max(most, served.metric("task_bytes", "small"))
                time.sleep(0.05)
            for future in asked:
                future.result()
        assert until(lambda: served.metric("task_evictions_total", "small") > 0)
        assert max(most, served.metric("task_bytes", "small")) <= served.budget
        assert served.metric("task_budget_bytes", "small") == served.budget

    def test_a_reload_keeps_the_tasks(self, base: Base, served: Served) -> None:
        served.server.control.unload("full")
        served.server.control.load("full", None)
        with Client(served.url("grpc")) as grpc, Client(served.url("http")) as http:
            for client in (grpc, http):
                assert until(lambda client=client: client.ready("full"))  # type: ignore[misc]
                for task in served.tasks[:5]:
                    check(base, task, "good", client.classify("full", "good", task=task))


class TestOrder:
    def test_long_queries_are_answered_while_short_ones_keep_arriving(self, served: Served) -> None:
        """Four clients keep 256 short queries waiting, which are cheaper than a long one; few may overtake it."""
        clients, rows, rounds = 4, 64, 4
        short, long = ["good song"] * rows, " ".join(WORDS * 4)

        async def run() -> list[int]:
            async with AsyncClient(f"grpc://{served.server.grpc}") as client:
                sent = 0
                answered: list[int] = []  # sequence numbers of the requests
                done = asyncio.Event()

                async def ask_short(number: int) -> None:
                    nonlocal sent
                    while not done.is_set():
                        place = sent = sent + 1
                        await client.classify_many("pairs", short, task=served.tasks[number])
                        answered.append(place)

                async def ask_long() -> list[int]:
                    overtakers = []
                    for _ in range(rounds):
                        before, begin = sent, len(answered)
                        assert (await client.classify("pairs", long, task="lora_0")).label
                        overtakers.append(sum(place > before for place in answered[begin:]))
                    done.set()
                    return overtakers

                shorts = [asyncio.create_task(ask_short(number)) for number in range(clients)]
                found = await ask_long()
                await asyncio.gather(*shorts)
                return found

        # One request of each client may reach the server before the long one, on a busy machine another one; if short
        # queries went first, all of them would overtake it.
        assert max(asyncio.run(run())) <= 2 * clients


class TestCopies:
    def test_a_hot_task_runs_on_a_merged_copy(self, base: Base, served: Served) -> None:
        (text,) = make_texts(1, seed=5)
        hot, adapter, bitfit = "diff_pruning_0", "adapter_0", "bitfit_0"
        with Client(served.url("grpc")) as grpc, Client(served.url("http")) as http:
            clients = itertools.cycle((grpc, http))

            def copied() -> bool:
                """Query all three tasks and check their answers; returns whether the hot one ran on a copy."""
                before, client = served.metric("merged_queries_total", "hot"), next(clients)
                for task in (adapter, bitfit, hot):
                    check(base, task, text, client.classify("hot", text, task=task))
                return until(lambda: served.metric("merged_queries_total", "hot") > before, 0.5)

            before = [client.classify("hot", text, task=hot).logits for client in (grpc, http)]
            assert served.metric("merged_queries_total", "hot") == 0
            assert until(copied)
            for client, unmerged in zip((grpc, http), before, strict=True):
                assert until(copied)  # alternates between the protocols
                np.testing.assert_allclose(client.classify("hot", text, task=hot).logits, unmerged, atol=1e-4)
            # Adapters cannot be merged, and the terms of the third task cost nothing.
            assert served.metric("merged_copies", "hot") == 1
