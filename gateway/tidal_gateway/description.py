"""The OpenAPI description of the gateway, from the declared fields of each route."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, Final

from pydantic.json_schema import models_json_schema

from tidal.options import RequestOptions
from tidal_gateway.api.answers import HttpAnswer, json_answer
from tidal_gateway.api.kserve_tensors import InferBody
from tidal_gateway.api.options import HEADER_OPTIONS, HEADER_PREFIX
from tidal_gateway.api.request import ApiRequest
from tidal_gateway.api.routes import RouteEntry

_REFERENCE = "#/components/schemas/{model}"
_TEXT: Final = {"type": "string"}
_REQUEST_ID: Final = "id of the request, in the access log, the servers' logs and the answer; a new one if it is absent"
_BODY: dict[str, Any] = {"type": "object", "additionalProperties": True}


def description(routes: Sequence[RouteEntry]) -> RouteEntry:
    """Return the route of the description: `GET /openapi.json`."""
    document = openapi(routes)

    async def answer(request: ApiRequest) -> HttpAnswer:
        """Describe the API."""
        return json_answer(document)

    return RouteEntry("openapi", "GET", "/openapi.json", answer)


def openapi(routes: Sequence[RouteEntry]) -> dict[str, Any]:
    """Return the description of routes as an OpenAPI document."""
    bodies = list(dict.fromkeys(each.body for each in routes if each.body is not None))
    names, schemas = models_json_schema([(each, "validation") for each in bodies], ref_template=_REFERENCE)
    definitions = schemas.get("$defs", {})
    options = RequestOptions.model_json_schema(ref_template=_REFERENCE)["properties"]
    headers = {HEADER_PREFIX + name.replace("_", "-"): options[name] for name in sorted(HEADER_OPTIONS)}
    for body in bodies:
        if issubclass(body, InferBody):  # its options are parameters
            continue
        own = definitions[names[body, "validation"]["$ref"].rpartition("/")[2]]
        own["properties"] = {**options, **own["properties"]}
    paths: dict[str, Any] = {}
    for route in routes:
        operation: dict[str, Any] = {
            "operationId": f"{route.method.lower()}{re.sub(r'[^a-z0-9]+', '_', route.path)}",
            "summary": (route.answer.__doc__ or "").partition("\n")[0],
            "parameters": [
                *_parameters("path", dict.fromkeys(re.findall(r"{(\w+)", route.path), _TEXT)),
                *_parameters("header", {"x-request-id": {**_TEXT, "description": _REQUEST_ID}}),
                *(_parameters("header", headers) if route.method == "POST" else ()),
            ],
            "responses": {"200": {"description": "answer"}, "default": {"description": "error"}},
        }
        if route.method == "POST":
            schema = names[route.body, "validation"] if route.body is not None else _BODY
            content: dict[str, Any] = {"application/json": {"schema": schema}}
            if route.form is not None:
                content["multipart/form-data"] = {"schema": _form(route.form, options)}
            operation["requestBody"] = {"required": True, "content": content}
        if not route.open:
            operation["security"] = [{"key": []}]
        path = re.sub(r"{(\w+):\w+}", r"{\1}", route.path)
        paths.setdefault(path, {})[route.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "Tidal gateway", "version": version("tidal")},
        "paths": paths,
        "components": {
            "schemas": definitions,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _parameters(place: str, schemas: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": place, "required": place == "path", "schema": schema} for name, schema in schemas.items()
    ]


def _form(fields: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Schema of a form; Tidal's options may be fields of it."""
    own = {name: schema for name, schema in options.items() if name in HEADER_OPTIONS}
    return {"type": "object", "properties": {**own, **fields}, "required": ["model", "image"]}
