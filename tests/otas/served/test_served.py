"""The `otas` backend in a real server, over HTTP and gRPC, compared with torch and each task's own parameters."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from testing.requests import column
from testing.vision import GAMMAS, Vision
from testing.waiting import until
from tests.otas.hostile_images import HOSTILE
from tests.otas.photos import encoded, photo
from tests.otas.served.conftest import TASKS, Served
from tidal.otas.images import FloatArray, ImageDecoder
from tidal.tasks.folder import remove_task
from tidal_client import AsyncClient, Client, InvalidArgument, Unavailable

pytestmark = pytest.mark.server

IMAGES = [encoded(photo(40 + 7 * number, 60), kind) for number, kind in enumerate(("PNG", "JPEG", "WEBP"))]
# A deadline that is never missed.
LONG: dict[str, Any] = {"latency_ms": 20_000}


def check(vision: Vision, task: str, pixels: list[FloatArray], answer: dict[str, Any]) -> list[int]:
    """Compare an answer's rows with torch at the γ that they report; returns these γ."""
    gammas: list[int] = answer["gamma"].ravel().tolist()
    expected = np.stack([vision.logits(task, gamma, row) for gamma, row in zip(gammas, pixels, strict=True)])
    np.testing.assert_allclose(answer["logits"], expected, atol=2e-4)
    shares = np.exp(expected) / np.exp(expected).sum(1, keepdims=True)
    np.testing.assert_allclose(answer["probabilities"], shares, atol=2e-4)
    assert [label.decode() for label in answer["label"].ravel()] == [f"{task} {row.argmax()}" for row in expected]
    assert answer["queue_ms"].shape == (len(pixels), 1)
    return gammas


@pytest.fixture(scope="module")
def pixels(vision: Vision) -> list[FloatArray]:
    decoder = ImageDecoder(vision.manifest.image, 1 << 20)
    return [decoder.decode(image) for image in IMAGES]


class TestAnswers:
    @pytest.mark.parametrize("model", ["vit", "paper", "prompts"])
    def test_images_and_their_pixels(self, url: str, vision: Vision, pixels: list[FloatArray], model: str) -> None:
        with Client(url) as client:
            for task in TASKS:
                encoded_ = client.infer(model, {"image": column(IMAGES)}, task=task, **LONG)
                plain = client.infer(model, {"pixel_values": np.stack(pixels)}, task=task, **LONG)
                gammas = check(vision, task, pixels, encoded_) + check(vision, task, pixels, plain)
                # An idle server has time for the largest γ; `vit` may reserve it for later queries.
                assert set(gammas) == {2} or model == "vit"

    @pytest.mark.parametrize("model", ["vit", "paper"])
    def test_an_urgent_query_gets_fewer_tokens(
        self, url: str, vision: Vision, pixels: list[FloatArray], model: str
    ) -> None:
        with Client(url) as client:
            inputs = {"pixel_values": np.stack(pixels)}
            answer = client.infer(model, inputs, task="moods", latency_ms=900, utility=0.5)
        assert check(vision, "moods", pixels, answer) == [-2] * 3

    @pytest.mark.parametrize("model", ["vit", "paper"])
    def test_mixtures_of_all_tasks_and_deadlines(
        self, url: str, vision: Vision, pixels: list[FloatArray], model: str
    ) -> None:
        """Each answer is that of its task and γ; queries that cannot be in time by the profile are refused."""

        async def one(client: AsyncClient, number: int) -> set[int]:
            task = list(TASKS)[number % len(TASKS)]
            inputs = {"pixel_values": np.stack(pixels)}
            deadline = (900, 6000, 20_000)[number % 4 % 3]
            try:
                answer = await client.infer(model, inputs, task=task, latency_ms=deadline, utility=0.5)
            except Unavailable as error:
                assert f"deadline of {deadline} ms" in str(error)
                return set()
            return set(check(vision, task, pixels, answer))

        async def burst() -> list[set[int]]:
            async with AsyncClient(url) as client:
                return await asyncio.gather(*(one(client, number) for number in range(40)))

        ran = set[int]().union(*asyncio.run(burst()))
        assert -2 in ran
        assert ran <= set(GAMMAS)

    def test_queries_are_counted_by_gamma_and_outcome(self, url: str, served: Served, pixels: list[FloatArray]) -> None:
        before = served.metric("executed_queries_total", "prompts", gamma="2")
        in_time = served.metric("outcomes_total", "prompts", outcome="in_time")
        with Client(url) as client:
            client.infer("prompts", {"pixel_values": np.stack(pixels)}, task="digits", **LONG)
        assert until(lambda: served.metric("executed_queries_total", "prompts", gamma="2") >= before + 3)
        assert until(lambda: served.metric("outcomes_total", "prompts", outcome="in_time") >= in_time + 3)


class TestRefusals:
    @pytest.mark.parametrize(
        "name",
        ["bomb", "too large", "animated webp", "cut jpeg", "gif", "empty", "iTXt bomb", "many chunks", "bytes"],
    )
    def test_an_invalid_image_fails_only_its_request(self, url: str, vision: Vision, name: str) -> None:
        make, message = HOSTILE[name]
        content = make()
        if name == "bomb":
            message = "has too many pixels; accepted: up to 1000000"
        elif name == "too large":
            message = "has 1025 x 1024 pixels; accepted: up to 1000000 in total"
        elif name == "bytes":
            message = f"has {len(content)} bytes; accepted: up to 1048576, the model's max_image_mb"
        with Client(url) as client, ThreadPoolExecutor(5) as pool:
            good = [
                pool.submit(client.infer, "vit", {"image": column([image])}, task="moods", **LONG) for image in IMAGES
            ]
            with pytest.raises(InvalidArgument) as caught:
                client.infer("vit", {"image": column([IMAGES[0], content])}, task="moods")
            assert f"image row 1 {message}" in str(caught.value)
            assert all(future.result()["label"].size for future in good)

    @pytest.mark.parametrize(
        ("inputs", "options", "message"),
        [
            (
                {"image": column([b"x"])},
                {},
                "the request names no task in its option 'task'; accepted: animals, digits",
            ),
            ({"image": column([b"x"])}, {"task": "mood"}, "unknown task 'mood': did you mean 'moods'"),
            (
                {"pixel_values": np.zeros((1, 3, 16, 16), np.float32)},
                {"task": "moods"},
                "pixel_values has shape [1, 3, 16, 16]; accepted: [rows, 3, 32, 32]",
            ),
        ],
    )
    def test_an_invalid_request(self, url: str, inputs: Any, options: Any, message: str) -> None:
        with Client(url) as client, pytest.raises(InvalidArgument) as caught:
            client.infer("vit", inputs, **options)
        assert message in str(caught.value)

    def test_a_query_whose_deadline_cannot_be_met_is_refused_and_counted_once(self, url: str, served: Served) -> None:
        def refused() -> float:  # after the boundary has answered, or before: whichever sees the deadline first
            evicted = served.metric("outcomes_total", "vit", outcome="evicted")
            return evicted + served.metric("refused_queries_total", "vit", reason="deadline")

        before = refused()
        with Client(url) as client, pytest.raises(Unavailable, match=r"deadline of 0\.00(1|0999\d*) ms"):
            client.infer("vit", {"image": column(IMAGES[:1])}, task="digits", latency_ms=0.001)
        assert until(lambda: refused() == before + 1)


def test_tasks_are_added_and_removed_while_others_are_served(
    vision: Vision, served: Served, pixels: list[FloatArray]
) -> None:
    folder, name = served.folder("vit"), "new"
    inputs = {"pixel_values": np.stack(pixels)}
    with Client(served.url("grpc")) as client:
        vision.add(folder, name, 5)
        check(vision, name, pixels, client.infer("vit", inputs, task=name, **LONG))
        remove_task(folder, name)

        def gone() -> bool:
            check(vision, "animals", pixels, client.infer("vit", inputs, task="animals", **LONG))
            try:
                client.infer("vit", inputs, task=name, **LONG)
            except InvalidArgument as error:
                return f"unknown task '{name}'" in str(error)
            return False

        assert until(gone)
