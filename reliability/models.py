"""A repository with a tiny model of every backend, and what each one is asked."""

from __future__ import annotations

import io
import json
import random
import shutil
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from PIL import Image

from testing.cascades import SMALL, Cascades
from testing.decoders import write_decoder
from testing.models import make_tiny_classifier
from testing.pets import Base
from testing.pets import build as build_pets
from testing.vision import Vision, publish_tiny
from tidal_builders.arlo.build import build_arlo
from tidal_builders.flover.build import build_flover
from tidal_builders.specs import load_spec, parse_spec
from tidal_client import AsyncClient

MAX_LENGTH = 64
# What `split` decides by, whatever this machine measured: milliseconds of a query padded to each length.
LATENCIES_MS = {16: 2.0, 32: 4.0, MAX_LENGTH: 8.0}
ENGINE_LENGTH = 16
TASK, IMAGE_TASK = "bitfit_0", "digits"
# More than these wait for `heavy`, and others are refused at once.
HEAVY_QUEUE = 16
_WORDS = ("good", "bad", "fine", "great", "awful", "book", "find", "show", "hotel", "train", "movie", "story", "music")

#: Asks a model a question, which one by its number.
Ask = Callable[[AsyncClient, int], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Model:
    """A served model, and how it is asked. `system` is empty where Triton itself counts its requests."""

    name: str
    system: str
    ask: Ask


@dataclass(frozen=True, slots=True)
class Repository:
    """What was built: the folder that is served, who is asked in it, and what others are made from."""

    folder: Path
    models: tuple[Model, ...]
    writer_spec: Path
    base: Base
    vision: Vision | None


def text(number: int, longest: int = MAX_LENGTH - 2) -> str:
    """A text, the same one for the same number."""
    draw = random.Random(number)
    return " ".join(draw.choices(_WORDS, k=draw.randint(1, longest)))


@cache
def png(number: int) -> bytes:
    """A small image, one of a few."""
    draw = np.random.default_rng(number % 7)
    content = io.BytesIO()
    Image.fromarray(draw.integers(0, 256, (40, 48, 3), np.uint8)).save(content, "PNG")
    return content.getvalue()


def engine_inputs(number: int, length: int = ENGINE_LENGTH) -> Mapping[str, Any]:
    """What an `engine` model of the tiny classifier takes."""
    ids = np.random.default_rng(number).integers(5, 100, (1, length), np.int64)
    return {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}


async def _write(client: AsyncClient, number: int) -> None:
    prompt = text(number, 4)
    if number % 2:
        await client.generate("writer", prompt, max_tokens=6)
        return
    async for _ in client.generate_stream("writer", prompt, max_tokens=6):
        pass


MODELS = (
    Model(SMALL, "arlo", lambda client, n: client.classify(SMALL, text(n), outputs=["label"])),
    Model("split", "arlo", lambda client, n: client.classify("split", text(n, 8), outputs=["label"])),
    Model("cascade", "tabi", lambda client, n: client.classify("cascade", text(n), outputs=["label"])),
    Model("tasks", "pets", lambda client, n: client.classify("tasks", text(n), outputs=["label"], task=TASK)),
    Model(
        "images", "otas", lambda client, n: client.classify_image("images", png(n), outputs=["label"], task=IMAGE_TASK)
    ),
    Model("writer", "flover", _write),
    Model("engine", "", lambda client, n: client.infer("engine", engine_inputs(n))),
)
#: Those that the short form has.
FEW = (SMALL, "tasks", "writer")


def build_all(folder: Path, *, heavy: bool) -> Repository:
    """Build every model anew: half a minute. With `heavy` also one that takes long enough to be overloaded."""
    found = build_few(folder)
    served = found.folder
    # Both levels are one model: what they answer does not matter here.
    Cascades(folder / "levels").publish(served, "cascade", 0.6, models=(SMALL, SMALL))
    source = found.base.source
    _build(source, served, "split", lengths=[*LATENCIES_MS], placement="partitioned", slo_ms=400, max_batch=1)
    _fix_profile(served / "split/1/manifest.json")
    shutil.copytree(served / f"split_len{ENGINE_LENGTH}", served / "engine")
    _change(served / "engine/1/manifest.json", front=None)  # it stands by itself
    unpinned = 'parameters { key: "pin" value { string_value: "false" } }\n'
    (served / "engine/config.pbtxt").write_text('backend: "engine"\n' + unpinned)
    (folder / "otas").mkdir()
    vision = publish_tiny(folder / "otas")
    vision.add(vision.copy(served, "images"), IMAGE_TASK, 10)
    if heavy:
        add_heavy(folder, served)
    return replace(found, models=MODELS, vision=vision)


def build_few(folder: Path) -> Repository:
    """Build the models that are cheapest, of three backends: some seconds."""
    served, levels = folder / "models", folder / "levels"
    served.mkdir(parents=True)
    labels = ("negative", "neutral", "positive")
    source = make_tiny_classifier(folder / SMALL, layers=1, labels=labels, max_position=MAX_LENGTH)
    outputs = ["logits", "attention_received"]
    _build(source, levels, SMALL, lengths=[ENGINE_LENGTH, MAX_LENGTH], form="dynamic", outputs=outputs)
    Cascades(levels).copy_level(served, SMALL)
    base = Base(source, folder / "base", build_pets(source, folder / "base", "base"))
    base.add(base.copy(served, "tasks"), "bitfit", 0)
    spec = _writer(folder, served)
    return Repository(served, tuple(model for model in MODELS if model.name in FEW), spec, base, None)


def add_heavy(folder: Path, served: Path) -> None:
    """Add a classifier of 4 layers, 512 wide, whose queries of 128 tokens take some tens of milliseconds.

    So long that clients, who share the processor with the server, can send five times as many as it answers. The
    precision is named because a build on a busy machine may choose another one, which takes half or twice the time.
    """
    source = make_tiny_classifier(folder / "heavy", layers=4, hidden=512, max_position=128)
    _build(source, served, "heavy", lengths=[128], form="static", precision="fp32", tolerance=1.0)
    queue = f'parameters {{ key: "max_queue_size" value {{ string_value: "{HEAVY_QUEUE}" }} }}\n'
    with (served / "heavy/config.pbtxt").open("a") as config:
        config.write("\n" + queue)


def _build(source: Path, repository: Path, name: str, **fields: Any) -> None:
    spec = {"kind": "arlo", "name": name, "model": str(source), "max_batch": 4} | fields
    found = build_arlo(parse_spec(spec, "reliability"), repository, spec_file=Path(f"{name}.yaml"))
    assert found.outcome == "published", found.reasons


def _fix_profile(file: Path) -> None:
    manifest = json.loads(file.read_text())
    profile = manifest["profile"]
    for name in ("median_ms", "p95_ms"):
        profile[name] = [[next(ms for n, ms in LATENCIES_MS.items() if n >= at)] for at in profile["lengths"]]
    profile["batches"] = [1]
    file.write_text(json.dumps(manifest))


def _change(file: Path, **fields: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def _writer(folder: Path, served: Path) -> Path:
    source = write_decoder(folder / "writer")
    spec_file = folder / "writer.yaml"
    fields = {"kind": "flover", "name": "writer", "model": str(source), "max_concurrency": 4, "threads": 1}
    spec_file.write_text(yaml.safe_dump({**fields, "profile_seconds": 0.01}))
    spec: Any = load_spec(spec_file)
    build_flover(spec, served, spec_file=spec_file, force=False)
    return spec_file
