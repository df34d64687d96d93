"""Images sent by the client library, `tidal infer` and `tidal load` to a real server."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.otas.photos import encoded, photo
from tests.otas.served.conftest import Served
from tidal_client import AsyncClient, Client, InvalidArgument
from tidal_client.main import build_app

pytestmark = pytest.mark.server

OPTIONS: Any = {"task": "digits", "latency_ms": 20_000}


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """An image, a file that is not an image, and another image."""
    contents = {"a.png": encoded(photo(50, 40)), "b.txt": b"no image", "c.jpg": encoded(photo(40, 50), "JPEG")}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    return [tmp_path / name for name in contents]


def infer(url: str, *args: str) -> Any:
    app = CliRunner(env={"COLUMNS": "160", "NO_COLOR": "1"})
    return app.invoke(
        build_app(), ["infer", "prompts", "--url", url, "--task", "digits", "--latency-ms", "20000", *args]
    )


def test_classify_image(url: str, files: list[Path]) -> None:
    content = files[0].read_bytes()

    async def twice() -> Any:
        async with AsyncClient(url) as client:
            return await asyncio.gather(*(client.classify_image("prompts", content, **OPTIONS) for _ in range(2)))

    with Client(url) as client:
        found = client.classify_image("prompts", content, **OPTIONS)
        with pytest.raises(InvalidArgument, match="image row 0 is damaged or not an image"):
            client.classify_image("prompts", files[1].read_bytes(), **OPTIONS)
        with pytest.raises(InvalidArgument, match="image: expected the bytes of a file, got str"):
            client.classify_image("prompts", str(files[0]), **OPTIONS)  # type: ignore[arg-type]
        one = client.classify_image("prompts", content, outputs=["label"], **OPTIONS)
    assert found.label is not None
    assert found.label.startswith("digits ")
    assert found.other["gamma"].item() == 2
    assert (one.label, one.probabilities, dict(one.other)) == (found.label, None, {})
    for each in asyncio.run(twice()):
        np.testing.assert_allclose(each.logits, found.logits, atol=1e-5)


def test_infer_shows_one_answer_per_file(url: str, files: list[Path]) -> None:
    done = infer(url, "--image", str(files[0]), "-i", str(files[2]))
    assert done.exit_code == 0, done.output
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in done.stdout.splitlines() if line[:1] == "│"]
    assert len(rows) == 2
    for row in rows:
        assert row[1].startswith("digits ")
        assert (0 < float(row[2]) <= 1, float(row[3]) > 0, row[4]) == (True, True, "2")


def test_infer_continues_after_an_invalid_file(url: str, files: list[Path]) -> None:
    done = infer(url, "--json", *(part for file in files for part in ("--image", str(file))))
    assert done.exit_code == 1
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [answer["image"] for answer in answers] == list(map(str, files))
    assert answers[1]["error"]["code"] == "INVALID_ARG"
    assert answers[2]["outputs"]["gamma"] == [2]
    assert "text" not in answers[0]
    assert "image 2 of 3: INVALID_ARG" in done.output


def test_infer_refuses_texts_together_with_images(files: list[Path], tmp_path: Path) -> None:
    both = infer("http://127.0.0.1:1", "--image", str(files[0]), "--text", "a")
    assert both.exit_code == 2
    assert "--image cannot be combined with --text, --pair or --file" in both.output
    assert infer("http://127.0.0.1:1", "--image", str(tmp_path / "absent.png")).exit_code == 2


def load(url: str, *args: str) -> Any:
    common = ("load", "prompts", "--url", url, "-r", "50", "-n", "12", "--late-ms", "60000")
    return CliRunner(env={"COLUMNS": "160", "NO_COLOR": "1"}).invoke(build_app(), [*common, *args])


MIX = ("--mix", "task=digits latency_ms=20000,task=animals latency_ms=20000", "--json")


def test_load_of_generated_images(served: Served) -> None:
    done = load(served.url("grpc"), "--image-size", "40x30", *MIX)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["total"]["within_slo"] == 12


def test_load_of_files(served: Served, files: list[Path]) -> None:
    # One of the folder's three files is not an image.
    done = load(served.url("http"), "--image", str(files[0].parent), *MIX)
    assert done.exit_code == 1
    total = json.loads(done.stdout)["total"]
    assert total["errors"] == {"INVALID_ARG": 4}
    assert total["within_slo"] == 8


def test_load_reports_that_the_model_requires_images(served: Served) -> None:
    done = load(served.url("grpc"))
    assert done.exit_code == 2
    assert done.stderr == (
        "model 'prompts' has the inputs image, pixel_values: give --image FILE or --image-size WxH; nothing was sent\n"
    )


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--image-size", "40"], "expected WIDTHxHEIGHT in pixels"),
        (["--image-size", "0x40"], "expected WIDTHxHEIGHT in pixels"),
        (["--image-size", "4x4", "--image", "."], "exclude each other"),
        (["--image-size", "4x4", "--ids"], "cannot be combined with --image-size"),
        (["--image", "."], "the folder has no files"),
        (["--image", "./absent.png"], "cannot be read"),
    ],
)
def test_load_refuses_invalid_images_and_options(
    args: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = load("http://127.0.0.1:1", *args)
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.replace("│", " ").split())
