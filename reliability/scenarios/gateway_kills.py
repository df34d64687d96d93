"""Processes killed behind a gateway under load: with two servers, and with one, no unary request fails."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Sequence
from functools import partial

import psutil

from benchmarks.gateway.survival import SteadyLoad, is_ready
from reliability.gateways import classifications, several
from reliability.rows import Guarantee, none_failed
from reliability.server_under_test import ServerUnderTest
from testing.gateways import RunningGateway
from testing.serving import Served
from testing.waiting import until

_STUBS, _SERVERS = 20, 5
_QUICK_STUBS = 2
# Deadline of the requests in seconds: longer than a restart, which they outlast where there is one server.
_TIMEOUT_S = "200"
_RESTARTED_S = 180.0
_SEED = 51_000


def run(target: ServerUnderTest) -> list[Guarantee]:
    """Kill stubs and servers behind two servers, then behind one."""
    rows = []
    for count in (2, 1):
        with several(target, count, "--timeout-s", _TIMEOUT_S) as (gateway, servers):
            rows.append(kill_stubs(gateway, servers, _QUICK_STUBS if target.quick else _STUBS, quick=target.quick))
            if not target.quick:
                rows.append(kill_servers(gateway, servers, _SERVERS))
        if target.quick:
            break
    return rows


def kill_stubs(gateway: RunningGateway, servers: Sequence[Served], kills: int, *, quick: bool) -> Guarantee:
    """Kill stubs one after the other, of each server in turn, while clients send requests.

    Args:
        gateway: Gateway before the servers.
        servers: Servers.
        kills: Number of stubs to kill.
        quick: Whether fewer requests suffice.
    """
    draw, ended = random.Random(_SEED), 0
    requests = classifications(gateway)
    models = [str(each.body["model"]).partition("/")[0] for each in requests]
    with SteadyLoad(requests) as load:
        load.wait_for(50)
        for number in range(kills):
            served, model = servers[number % len(servers)], models[number % len(models)]
            server, stubs = _server_pid(served), served.stubs(model)
            time.sleep(draw.uniform(0, 0.05))
            for stub in stubs:
                stub.kill()
            until(partial(_restarted, served, model, stubs), _RESTARTED_S)
            ended += _server_pid(served) != server
            load.wait_for(50)
    note = _slowest(load) + (f"; {ended} ended tritonserver too" if ended else "")
    return _row(f"unary requests while stubs are killed behind {_named(servers)}", load, kills, note, quick=quick)


def kill_servers(gateway: RunningGateway, servers: Sequence[Served], kills: int) -> Guarantee:
    """Kill tritonserver of each server in turn while clients send requests.

    Args:
        gateway: Gateway before the servers.
        servers: Servers.
        kills: Number of servers to kill.
    """
    with SteadyLoad(classifications(gateway)) as load:
        load.wait_for(50)
        for number in range(kills):
            served = servers[number % len(servers)]
            pid = _server_pid(served)
            os.kill(pid, signal.SIGKILL)
            until(partial(_has_new_server, served, pid), _RESTARTED_S)
            load.wait_for(250)
    what = f"unary requests while tritonserver is killed behind {_named(servers)}"
    return _row(what, load, kills, _slowest(load), quick=False)


def _has_new_server(served: Served, pid: int) -> bool:
    return _server_pid(served) != pid and is_ready(served)


def _row(what: str, load: SteadyLoad, kills: int, note: str, *, quick: bool) -> Guarantee:
    row = none_failed(what, len(load.sent), kills, load.failures, quick=quick)
    if load.failures:
        return row
    return Guarantee(row.what, row.requests, kills, 0, 0, "failed", "== 0", note, row.enough)


def _slowest(load: SteadyLoad) -> str:
    return f"the slowest took {max(each.seconds for each in load.sent):.1f} s"


def _named(servers: Sequence[Served]) -> str:
    return "one server" if len(servers) == 1 else f"{len(servers)} servers"


def _server_pid(served: Served) -> int:
    try:
        return int(served.state["server_pid"])
    except (OSError, ValueError, KeyError):  # it is being restarted
        return 0


def _restarted(served: Served, model: str, old: Sequence[psutil.Process]) -> bool:
    try:
        new = {each.pid for each in served.stubs(model)} - {each.pid for each in old}
    except (OSError, ValueError, psutil.Error):
        return False
    return bool(new) and is_ready(served)
