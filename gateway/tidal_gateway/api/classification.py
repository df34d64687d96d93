"""Classification of texts and images: `POST /v1/classify`, as JSON or multipart form."""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from tidal_client.options import Parameter
from tidal_client.results import Array
from tidal_gateway.api.answers import HttpAnswer, json_answer
from tidal_gateway.api.inputs import bytes_column, text_column
from tidal_gateway.api.options import Body, passed_on
from tidal_gateway.api.ranking import descending
from tidal_gateway.api.request import ApiRequest, ModelTarget
from tidal_gateway.api.rows import infer_rows
from tidal_gateway.errors import invalid
from tidal_gateway.upstream.models import Use

#: Outputs that an answer is written from.
OUTPUTS: Final = ("label", "probabilities")
_FILES: Final = ("image", "file", "input")


class ImageInput(BaseModel):
    """An image to classify."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    image: StrictStr = Field(description="content of a JPEG, PNG or WebP file: base64, or a data URL")


class TextInput(BaseModel):
    """A text to classify."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    text: StrictStr
    pair: StrictStr | None = Field(None, description="second text, for models that compare two texts")


class ClassifyBody(Body):
    """Body of `POST /v1/classify`."""

    model: StrictStr = Field(description="model, or model/task")
    input: StrictStr | ImageInput | TextInput | list[StrictStr | ImageInput | TextInput] = Field(
        description="a text, {text, pair} or {image}, or a list of one of these"
    )
    top_k: StrictInt | None = Field(
        None, ge=1, description="number of labels to return with scores; all if it exceeds them"
    )
    user: StrictStr | None = Field(None, description="accepted for compatibility; has no effect")


#: Fields of the same request as a multipart form, as JSON schemas.
FORM: Final = {
    "model": {"type": "string", "description": "model, or model/task"},
    "image": {
        "type": "array",
        "items": {"type": "string", "format": "binary"},
        "description": "JPEG, PNG or WebP files",
    },
    "top_k": {"type": "integer", "minimum": 1, "description": "number of labels to return with scores"},
}


async def classify(request: ApiRequest) -> HttpAnswer:
    """Classify texts or images."""
    if request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        return await _classify_form(request)
    body = request.parse(ClassifyBody)
    fields = {**body.extra, "top_k": body.top_k}
    options = passed_on(fields, request.headers, ClassifyBody.model_fields)
    top_k = _top_k(options.pop("top_k", None))
    inputs = body.input if isinstance(body.input, list) else [body.input]
    request.check_count("input", len(inputs))
    images = [_decode(each.image, place) for place, each in enumerate(inputs) if isinstance(each, ImageInput)]
    if images:
        if len(images) < len(inputs):
            raise invalid("field 'input' mixes texts and images; send them in two requests", "input")
        return await _answer_images(request, body.model, images, options, top_k)
    texts = [each.text if isinstance(each, TextInput) else each for each in inputs if not isinstance(each, ImageInput)]
    pairs = [each.pair for each in inputs if isinstance(each, TextInput) and each.pair is not None]
    if pairs and len(pairs) < len(inputs):
        raise invalid("field 'input' mixes texts and pairs of texts; send them in two requests", "input")
    target = await request.target(body.model, Use.TEXT_CLASSIFICATION, options.get("task"))
    found = await classify_texts(request, target, texts, pairs or None, "input", options, OUTPUTS)
    return await _answer(request, body.model, target, found, top_k)


async def classify_texts(
    request: ApiRequest,
    target: ModelTarget,
    texts: Sequence[str],
    pairs: Sequence[str] | None,
    field: str,
    options: dict[str, Parameter],
    outputs: Sequence[str],
) -> dict[str, Array]:
    """Return outputs of texts or pairs of texts, such as `label` [texts, 1] and `probabilities` [texts, labels]."""
    columns = {"text_input": text_column(field, texts)}
    if pairs is not None:
        columns["text_pair"] = text_column(field, pairs)
    return await infer_rows(request, target, columns, outputs, options)


async def _classify_form(request: ApiRequest) -> HttpAnswer:
    fields, files = await _read_form(request)
    model = fields.pop("model", None)
    if model is None:
        raise invalid("field 'model' is missing; it is required", "model")
    request.check_count("image", len(files))
    options = passed_on(fields, request.headers, {"model": None, "image": None, "top_k": None})
    top_k = _top_k(options.pop("top_k", None))
    return await _answer_images(request, model, files, options, top_k)


def _top_k(value: Parameter | None) -> int | None:
    """Number of labels to return, which is no option of the model: a field, as a number or text, or a header."""
    if value is None:
        return None
    text = str(value)
    if not text.isascii() or not text.isdigit() or not int(text[:9]) >= 1:
        raise invalid(f"field 'top_k': expected a number from 1, got '{text[:40]}'", "top_k")
    return int(text[:9])


async def _answer_images(
    request: ApiRequest, model: str, images: Sequence[bytes], options: dict[str, Parameter], top_k: int | None
) -> HttpAnswer:
    target = await request.target(model, Use.IMAGE_CLASSIFICATION, options.get("task"))
    found = await infer_rows(request, target, {"image": bytes_column(images)}, OUTPUTS, options)
    return await _answer(request, model, target, found, top_k)


async def ranked_labels(
    request: ApiRequest, target: ModelTarget, found: dict[str, Array], values: Array
) -> list[list[tuple[str, float]]] | None:
    """Return the labels of each row with their values, the highest first; None if their names are not known.

    Args:
        request: Request of the client.
        target: Model that answered.
        found: Its outputs, with `label` [rows, 1].
        values: Value of each label, [rows, labels].
    """
    labels = await request.gateway.pool.labels(target.name, target.task)
    if values.ndim != 2 or len(labels) != values.shape[1]:
        return None
    rows = []
    for row, label in zip(values, found["label"].reshape(-1), strict=True):
        # The labels may be those of a version or task that was replaced meanwhile.
        best = bytes(label).decode()
        if best not in labels or not np.isclose(row[labels.index(best)], row.max(), rtol=1e-5):
            return None
        rows.append([(labels[place], float(row[place])) for place in descending(row)])
    return rows


async def _answer(
    request: ApiRequest, model: str, target: ModelTarget, found: dict[str, Array], top_k: int | None
) -> HttpAnswer:
    data: list[dict[str, Any]] = []
    ranked = None
    if top_k is not None:
        ranked = (
            await ranked_labels(request, target, found, found["probabilities"]) if "probabilities" in found else None
        )
        if ranked is None:
            raise invalid(
                f"field 'top_k': the names of the labels of '{model[:100]}' are not known; leave it out, or give the "
                "gateway the status endpoint of the server (--server HOST:PORT,status=HOST:PORT)",
                "top_k",
            )
    for row, label in enumerate(found["label"].reshape(-1)):
        each: dict[str, Any] = {"object": "classification", "index": row, "label": bytes(label).decode()}
        if "probabilities" in found:
            probabilities = np.ascontiguousarray(found["probabilities"][row], np.float32)
            each |= {"score": max(probabilities.tolist()), "probs": probabilities, "num_classes": len(probabilities)}
        if ranked is not None:
            each["labels"] = [{"label": name, "score": score} for name, score in ranked[row][:top_k]]
        data.append(each)
    used = request.exchange.input_tokens
    return json_answer(
        {
            "id": f"classify-{request.exchange.request_id}",
            "object": "list",
            "created": int(time.time()),
            "model": model,
            "data": data,
            "usage": {"prompt_tokens": used, "total_tokens": used, "completion_tokens": 0},
        }
    )


def _decode(text: str, place: int) -> bytes:
    encoded = text.partition(",")[2] if text.startswith("data:") else text
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise invalid(
            f"field 'input' {place}: expected base64 or a data URL with base64, got other text", "input"
        ) from None


async def _read_form(request: ApiRequest) -> tuple[dict[str, str], list[bytes]]:
    """Fields and contents of files of a multipart form."""

    async def content() -> AsyncGenerator[bytes, None]:
        yield request.body
        yield b""

    most = request.gateway.settings.max_inputs
    parser = MultiPartParser(Headers(dict(request.headers)), content(), max_files=most, max_fields=64)
    try:
        form = await parser.parse()
    except (MultiPartException, KeyError) as error:
        reason = error.message if isinstance(error, MultiPartException) else "no boundary"
        raise invalid(f"the body is not a multipart form: {reason}") from None
    fields: dict[str, str] = {}
    files: list[bytes] = []
    try:
        for name, value in form.multi_items():
            if isinstance(value, UploadFile):
                if name.removesuffix("[]") not in _FILES:
                    raise invalid(f"file '{name[:80]}': expected a file named {', '.join(_FILES)}", name[:80])
                files.append(await value.read())
            elif name in fields:
                raise invalid(f"field '{name[:80]}' is sent twice", name[:80])
            else:
                fields[name] = value
    finally:
        await form.close()
    return fields, files
