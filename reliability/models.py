"""A repository with a tiny model of every backend, and the requests to each of them."""

from __future__ import annotations

import io
import json
import random
import shutil
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import yaml
from PIL import Image

from testing.cascades import SMALL, Cascades
from testing.decoders import write_decoder
from testing.models import make_tiny_classifier
from testing.pets import Base
from testing.pets import build as build_pets
from testing.sentence_models import make_embedding_model
from testing.vision import Vision, publish_tiny
from tidal.repository.names import runtime_model
from tidal_builders.arlo.build import build_arlo
from tidal_builders.arlo.spec import ArloSpec
from tidal_builders.flover.build import build_flover
from tidal_builders.specs import load_spec, parse_spec
from tidal_client import AsyncClient

MAX_LENGTH = 64
# The partitioned model.
SPLIT = "split"
# Profile of `split`, independent of this machine: milliseconds of a query by padded length.
LATENCIES_MS = {16: 2.0, 32: 4.0, MAX_LENGTH: 8.0}
ENGINE_LENGTH = 16
# Models that only the scenarios of the gateway use: a decoder with long texts and a chat template, an embedding model.
CHAT, EMBEDDER = "talker", "embedder"
CHAT_SLOTS, CHAT_POSITIONS = 4, 4096
TASK, IMAGE_TASK = "bitfit_0", "digits"
# Queue limit of `heavy`; requests beyond it are rejected at once.
HEAVY_QUEUE = 16
_WORDS = ("good", "bad", "fine", "great", "awful", "book", "find", "show", "hotel", "train", "movie", "story", "music")

#: Sends the query with a number to a model.
SendRequest = Callable[[AsyncClient, int], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A served model, and how to send it a request.

    Attributes:
        name: Name of the model.
        system: System of its metrics; empty if Triton itself counts its requests.
        send: Sends the query with a number.
    """

    name: str
    system: str
    send: SendRequest


@dataclass(frozen=True, slots=True)
class BuiltRepository:
    """The built models.

    Attributes:
        folder: Model repository.
        models: Models that receive requests.
        writer_spec: Spec file of `writer`.
        base: Base of the text tasks.
        vision: Model of the image tasks; None in the quick form.
    """

    folder: Path
    models: tuple[ServedModel, ...]
    writer_spec: Path
    base: Base
    vision: Vision | None


def text(number: int, longest: int = MAX_LENGTH - 2) -> str:
    """Return a text, the same one for the same number.

    Args:
        number: Seed of the text.
        longest: Maximum number of words.
    """
    draw = random.Random(number)
    return " ".join(draw.choices(_WORDS, k=draw.randint(1, longest)))


@cache
def png(number: int) -> bytes:
    """Return a small PNG, one of seven."""
    draw = np.random.default_rng(number % 7)
    content = io.BytesIO()
    Image.fromarray(draw.integers(0, 256, (40, 48, 3), np.uint8)).save(content, "PNG")
    return content.getvalue()


def engine_inputs(number: int, length: int = ENGINE_LENGTH) -> Mapping[str, Any]:
    """Return the inputs of an `engine` model of the tiny classifier.

    Args:
        number: Seed of the token ids.
        length: Number of tokens.
    """
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
    ServedModel(SMALL, "arlo", lambda client, n: client.classify(SMALL, text(n), outputs=["label"])),
    ServedModel(SPLIT, "arlo", lambda client, n: client.classify(SPLIT, text(n, 8), outputs=["label"])),
    ServedModel("cascade", "tabi", lambda client, n: client.classify("cascade", text(n), outputs=["label"])),
    ServedModel("tasks", "pets", lambda client, n: client.classify("tasks", text(n), outputs=["label"], task=TASK)),
    ServedModel(
        "images", "otas", lambda client, n: client.classify_image("images", png(n), outputs=["label"], task=IMAGE_TASK)
    ),
    ServedModel("writer", "flover", _write),
    ServedModel("engine", "", lambda client, n: client.infer("engine", engine_inputs(n))),
)
#: The models of the quick form.
FEW = (SMALL, "tasks", "writer")


def build_all(folder: Path, *, heavy: bool) -> BuiltRepository:
    """Build all models: half a minute.

    Args:
        folder: Folder to build in.
        heavy: Whether to build a model that is slow enough to be overloaded.
    """
    found = build_few(folder)
    served = found.folder
    # Both levels are one model: their answers do not matter here.
    Cascades(folder / "levels").publish(served, "cascade", 0.6, models=(SMALL, SMALL))
    add_split(found)
    shutil.copytree(served / runtime_model(SPLIT, ENGINE_LENGTH), served / "engine")
    _change(served / "engine/1/manifest.json", front=None)  # it is independent of its former front
    unpinned = 'parameters { key: "pin" value { string_value: "false" } }\n'
    (served / "engine/config.pbtxt").write_text('backend: "engine"\n' + unpinned)
    (folder / "otas").mkdir()
    vision = publish_tiny(folder / "otas")
    vision.add(vision.copy(served, "images"), IMAGE_TASK, 10)
    if heavy:
        add_heavy(folder, served)
    return replace(found, models=MODELS, vision=vision)


def build_few(folder: Path) -> BuiltRepository:
    """Build the three models of the quick form: some seconds.

    Args:
        folder: Folder to build in.
    """
    served, levels = folder / "models", folder / "levels"
    served.mkdir(parents=True)
    labels = ("negative", "neutral", "positive")
    source = make_tiny_classifier(folder / SMALL, layers=1, labels=labels, max_position=MAX_LENGTH)
    outputs = ["logits", "attention_received"]
    _build(source, levels, SMALL, lengths=[ENGINE_LENGTH, MAX_LENGTH], form="dynamic", outputs=outputs)
    Cascades(levels).copy_level(served, SMALL)
    base = Base(source, folder / "base", build_pets(source, folder / "base", "base"))
    base.add(base.copy(served, "tasks"), "bitfit", 0)
    spec = _decoder(folder, served, write_decoder(folder / "writer"), "writer", 4)
    return BuiltRepository(served, tuple(model for model in MODELS if model.name in FEW), spec, base, None)


def add_split(built: BuiltRepository) -> None:
    """Add the partitioned model `split` of the tasks' base.

    Args:
        built: The built models.
    """
    lengths = [*LATENCIES_MS]
    fields = {"placement": "partitioned", "lengths": lengths, "slo_ms": 400, "max_batch": 1, "contexts": len(lengths)}
    _build(built.base.source, built.folder, SPLIT, **fields)
    _fix_profile(built.folder / SPLIT / "1/manifest.json")


def add_heavy(folder: Path, served: Path) -> None:
    """Add a classifier of 4 layers, 512 wide, whose queries of 128 tokens take some tens of milliseconds.

    That is slow enough for clients on the same processor to send five times as many queries as it answers. The
    precision is fixed because a build on a busy machine may choose another one, which takes half or twice the time.

    Args:
        folder: Folder to create the source model in.
        served: Model repository.
    """
    source = make_tiny_classifier(folder / "heavy", layers=4, hidden=512, max_position=128)
    _build(source, served, "heavy", lengths=[128], form="static", precision="fp32", tolerance=1.0)
    queue = f'parameters {{ key: "max_queue_size" value {{ string_value: "{HEAVY_QUEUE}" }} }}\n'
    with (served / "heavy/config.pbtxt").open("a") as config:
        config.write("\n" + queue)


def add_gateway_models(folder: Path, served: Path) -> None:
    """Add the models that only the scenarios of the gateway use, unless they are there.

    Args:
        folder: Folder to create the source models in.
        served: Model repository.
    """
    if (served / CHAT).exists():
        return
    _build(make_embedding_model(folder / EMBEDDER), served, EMBEDDER, lengths=[ENGINE_LENGTH], form="dynamic")
    source = write_decoder(folder / CHAT, n_positions=CHAT_POSITIONS)
    (source / "chat_template.jinja").write_text("{% for each in messages %}{{ each.content }} {% endfor %}")
    _decoder(folder, served, source, CHAT, CHAT_SLOTS)


def _build(source: Path, repository: Path, name: str, **fields: Any) -> None:
    spec = {"kind": "arlo", "name": name, "model": str(source), "max_batch": 4} | fields
    found = build_arlo(cast(ArloSpec, parse_spec(spec, "reliability")), repository, spec_file=Path(f"{name}.yaml"))
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


def _decoder(folder: Path, served: Path, source: Path, name: str, slots: int) -> Path:
    spec_file = folder / f"{name}.yaml"
    fields = {"kind": "flover", "name": name, "model": str(source), "max_concurrency": slots, "threads": 1}
    spec_file.write_text(yaml.safe_dump({**fields, "profile_seconds": 0.01}))
    spec: Any = load_spec(spec_file)
    build_flover(spec, served, spec_file=spec_file, force=False)
    return spec_file
