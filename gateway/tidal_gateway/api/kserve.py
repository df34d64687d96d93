"""KServe's v2 protocol without model control: JSON and binary tensors, `generate`, metadata and health."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Final

import numpy as np
import pydantic_core
from tritonclient.grpc import service_pb2 as messages
from tritonclient.utils import triton_to_np_dtype

from tidal_client.codec import InferRequest
from tidal_client.errors import ConnectionFailed, Unavailable
from tidal_client.results import Array
from tidal_client.transports.grpc_messages import infer_message, response_arrays
from tidal_gateway.api.answers import EventStream, HttpAnswer, dump, event, json_answer
from tidal_gateway.api.generation import PREFIX_CHARS
from tidal_gateway.api.kserve_tensors import JSON_LENGTH, add_input, json_data, response_body, split_body
from tidal_gateway.api.options import with_headers
from tidal_gateway.api.request import ApiRequest, ModelTarget
from tidal_gateway.errors import Refusal, invalid

_TIMEOUT_S: Final = 10.0
_BINARY_OUTPUT: Final = "binary_data_output"


async def server(request: ApiRequest) -> HttpAnswer:
    """Describe the protocol."""
    return json_answer({"name": "tidal", "version": "2", "extensions": ["binary_tensor_data", "generate"]})


async def live(request: ApiRequest) -> HttpAnswer:
    """Whether the gateway answers."""
    return HttpAnswer(b"")


async def ready(request: ApiRequest) -> HttpAnswer:
    """Whether a server is up and the gateway accepts requests."""
    up = any(each.up for each in request.gateway.pool.servers) and not request.gateway.draining
    return HttpAnswer(b"", 200 if up else 503)


async def model_ready(request: ApiRequest) -> HttpAnswer:
    """Whether a server is ready to serve a model."""
    target = await request.target(request.path["model"], call=False)
    version = request.path.get("version", "")
    if version and version not in target.facts.versions:
        versions = ", ".join(target.facts.versions)
        raise Refusal(
            404, f"model '{target.name}' has no version '{version[:40]}'; it has: {versions}", code="not_found"
        )
    for each in request.gateway.pool.servers:
        if not each.serves(target.name):
            continue
        try:
            if await each.channel.model_ready(target.name, version, _TIMEOUT_S):
                return HttpAnswer(b"")
        except (ConnectionFailed, Unavailable):
            continue
    return HttpAnswer(b"", 503)


async def model_metadata(request: ApiRequest) -> HttpAnswer:
    """Inputs, outputs and versions of a model."""
    return await _described(request, "metadata")


async def model_config(request: ApiRequest) -> HttpAnswer:
    """Configuration of a model."""
    return await _described(request, "config")


async def model_statistics(request: ApiRequest) -> HttpAnswer:
    """Statistics of a model on one of the servers that have it."""
    return await _described(request, "stats")


async def _described(request: ApiRequest, what: str) -> HttpAnswer:
    target = await request.target(request.path["model"], call=False)
    version = request.path.get("version", "")
    for each in request.gateway.pool.servers:
        if each.serves(target.name):
            if what == "metadata":
                found = await each.channel.metadata(target.name, version, _TIMEOUT_S)
            elif what == "config":
                found = await each.channel.config(target.name, version, _TIMEOUT_S)
            else:
                found = await each.channel.statistics(_TIMEOUT_S, target.name, version)
            return json_answer(_plain(found))
    raise Refusal(503, f"model '{target.name}' is not ready", code="unavailable", retry_after_s=1)


def _plain(message: Any) -> Any:
    """Return a message as plain data; protobuf's own JSON writes 64-bit numbers as texts, Triton's does not."""
    found: dict[str, Any] = {}
    for field, value in message.ListFields():
        enum = field.enum_type
        if hasattr(value, "items"):
            found[field.name] = {str(key): _plain_value(each, None) for key, each in value.items()}
        elif hasattr(value, "append"):
            found[field.name] = [_plain_value(each, enum) for each in value]
        else:
            found[field.name] = _plain_value(value, enum)
    return found


def _plain_value(value: Any, enum: Any) -> Any:
    if enum is not None:
        return enum.values_by_number[value].name
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str | bool | int | float) else _plain(value)


async def infer(request: ApiRequest) -> HttpAnswer:
    """Send tensors to a model that answers once."""
    head, binary = split_body(request.headers, request.body)
    document = _document(head)
    parameters = with_headers(_parameters(document.pop("parameters", None)), request.headers)
    target = await request.target(request.path["model"], task=parameters.get("task"))
    default_binary = parameters.pop(_BINARY_OUTPUT, False) is True
    message = messages.ModelInferRequest(
        model_name=target.name,
        model_version=request.path.get("version", ""),
        id=_text(document.pop("id", ""), "id") or request.exchange.request_id,
    )
    wanted = _wanted(document.pop("outputs", None))
    inputs = document.pop("inputs", None)
    if not isinstance(inputs, list):
        raise invalid("field 'inputs' is missing; expected a list of tensors", "inputs")
    request.check_count("inputs", len(inputs))
    if document:
        raise invalid(f"unknown field '{next(iter(document))[:80]}'; accepted: id, inputs, outputs, parameters")
    for tensor in inputs:
        binary = add_input(message, tensor, binary)
    if binary:
        raise invalid(f"{len(binary)} bytes follow the last input's binary part")
    for name in wanted:
        message.outputs.add(name=name)
    _set_parameters(message, parameters, target)
    response = await request.infer_message(target, message, parameters)
    content, json_length = response_body(response, wanted, default_binary)
    if json_length is None:
        return HttpAnswer(content)
    length = (JSON_LENGTH.title().encode(), str(json_length).encode())
    return HttpAnswer(content, media_type=b"application/octet-stream", headers=[length])


async def generate(request: ApiRequest) -> HttpAnswer:
    """Send the fields of a JSON document as inputs and parameters, and return the outputs as fields."""
    target, message, parameters, prefix = await _generate_message(request)
    if not target.facts.decoupled:
        response = await request.infer_message(target, message, parameters)
        return HttpAnswer(_fields(response))
    found = []
    async with aclosing(request.stream_message(target, message, parameters, prefix)) as parts:
        async for part in parts:
            if part.outputs:
                found.append(part)
    if len(found) != 1:
        raise invalid(f"the model sent {len(found)} responses; use generate_stream")
    return HttpAnswer(_fields(found[0]))


async def generate_stream(request: ApiRequest) -> EventStream:
    """The same as `generate`, with each response as an event."""
    target, message, parameters, prefix = await _generate_message(request)

    async def events() -> AsyncGenerator[bytes, None]:
        if not target.facts.decoupled:
            yield event(_fields(await request.infer_message(target, message, parameters)))
            return
        async with aclosing(request.stream_message(target, message, parameters, prefix)) as parts:
            async for part in parts:
                if part.outputs:
                    yield event(_fields(part))

    return EventStream(events())


async def _generate_message(request: ApiRequest) -> tuple[ModelTarget, Any, dict[str, Any], str]:
    """Return the target, message, parameters and beginning of the prompt of a request."""
    document = _document(request.body)
    identifier = _text(document.pop("id", ""), "id") or request.exchange.request_id
    parameters = _parameters(document.pop("parameters", None))
    fields = {name: value for name, value in document.items() if value is not None}
    target_name = request.path["model"]
    task = parameters.get("task", fields.get("task", request.headers.get("x-tidal-task")))
    target = await request.target(target_name, task=task)
    inputs: dict[str, Array] = {}
    for name, value in fields.items():
        if name in target.facts.inputs:
            inputs[name] = _input(target, name, value)
        else:
            parameters[name] = value
    parameters = with_headers(_parameters(parameters), request.headers)
    message = infer_message(InferRequest(target.name, inputs, None, {}, identifier))
    message.model_version = request.path.get("version", "")
    _set_parameters(message, parameters, target)
    prompt = fields.get("messages", fields.get("text_input"))
    return target, message, parameters, prompt[:PREFIX_CHARS] if isinstance(prompt, str) else ""


def _input(target: ModelTarget, name: str, value: Any) -> Array:
    datatype, _ = target.facts.inputs[name]
    values = value if isinstance(value, list) else [value]
    batched = target.facts.max_rows > 0
    try:
        if datatype == "BYTES":
            if not all(isinstance(each, str) for each in values):
                raise TypeError("expected a text or texts")
            array: Array = np.array([each.encode() for each in values], np.object_)
        else:
            array = np.array(values).astype(triton_to_np_dtype(datatype), casting="same_kind")
    except (TypeError, ValueError, OverflowError) as error:
        raise invalid(f"input '{name}': {error}; expected values of type {datatype}", name) from None
    return array[np.newaxis] if batched else array


def _fields(response: Any) -> bytes:
    document: dict[str, Any] = {"model_name": response.model_name, "model_version": response.model_version}
    if response.id:
        document["id"] = response.id
    for name, array in response_arrays(response).items():
        values = json_data(array)
        document[name] = values[0] if len(values) == 1 else values
    return dump(document)


def _document(content: bytes) -> dict[str, Any]:
    try:
        document = pydantic_core.from_json(content, allow_inf_nan=False)
    except ValueError as error:
        raise invalid(f"the body is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise invalid("the body is JSON of another kind; expected an object")
    return document


def _parameters(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise invalid("field 'parameters': expected an object", "parameters")
    for name, each in value.items():
        if not isinstance(each, str | bool | int | float) or (isinstance(each, int) and not -(2**63) <= each < 2**63):
            shown = str(each)[:40]
            raise invalid(f"parameter '{name[:80]}': expected a text, number or boolean, got {shown}", "parameters")
    return dict(value)


def _set_parameters(message: Any, parameters: Mapping[str, Any], target: ModelTarget) -> None:
    for name, value in {**parameters, **({"task": target.task} if target.task else {})}.items():
        parameter = message.parameters[name]
        if isinstance(value, str):
            parameter.string_param = _text(value, name)
        elif isinstance(value, bool):
            parameter.bool_param = value
        elif isinstance(value, int):
            parameter.int64_param = value
        else:
            parameter.double_param = value


def _wanted(outputs: Any) -> dict[str, bool]:
    """Names of the requested outputs, each with whether it is wanted as a binary part."""
    if outputs is None:
        return {}
    if not isinstance(outputs, list) or not all(
        isinstance(each, dict) and isinstance(each.get("name"), str) for each in outputs
    ):
        raise invalid("field 'outputs': expected a list of objects with a name", "outputs")
    found = {}
    for each in outputs:
        own = each.get("parameters") or {}
        if not isinstance(own, dict) or set(own) - {"binary_data"}:
            raise invalid(f"output '{each['name'][:80]}': parameters: accepted is binary_data", "outputs")
        found[_text(each["name"], "outputs")] = own.get("binary_data", False) is True
    return found


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise invalid(f"field '{name[:80]}': expected a text, got {str(value)[:40]}", name[:80])
    try:
        value.encode()
    except UnicodeEncodeError:
        raise invalid(f"field '{name[:80]}': expected valid Unicode, got a lone surrogate", name[:80]) from None
    return value
