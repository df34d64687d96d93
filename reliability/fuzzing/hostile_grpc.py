"""gRPC messages that try to exhaust a server: by size, by number of fields, or by invalid protobuf."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from tritonclient.grpc import service_pb2 as messages

from reliability.fuzzing.buffers import PATTERNS
from reliability.fuzzing.mutations import text_wire, valid
from reliability.fuzzing.wire import element, to_grpc

_SIZES = [4_200_000] * 8 + [5_000_000] * 8 + [16_000_000] * 2 + [64_000_000]
_COUNTS = (100, 10_000)


@dataclass(frozen=True, slots=True)
class HostileGrpcMessage:
    """A message to `ModelInfer`.

    Attributes:
        what: Kind of the message, for the report.
        content: Bytes to send, a protobuf message or not.
        metadata: Metadata of the call.
    """

    what: str
    content: bytes
    metadata: tuple[tuple[str, str], ...] = ()


Kind = Callable[[random.Random, str], HostileGrpcMessage]


def many(draw: random.Random, model: str) -> HostileGrpcMessage:
    """Make a message with up to ten thousand inputs, outputs, options, axes or rows."""
    return HostileGrpcMessage("many of one thing", _many(draw.randrange(5), draw.choice(_COUNTS), model))


def huge_shape(draw: random.Random, model: str) -> HostileGrpcMessage:
    """Make a message with a shape that exceeds any memory and a few bytes of data."""
    request = messages.ModelInferRequest(model_name=model)
    shape = draw.choice(([1, 1 << 33], [1 << 40, 1 << 40], [64, 1 << 57], [1 << 62, 2]))
    tensor = request.inputs.add(name="input_ids", datatype="INT64", shape=shape)
    if draw.random() < 0.5:
        tensor.contents.int64_contents.append(1)
    else:
        request.raw_input_contents.append(bytes(8))
    return HostileGrpcMessage("huge shape", request.SerializeToString())


def long_option(draw: random.Random, model: str) -> HostileGrpcMessage:
    """Make a message with an option whose name or value has up to 10 MB."""
    size = draw.choice((300, 100_000, 1_000_000)) if draw.random() < 0.95 else 10_000_000
    return HostileGrpcMessage("long option", _long_option(draw.randrange(4), size, model))


def no_message(draw: random.Random, model: str) -> HostileGrpcMessage:
    """Make bytes that are not a protobuf message, or the first half of one."""
    whole = to_grpc(valid(model, 1)).SerializeToString()
    content = draw.choice((whole[: len(whole) // 2], draw.randbytes(1000), b"\xff" * 1000, b"\x0a\xff\xff\xff\xff\x0f"))
    return HostileGrpcMessage("no message", content)


def metadata(draw: random.Random, model: str) -> HostileGrpcMessage:
    """Make a message with many entries of metadata, or a long one."""
    entries = draw.choice((
        tuple((f"key-{number}", "value") for number in range(draw.choice((50, 1000)))),
        (("long", "v" * draw.choice((5_000, 100_000))),),
    ))  # fmt: skip
    return HostileGrpcMessage("metadata", to_grpc(valid(model, 1)).SerializeToString(), entries)


def large(draw: random.Random, model: str) -> HostileGrpcMessage:
    """Make a message above 4 MB: a text, or bytes that are not a message."""
    size = draw.choice(_SIZES)
    if draw.random() < 0.2:
        return HostileGrpcMessage("large, no message", _repeated(draw.choice(("letters", "zeros", "emoji")), size))
    return HostileGrpcMessage("large text", _large(draw.choice(("letters", "emoji", "lines", "brackets")), size, model))


# None is cancelled at once: that can end tritonserver 2.51, see docs/explanation/reliability.md.
SMALL_KINDS: tuple[Kind, ...] = (many, huge_shape, long_option, no_message, metadata)


def hostile_grpc(seed: int, small: int, big: int, models: Collection[str]) -> Iterator[HostileGrpcMessage]:
    """Yield hostile messages, the same ones for the same seed.

    Args:
        seed: Seed of the messages.
        small: Number of messages of `SMALL_KINDS`.
        big: Number of messages of `large`, in random order with the small ones.
        models: Names of the models to send them to.
    """
    draw, names = random.Random(seed), sorted(models)
    order = [True] * big + [False] * small
    draw.shuffle(order)
    for is_large in order:
        yield (large if is_large else draw.choice(SMALL_KINDS))(draw, draw.choice(names))


@cache
def _repeated(pattern: str, size: int) -> bytes:
    unit = PATTERNS[pattern]
    return unit * (size // len(unit))


def _large(pattern: str, size: int, model: str) -> bytes:
    """Return a request with a text of a given size."""
    text = _repeated(pattern, size)
    request = to_grpc(text_wire(model, 0))
    request.raw_input_contents[0] = element(text)
    return bytes(request.SerializeToString())


@cache
def _many(which: int, count: int, model: str) -> bytes:
    request: Any = to_grpc(text_wire(model, 0))
    match which:
        case 0:
            for number in range(count):
                request.inputs.add(name=f"x{number}", datatype="BYTES", shape=[1, 1])
                request.raw_input_contents.append(element(b"a"))
        case 1:
            for number in range(count):
                request.outputs.add(name=f"y{number}")
        case 2:
            for number in range(count):
                request.parameters[f"option_{number}"].int64_param = number
        case 3:
            request.inputs[0].shape[:] = [1] * count
        case _:
            request.inputs[0].shape[:] = [count, 1]
            request.raw_input_contents[0] = element(b"a") * count
    return bytes(request.SerializeToString())


@cache
def _long_option(which: int, size: int, model: str) -> bytes:
    request: Any = to_grpc(text_wire(model, 0))
    match which:
        case 0:
            request.parameters["task"].string_param = "x" * size
        case 1:
            request.parameters["stop"].string_param = "[" * size
        case 2:
            request.parameters["x" * size].string_param = "x"
        case _:
            request.model_name = "x" * size
    return bytes(request.SerializeToString())
