"""The OpenAPI description: of all routes, with what each reads beside its JSON body."""

from __future__ import annotations

import re

import jsonschema

from tidal.options import RequestOptions
from tidal_gateway.api.options import with_headers
from tidal_gateway.api.routes import ROUTES
from tidal_gateway.description import description, openapi


def test_all_routes_are_described() -> None:
    routes = (*ROUTES, description(ROUTES))
    found = {(method.upper(), path) for path, each in openapi(routes)["paths"].items() for method in each}
    assert found == {(each.method, re.sub(r":\w+}", "}", each.path)) for each in routes}


def test_the_options_are_headers_that_requests_may_have() -> None:
    paths = openapi(ROUTES)["paths"]
    for path, operations in paths.items():
        for method, operation in operations.items():
            headers = {each["name"] for each in operation["parameters"] if each["in"] == "header"}
            assert "x-request-id" in headers
            options = headers - {"x-request-id"}
            if method == "get":
                assert not options, path
                continue
            named = with_headers({}, dict.fromkeys(options, "1"))
            assert named.keys() == RequestOptions.model_fields.keys() - {"logprobs", "n", "top_logprobs"}


def test_images_may_be_sent_as_a_form() -> None:
    content = openapi(ROUTES)["paths"]["/v1/classify"]["post"]["requestBody"]["content"]
    form = content["multipart/form-data"]["schema"]
    assert form["required"] == ["model", "image"]
    assert {"task", "latency_ms", "top_k"} <= form["properties"].keys()
    assert form["properties"]["image"]["items"]["format"] == "binary"


def test_bodies_of_tensors_are_described() -> None:
    document = openapi(ROUTES)
    reference = document["paths"]["/v2/models/{model}/infer"]["post"]["requestBody"]["content"]["application/json"]
    schema = {**reference["schema"], "components": document["components"]}
    tensor = {"name": "text_input", "shape": [1, 1], "datatype": "BYTES", "data": ["a"]}
    valid = {"inputs": [tensor], "outputs": [{"name": "label"}], "parameters": {"latency_ms": 5}}
    validator = jsonschema.Draft202012Validator(schema)
    assert validator.is_valid(valid)
    assert not validator.is_valid({**valid, "latency_ms": 5})
    assert not validator.is_valid({})
