"""Mutations: each changes a valid request so that it cannot be accepted."""

from __future__ import annotations

import io
import random
import struct
import zlib
from collections.abc import Callable

import numpy as np
from PIL import Image

from reliability.fuzzing.wire import WireRequest, WireTensor, element
from reliability.models import ENGINE_LENGTH, IMAGE_TASK, TASK, engine_inputs, png, text
from testing.cascades import SMALL

Mutation = Callable[[random.Random, WireRequest], None]

_NAMES = ("", "x", "text_inputs", "../../etc/passwd", "TEXT_INPUT", "é" * 50, "a" * 5000, "%s%n", "'; --", "\x01")
_MODELS = ("no-such-model", "..", "%2e%2e", "c_small/", "a" * 3000, "é", "models", "c_small\x01", "-1")
_VERSIONS = ("999", "abc", "x1", "9" * 30, "../1")
_OPTIONS: tuple[tuple[str, str | int | float | bool], ...] = (
    ("latency_ms", "nan"), ("latency_ms", float("inf")), ("latency_ms", -1), ("latency_ms", 0), ("latency_ms", True),
    ("latency_ms", "soon"), ("latency_ms", 1e300), ("utility", -1), ("utility", "inf"), ("utility", "1e400"),
    ("max_tokens", 0), ("max_tokens", 1.5), ("max_tokens", 1 << 40), ("temperature", -0.1), ("temperature", "hot"),
    ("top_k", -1), ("top_p", 0), ("top_p", 1.01), ("seed", -1), ("seed", "9" * 400), ("stop", "[1"), ("stop", "[]"),
    ("stop", ""), ("stop", "x" * 300), ("stop", 5), ("task", ""), ("task", "x" * 300), ("task", 7), ("accuracy", 2),
    ("max_level", 0), ("max_level", "two"), ("repetition_penalty", 0), ("latency", 5), ("Task", "x"), ("", 1),
    ("a" * 4000, "b"), ("__class__", "x"), ("latency_ms\x00", "soon"),
)  # fmt: skip
_TASKS = ("no-such-task", "..", "../../etc/passwd", "a/b", ".", "é" * 60, "tasks\x00", "bitfit_0/", "-", "CON", "%00")


def text_wire(model: str, number: int) -> WireRequest:
    """Return a valid request with a text."""
    return WireRequest(model, [WireTensor("text_input", "BYTES", [1, 1], element(text(number).encode()))])


def valid(model: str, number: int) -> WireRequest:
    """Return a valid request to one of the models that answer once."""
    if model == "images":
        image = WireTensor("image", "BYTES", [1, 1], element(png(number)))
        return WireRequest(model, [image], parameters={"task": IMAGE_TASK})
    if model == "engine":
        inputs = engine_inputs(number).items()
        return WireRequest(
            model, [WireTensor(name, "INT64", list(array.shape), array.tobytes()) for name, array in inputs]
        )
    wire = text_wire(model, number)
    if model == "tasks":
        wire.parameters["task"] = TASK
    return wire


def unknown_model(draw: random.Random, wire: WireRequest) -> None:
    """Use a model that does not exist."""
    wire.model = draw.choice(_MODELS)


def unknown_version(draw: random.Random, wire: WireRequest) -> None:
    """Use a version that does not exist or is not a number."""
    wire.version = draw.choice(_VERSIONS)


def unknown_input(draw: random.Random, wire: WireRequest) -> None:
    """Rename an input."""
    draw.choice(wire.inputs).name = draw.choice(_NAMES)


def no_input(draw: random.Random, wire: WireRequest) -> None:
    """Remove all inputs."""
    wire.inputs.clear()


def input_twice(draw: random.Random, wire: WireRequest) -> None:
    """Repeat an input."""
    wire.inputs.append(draw.choice(wire.inputs))


def wrong_type(draw: random.Random, wire: WireRequest) -> None:
    """Use another datatype, with content of its size."""
    tensor = draw.choice(wire.inputs)
    tensor.datatype, size = draw.choice((("FP32", 4), ("INT32", 4), ("FP16", 2), ("BOOL", 1), ("UINT64", 8)))
    tensor.content = draw.randbytes(size * int(np.prod(tensor.shape)))


def unknown_type(draw: random.Random, wire: WireRequest) -> None:
    """Use a datatype that does not exist."""
    draw.choice(wire.inputs).datatype = draw.choice(("", "FOO", "bytes", "INT65", "FP32 ", "BYTES" * 500, "é"))


def wrong_rank(draw: random.Random, wire: WireRequest) -> None:
    """Use more or fewer axes."""
    tensor = draw.choice(wire.inputs)
    tensor.shape = draw.choice(([], [tensor.shape[-1]], [*tensor.shape, 1], [1] * 20 + tensor.shape))


def wrong_size(draw: random.Random, wire: WireRequest) -> None:
    """Use a shape that does not match the content: negative, empty, larger, or beyond any memory."""
    sizes = ([-1, 1], [1, -5], [1, 3], [1 << 62, 4], [1 << 40, 1 << 40], [(1 << 63) - 1], [1, 0])
    tensor = draw.choice(wire.inputs)
    tensor.shape = list(draw.choice([size for size in sizes if size != tensor.shape]))


def too_many_rows(draw: random.Random, wire: WireRequest) -> None:
    """Send more rows than the model accepts."""
    for tensor in wire.inputs:
        rows = draw.choice((65, 100, 1000))
        tensor.content, tensor.shape = tensor.content * rows, [rows, *tensor.shape[1:]]


def cut_content(draw: random.Random, wire: WireRequest) -> None:
    """Send less content than the shape declares."""
    tensor = draw.choice(wire.inputs)
    tensor.content = tensor.content[: draw.randrange(len(tensor.content))]


def more_content(draw: random.Random, wire: WireRequest) -> None:
    """Send more content than the shape declares."""
    draw.choice(wire.inputs).content += draw.randbytes(draw.choice((1, 3, 8, 1000)))


def unknown_output(draw: random.Random, wire: WireRequest) -> None:
    """Request an output that the model does not have."""
    wire.outputs = ["label", draw.choice([name for name in _NAMES if name])]


def bad_option(draw: random.Random, wire: WireRequest) -> None:
    """Use an unknown option, or a value that is not accepted."""
    name, value = draw.choice(_OPTIONS)
    wire.parameters[name] = value


def mismatched_length(draw: random.Random, wire: WireRequest) -> None:
    """Declare a wrong length of a text, or a wrong number of texts."""
    if draw.random() < 0.3:
        wire.inputs[0].shape = draw.choice(([2, 1], [0, 1], [64, 1]))
        return
    lie = draw.choice((0xFFFFFFFF, 0x7FFFFFFF, 0x80000000, 1000, 2))
    wire.inputs[0].content = struct.pack("<I", lie) + b"abc"


def not_unicode(draw: random.Random, wire: WireRequest) -> None:
    """Send a text that is not valid UTF-8."""
    bad = draw.choice((b"\xff\xfe", b"\xc3", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80", b"\xc0\x80", b"\x80"))
    place = draw.randint(0, 4)
    wire.inputs[0].content = element(b"good"[:place] + bad + b"good"[place:])


def too_long(draw: random.Random, wire: WireRequest) -> None:
    """Send a text longer than the model's maximum length."""
    words = draw.choice((100, 1000, 30_000, 200_000))
    wire.inputs[0].content = element(b"good " * words)


def no_such_task(draw: random.Random, wire: WireRequest) -> None:
    """Use a task that does not exist, or none."""
    wire.parameters["task"] = draw.choice(_TASKS)
    if draw.random() < 0.1:
        del wire.parameters["task"]


def bad_ids(draw: random.Random, wire: WireRequest) -> None:
    """Send token ids outside the vocabulary, or a mask with other values than 0 and 1."""
    values = np.ones((1, ENGINE_LENGTH), np.int64)
    values[0, draw.randrange(ENGINE_LENGTH)] = draw.choice((-1, -(1 << 63), (1 << 63) - 1, 1 << 31, 1 << 20))
    draw.choice(wire.inputs).content = values.tobytes()


def wrong_length(draw: random.Random, wire: WireRequest) -> None:
    """Send token ids of a length that the engine does not support."""
    length = draw.choice((1, 8, 17, 32, 5000))
    inputs = engine_inputs(1, length).items()
    wire.inputs = [WireTensor(name, "INT64", list(array.shape), array.tobytes()) for name, array in inputs]


def bad_pixels(draw: random.Random, wire: WireRequest) -> None:
    """Send pixel values that are not finite or not of the model's size."""
    values = np.zeros((1, 3, *draw.choice(((32, 32), (32, 31), (1, 1), (500, 500)))), np.float32)
    values.reshape(-1)[draw.randrange(values.size)] = draw.choice((np.nan, np.inf, -np.inf))
    wire.inputs = [WireTensor("pixel_values", "FP32", list(values.shape), values.tobytes())]


def bad_image(draw: random.Random, wire: WireRequest) -> None:
    """Send bytes that are not an image, or an image that must not be decoded."""
    wire.inputs[0].content = element(hostile_image(draw))


def hostile_image(draw: random.Random) -> bytes:
    """Return a file that is damaged, not an image, of another format, or that would decode to gigabytes."""
    good = png(draw.randrange(7))
    kinds: tuple[Callable[[], bytes], ...] = (
        lambda: b"",
        lambda: draw.randbytes(draw.choice((1, 100, 10_000, 1_000_000))),
        lambda: good[: draw.randrange(8, len(good) // 2)],
        lambda: good[:40] + draw.randbytes(200),
        lambda: _bomb(*draw.choice(((100_000, 100_000), (1 << 31, 1), (0, 5), (65_535, 65_535), (40_000, 2_000)))),
        lambda: _encoded("GIF", (20, 20)),
        lambda: _encoded("PNG", (1, 2000)),
        lambda: _encoded("JPEG", (30, 30))[:100],
        lambda: b"\xff\xd8" + b"\xff\xda\x00\x08" * 5000,
        lambda: b"<svg xmlns='http://www.w3.org/2000/svg'><image href='file:///etc/passwd'/></svg>",
        lambda: b"RIFF\xff\xff\xff\xffWEBPVP8 " + draw.randbytes(50),
    )
    return draw.choice(kinds)()


def _bomb(width: int, height: int) -> bytes:
    """Return a small PNG that declares a large size."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    content = zlib.compress(bytes(100_000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", content) + chunk(b"IEND", b"")


def _encoded(kind: str, size: tuple[int, int]) -> bytes:
    content = io.BytesIO()
    Image.new("RGB", size, "red").save(content, kind)
    return content.getvalue()


ANY: tuple[Mutation, ...] = (
    unknown_model, unknown_version, unknown_input, no_input, input_twice, wrong_type, unknown_type, wrong_rank,
    wrong_size, too_many_rows, cut_content, more_content, unknown_output, bad_option,
)  # fmt: skip
TEXTS: tuple[Mutation, ...] = (mismatched_length, not_unicode, too_long)
#: tritonserver checks BYTES behind its batcher, and answers a whole batch with the error of one request in it.
HARM_THEIR_BATCH: tuple[Mutation, ...] = (mismatched_length, cut_content, more_content)
#: Mutations of requests to each model that answers once.
MUTATIONS: dict[str, tuple[Mutation, ...]] = {
    SMALL: ANY + TEXTS,
    "split": ANY + TEXTS,
    "cascade": ANY + TEXTS,
    "tasks": (*ANY, *TEXTS, no_such_task),
    "images": (*ANY, mismatched_length, bad_image, bad_image, bad_pixels, no_such_task),
    "engine": (*ANY, bad_ids, wrong_length),
}
