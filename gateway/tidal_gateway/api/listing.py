"""Models and health: `GET /v1/models`, `/v1/models/NAME`, `/health`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tidal_gateway.api.answers import HttpAnswer, json_answer
from tidal_gateway.api.request import ApiRequest
from tidal_gateway.errors import Refusal
from tidal_gateway.upstream.models import ModelFacts, uses_of_task


async def models(request: ApiRequest) -> HttpAnswer:
    """List the models and tasks that the key may use."""
    rows = [row for each in request.gateway.pool.models() for row in _rows(request, each)]
    return json_answer({"object": "list", "data": rows})


async def model(request: ApiRequest) -> HttpAnswer:
    """Describe one model or task."""
    name = request.path["model"]
    target = await request.target(name, call=False)
    if not target.task:
        return json_answer(_model_row(request, target.facts))
    found = [row for row in _rows(request, target.facts) if row["id"] == name]
    if not found:
        message = f"model '{target.name}' has no task '{target.task[:100]}'; GET /v1/models lists its tasks"
        raise Refusal(404, message, code="model_not_found", param="model")
    return json_answer(found[0])


async def health(request: ApiRequest) -> HttpAnswer:
    """Whether the gateway accepts requests and a server is up."""
    pool = request.gateway.pool
    up = sum(server.up for server in pool.servers)
    ok = up > 0 and not request.gateway.draining
    state = "draining" if request.gateway.draining else "ok" if ok else "no server is up"
    return json_answer({"status": state, "servers": len(pool.servers), "servers_up": up}, 200 if ok else 503)


def _rows(request: ApiRequest, facts: ModelFacts) -> Iterator[dict[str, Any]]:
    if request.allows(facts.name):
        yield _model_row(request, facts)
    for name, task in request.gateway.pool.report(facts.name).tasks.items():
        if request.allows(facts.name, name):
            uses = uses_of_task(task.task)
            yield {
                **_row(f"{facts.name}/{name}", facts, task.created),
                "uses": sorted(facts.uses if uses is None else uses),
                "parent": facts.name,
                "task": name,
                "task_kind": task.kind,
                "labels": list(task.labels),
            }


def _model_row(request: ApiRequest, facts: ModelFacts) -> dict[str, Any]:
    report = request.gateway.pool.report(facts.name)
    return {**_row(facts.name, facts, report.created), "uses": sorted(facts.uses), "labels": list(report.labels)}


def _row(identifier: str, facts: ModelFacts, created: int) -> dict[str, Any]:
    return {
        "id": identifier,
        "object": "model",
        "created": created,
        "owned_by": "tidal",
        "backend": facts.backend,
        "versions": list(facts.versions),
    }
