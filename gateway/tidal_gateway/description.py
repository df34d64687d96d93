"""The OpenAPI description of the gateway, from the declared fields of each route."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from pydantic.json_schema import models_json_schema

from tidal.options import RequestOptions
from tidal_gateway.api.answers import Answer, json_answer
from tidal_gateway.api.request import ApiRequest
from tidal_gateway.api.routes import RouteEntry

_REFERENCE = "#/components/schemas/{model}"
_BODY: dict[str, Any] = {"type": "object", "additionalProperties": True}


def description(routes: Sequence[RouteEntry]) -> RouteEntry:
    """Return the route of the description: `GET /openapi.json`."""
    document = openapi(routes)

    async def answer(request: ApiRequest) -> Answer:
        """Describe the API."""
        return json_answer(document)

    return RouteEntry("openapi", "GET", "/openapi.json", answer)


def openapi(routes: Sequence[RouteEntry]) -> dict[str, Any]:
    """Return the description of routes as an OpenAPI document."""
    bodies = list(dict.fromkeys(each.body for each in routes if each.body is not None))
    names, schemas = models_json_schema([(each, "validation") for each in bodies], ref_template=_REFERENCE)
    definitions = schemas.get("$defs", {})
    options = RequestOptions.model_json_schema(ref_template=_REFERENCE)["properties"]
    for body in bodies:
        own = definitions[names[body, "validation"]["$ref"].rpartition("/")[2]]
        own["properties"] = {**options, **own["properties"]}
    paths: dict[str, Any] = {}
    for route in routes:
        operation: dict[str, Any] = {
            "operationId": f"{route.method.lower()}{re.sub(r'[^a-z0-9]+', '_', route.path)}",
            "summary": (route.answer.__doc__ or "").partition("\n")[0],
            "parameters": [
                {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
                for name in re.findall(r"{(\w+)", route.path)
            ],
            "responses": {"200": {"description": "answer"}, "default": {"description": "error"}},
        }
        if route.method == "POST":
            schema = names[route.body, "validation"] if route.body is not None else _BODY
            operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
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
