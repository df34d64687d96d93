"""Malformed requests sent, and how each was answered."""

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
from reliability.fuzzing.wire import HttpRequest, Wire, to_grpc, to_http
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
# Shares of requests that only a protocol can have, and of those to the model that generates.
_RAW, _GENERATED = 0.2, 0.12


@dataclass(frozen=True, slots=True)
class Refusal:
    """What was sent, and how it was answered; `kept` when that was an error of the class 4xx.

    tritonserver's HTTP front end answers JSON that it cannot read with status 500, which is not Tidal's to change:
    `own` is for these.
    """

    what: str
    kept: bool
    answer: str
    own: bool = False


def harmless(model: str) -> tuple[Mutation, ...]:
    """What may be wrong with a request to a model without harm to others in its batch."""
    return tuple(each for each in MUTATIONS[model] if model == "engine" or each not in HARM_THEIR_BATCH)


def harmful(model: str) -> tuple[Mutation, ...]:
    """The rest of it."""
    return tuple(each for each in MUTATIONS[model] if each not in harmless(model))


def lying_requests(seed: int, count: int, models: Collection[str] = MUTATIONS) -> Iterator[tuple[str, Any]]:
    """Requests over gRPC whose texts or images are longer or shorter than they say."""
    draw = random.Random(seed)
    able = [model for model in MUTATIONS if model in models and harmful(model)]
    for number in range(count):
        model = draw.choice(able)
        wire, mutation = valid(model, number), draw.choice(harmful(model))
        mutation(draw, wire)
        yield f"{model} {mutation.__name__}", to_grpc(wire)


def http_requests(seed: int, count: int, models: Collection[str] = MUTATIONS) -> Iterator[tuple[str, HttpRequest]]:
    """Malformed requests over HTTP, the same for the same seed, each with a word on what is wrong.

    Args:
        seed: chooses them.
        count: how many.
        models: whom they are for, of those that answer once; the one that generates gets its share in any case.
    """
    return _requests(seed, count, models, generation_http, HTTP, to_http)


def grpc_requests(seed: int, count: int, models: Collection[str] = MUTATIONS) -> Iterator[tuple[str, Any]]:
    """The same over gRPC."""
    return _requests(seed, count, models, generation_grpc, GRPC, _carried_by_grpc)


def _requests(
    seed: int,
    count: int,
    models: Collection[str],
    generation: Callable[[random.Random], T],
    raws: Sequence[Callable[[random.Random, Wire], T]],
    carry: Callable[[Wire], T],
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


def _carried_by_grpc(wire: Wire) -> Any:
    """The request, or one without inputs where protobuf itself cannot carry it."""
    try:
        return to_grpc(wire)
    except ValueError:
        return to_grpc(type(wire)(wire.model, []))


def send_http(address: str, requests: Iterator[tuple[str, HttpRequest]]) -> list[Refusal]:
    """Send them over one connection, which is opened anew where the server closes it."""
    connection = http.client.HTTPConnection(address, timeout=_TIMEOUT_S)
    found = []
    for what, request in requests:
        try:
            connection.request(request.method, request.path, request.body, request.headers)
            response = connection.getresponse()
            status, body = response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            found.append(Refusal(what, False, f"{type(error).__name__}: {error}"))
            continue
        said = body[:200].decode(errors="replace")
        found.append(
            Refusal(what, 400 <= status < 500, f"{status} {said}", status == 500 and _OWN.search(said) is not None)
        )
    connection.close()
    return found


def send_grpc(address: str, requests: Iterator[tuple[str, Any]]) -> list[Refusal]:
    """Send them over one channel; those for a text through a stream each."""
    options = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))
    found = []
    with grpc.insecure_channel(address, options=options) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for what, request in requests:
            try:
                if what == "generation":
                    answers = stub.ModelStreamInfer(iter([request]), timeout=_TIMEOUT_S)
                    said = [each.error_message for each in answers]
                    code = from_stream(said[0]).code if said and said[0] else "OK"
                    found.append(Refusal(what, code in _STREAM_FAULTS, f"{code} {said[:1]}"[:200]))
                else:
                    stub.ModelInfer(request, timeout=_TIMEOUT_S)
                    found.append(Refusal(what, False, "OK"))
            except grpc.RpcError as error:
                code = error.code().name
                found.append(Refusal(what, code in _CLIENT_FAULTS, f"{code} {error.details()}"[:200]))
    return found
