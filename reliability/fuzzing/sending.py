"""Sends malformed requests, and records how each was answered."""

from __future__ import annotations

import http.client
import random
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
from tritonclient.grpc import service_pb2_grpc

from reliability.fuzzing.mutations import HARM_THEIR_BATCH, MUTATIONS, Mutation, valid
from reliability.fuzzing.protocols import GRPC, HTTP, generation_grpc, generation_http
from reliability.fuzzing.wire import HttpRequest, WireRequest, to_grpc, to_http
from tidal_client.errors import from_stream

T = TypeVar("T")
_TIMEOUT_S = 60.0
_CLIENT_FAULTS = {
    "INVALID_ARGUMENT", "NOT_FOUND", "ALREADY_EXISTS", "OUT_OF_RANGE", "FAILED_PRECONDITION", "PERMISSION_DENIED",
}  # fmt: skip
_OWN = re.compile(
    r"failed to parse the request JSON buffer|Unable to parse|attempt to (access|get)|not found in the JSON"
)
_STREAM_FAULTS = ("INVALID_ARG", "NOT_FOUND")
# Shares of requests with mutations of the protocol, and of requests to generate text.
_RAW, _GENERATED = 0.2, 0.12


@dataclass(frozen=True, slots=True)
class MalformedOutcome:
    """The outcome of a malformed request.

    Attributes:
        what: Model and mutation.
        kept: Whether it was rejected with an error of the class 4xx.
        answer: Status or code, with the message.
        own: Whether tritonserver's HTTP front end rejected unreadable JSON with status 500, which Tidal cannot change.
    """

    what: str
    rejected: bool
    answer: str
    own: bool = False


def harmless(model: str) -> tuple[Mutation, ...]:
    """Return the mutations of requests to a model that do not affect other requests in the batch.

    Args:
        model: Name of the model.
    """
    return tuple(each for each in MUTATIONS[model] if model == "engine" or each not in HARM_THEIR_BATCH)


def harmful(model: str) -> tuple[Mutation, ...]:
    """Return the other mutations.

    Args:
        model: Name of the model.
    """
    return tuple(each for each in MUTATIONS[model] if each not in harmless(model))


def mismatched_requests(seed: int, count: int, models: Collection[str] = MUTATIONS) -> Iterator[tuple[str, Any]]:
    """Yield gRPC requests whose texts or images are longer or shorter than declared.

    Args:
        seed: Seed of the requests.
        count: Number of requests.
        models: Names of the models.
    """
    draw = random.Random(seed)
    able = [model for model in MUTATIONS if model in models and harmful(model)]
    for number in range(count):
        model = draw.choice(able)
        wire, mutation = valid(model, number), draw.choice(harmful(model))
        mutation(draw, wire)
        yield f"{model} {mutation.__name__}", to_grpc(wire)


def http_requests(seed: int, count: int, models: Collection[str] = MUTATIONS) -> Iterator[tuple[str, HttpRequest]]:
    """Yield malformed HTTP requests with their descriptions, the same ones for the same seed.

    Args:
        seed: Seed of the requests.
        count: Number of requests.
        models: Names of the models that answer once; the model that generates always gets its share.
    """
    return _requests(seed, count, models, generation_http, HTTP, to_http)


def grpc_requests(seed: int, count: int, models: Collection[str] = MUTATIONS) -> Iterator[tuple[str, Any]]:
    """Yield malformed gRPC requests, with arguments as for `http_requests`."""
    return _requests(seed, count, models, generation_grpc, GRPC, _carried_by_grpc)


def _requests(
    seed: int,
    count: int,
    models: Collection[str],
    generation: Callable[[random.Random], T],
    raws: Sequence[Callable[[random.Random, WireRequest], T]],
    carry: Callable[[WireRequest], T],
) -> Iterator[tuple[str, T]]:
    draw, able = random.Random(seed), [model for model in MUTATIONS if model in models]
    for number in range(count):
        kind = draw.random()
        if kind < _GENERATED:
            yield "generation", generation(draw)
            continue
        model = draw.choice(able)
        wire = valid(model, number)
        if kind < _GENERATED + _RAW:
            raw = draw.choice(raws)
            yield f"{model} {raw.__name__}", raw(draw, wire)
            continue
        mutation = draw.choice(harmless(model))
        mutation(draw, wire)
        yield f"{model} {mutation.__name__}", carry(wire)


def _carried_by_grpc(wire: WireRequest) -> Any:
    """Return the request, or one without inputs if protobuf cannot represent it."""
    try:
        return to_grpc(wire)
    except ValueError:
        return to_grpc(type(wire)(wire.model, []))


def send_http(address: str, requests: Iterator[tuple[str, HttpRequest]]) -> list[MalformedOutcome]:
    """Send requests over one connection, which is reopened if the server closes it.

    Args:
        address: Address of the server, `host:port`.
        requests: Descriptions and requests.
    """
    connection = http.client.HTTPConnection(address, timeout=_TIMEOUT_S)
    found = []
    for what, request in requests:
        try:
            connection.request(request.method, request.path, request.body, request.headers)
            response = connection.getresponse()
            status, body = response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            found.append(MalformedOutcome(what, False, f"{type(error).__name__}: {error}"))
            continue
        output = body[:200].decode(errors="replace")
        found.append(
            MalformedOutcome(
                what, 400 <= status < 500, f"{status} {output}", status == 500 and _OWN.search(output) is not None
            )
        )
    connection.close()
    return found


def send_grpc(address: str, requests: Iterator[tuple[str, Any]]) -> list[MalformedOutcome]:
    """Send requests over one channel, requests to generate text through a stream each.

    Args:
        address: Address of the server, `host:port`.
        requests: Descriptions and requests.
    """
    options = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))
    found = []
    with grpc.insecure_channel(address, options=options) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for what, request in requests:
            try:
                if what == "generation":
                    answers = stub.ModelStreamInfer(iter([request]), timeout=_TIMEOUT_S)
                    output = [each.error_message for each in answers]
                    code = from_stream(output[0]).code if output and output[0] else "OK"
                    found.append(MalformedOutcome(what, code in _STREAM_FAULTS, f"{code} {output[:1]}"[:200]))
                else:
                    stub.ModelInfer(request, timeout=_TIMEOUT_S)
                    found.append(MalformedOutcome(what, False, "OK"))
            except grpc.RpcError as error:
                code = error.code().name
                found.append(MalformedOutcome(what, code in _CLIENT_FAULTS, f"{code} {error.details()}"[:200]))
    return found
