"""What the console shows at one time, and what of it the holder of a key may see."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tidal_client.live.charts import CHARTS
from tidal_client.live.recorder import Recorder
from tidal_client.live.states import READY, ModelState, states_of
from tidal_gateway.live.sources import ServerReport
from tidal_gateway.upstream.models import ModelFacts
from tidal_gateway.upstream.server import Server

Frame = dict[str, Any]
#: Whether a model, or a task of it, may be seen.
Allows = Callable[[str, str], bool]


def definitions() -> dict[str, list[dict[str, str]]]:
    """Titles and units of the charts by system."""
    return {
        system: [{"name": each.name, "title": each.title, "unit": each.unit} for each in charts]
        for system, charts in CHARTS.items()
    }


def frame(recorder: Recorder, readings: Sequence[ServerReport], servers: Sequence[Server]) -> Frame:
    """Return the state and the figures of all models.

    Args:
        recorder: Readings of the last seconds.
        readings: Latest reading of each server.
        servers: Servers behind the gateway.
    """
    described = {name: facts for each in servers for name, facts in each.models.items()}
    states = states_of(
        [each.ready for each in readings if each.ready is not None], [each.models for each in readings if each.models]
    )
    figures = {each.name: each for each in recorder.models()}
    models = []
    for name in sorted({*described, *states}):
        facts = described.get(name)
        state = states.get(name) or _state_by_triton(name, servers)
        backend = facts.backend if facts is not None else state.facts.get("backend") or ""
        if (facts is not None and facts.internal) or backend == "engine":
            continue
        own = figures.get(name)
        models.append(
            {
                **({"system": backend if backend in CHARTS else "", "summary": {}, "values": {}}
                   if own is None else own.as_json()),
                **state.as_json(),
                "name": name,
                "backend": backend,
                "uses": sorted(facts.uses) if facts is not None else [],
                "inputs": sorted(facts.inputs) if facts is not None else [],
                "outputs": sorted(facts.outputs) if facts is not None else [],
            }
        )  # fmt: skip
    by_address = {each.address: each for each in readings}
    rows = [_server(each, by_address.get(each.address)) for each in servers]
    return {"time": round(time.time(), 3), "servers": rows, "models": models}


def visible(found: Frame, allows: Allows, *, restricted: bool) -> Frame:
    """Return the part of a frame that the holder of a key may see.

    A key that is restricted to some models sees no addresses of servers and no reasons, which name files and hosts.
    """
    models = []
    for each in found["models"]:
        name, tasks = each["name"], each["tasks"] or []
        own = [task for task in tasks if allows(name, task)]
        if not allows(name, "") and not own:
            continue
        shown = {**each, "tasks": own}
        if restricted:
            shown |= {"reason": "", "task_count": len(own)}
        models.append(shown)
    servers = found["servers"]
    if restricted:
        servers = [{**each, "name": f"server {place}", "reason": ""} for place, each in enumerate(servers, 1)]
    return {**found, "servers": servers, "models": models}


def values_only(found: Frame) -> Frame:
    """Return what charts need of an earlier frame."""
    return {
        "time": found["time"],
        "models": [{key: each[key] for key in ("name", "values")} for each in found["models"]],
    }


def _server(server: Server, reading: ServerReport | None) -> dict[str, Any]:
    ready: Mapping[str, Any] = (reading.ready if reading is not None else None) or {}
    return {
        "name": server.address,
        "up": server.up,
        "reason": server.reason or ("" if reading is None else reading.reason),
        "metrics": reading is not None and reading.scrape is not None,
        "restarts": int(ready.get("server_restarts", 0)),
        "outstanding": len(server.calls),
    }


def _state_by_triton(name: str, servers: Sequence[Server]) -> ModelState:
    """State of a model that no `tidal serve` reports."""
    state = ModelState()
    for each in servers:
        facts: ModelFacts | None = each.models.get(name)
        if facts is not None and each.up:
            state.state, state.ready_on = READY, state.ready_on + 1
            state.versions = facts.versions
    return state
