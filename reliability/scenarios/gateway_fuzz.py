"""Ten thousand malformed and generated requests to a gateway, slow clients, and more connections than it accepts."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import reduce

from benchmarks.gateway.survival import SteadyLoad
from reliability.fuzzing.gateway_malformed import gateway_malformed
from reliability.fuzzing.gateway_schema import send_generated
from reliability.fuzzing.gateway_sending import FuzzResult, send_raw
from reliability.gateways import before, classifications
from reliability.models import CHAT, EMBEDDER, add_gateway_models
from reliability.rows import Guarantee, none_failed
from reliability.server_under_test import ServerUnderTest
from testing.gateways import RunningGateway
from tidal_gateway.keys.store import add_key

_SEED = 41_000
_CLIENTS = 3
MALFORMED, _QUICK_MALFORMED = 6_600, 300
GENERATED, _QUICK_GENERATED = 3_900, 60
MIN_REQUESTS = 10_000
# Limits of the gateway for the test of slow clients: connections, and seconds until headers or a body are complete.
_CONNECTIONS, _SLOW_S = 40, 1.0
# Processes that are the same after as many seconds will not end by themselves.
_STABLE_S = 3.0


def _stable_processes(target: ServerUnderTest) -> set[int]:
    """Return the processes that stay: those of a version that was replaced before end by themselves."""
    processes, before = target.processes(), set[int]()
    while processes != before:
        time.sleep(_STABLE_S)
        processes, before = target.processes(), processes
    return processes


def run(target: ServerUnderTest) -> list[Guarantee]:
    """Send them while other clients send normal requests; then occupy all connections."""
    quick = target.quick
    names = [model.name for model in target.models]
    if not quick:
        add_gateway_models(target.folder, target.repository.folder)
        target.stop()
        names += [CHAT, EMBEDDER]
    processes = _stable_processes(target)
    keys = target.folder / "fuzz-keys.json"
    key, _ = add_key(keys, "fuzz")
    options = ("--workers", "2", "--timeout-s", "300", "--max-body-bytes", "2000000", "--keys", str(keys))
    with before(target, *options) as gateway:
        workers = {each.pid for each in gateway.workers()}
        own = {"authorization": f"Bearer {key}"}
        load_requests = [replace(each, headers=own) for each in classifications(gateway)]
        with (
            SteadyLoad(load_requests, clients=1, pause_s=0.2) as load,
            ThreadPoolExecutor(_CLIENTS + 1) as pool,
        ):
            count = (_QUICK_MALFORMED if quick else MALFORMED) // _CLIENTS
            jobs = [
                pool.submit(send_raw, gateway.address, gateway_malformed(_SEED + number, count, names, key))
                for number in range(_CLIENTS)
            ]
            generated = _QUICK_GENERATED if quick else GENERATED
            jobs.append(pool.submit(send_generated, gateway.url, generated, names, _SEED, key))
            found = reduce(FuzzResult.merge, (job.result() for job in jobs))
            load.wait_for(20)
        lost = workers - {each.pid for each in gateway.workers()}
    lost |= processes - target.processes()
    slow = slow_clients(target)
    ends = ", ".join(f"{number} {end}" for end, number in found.ends.most_common())
    return [
        Guarantee(
            "malformed requests to the gateway answered with 5xx or not at all",
            found.count,
            0,
            len(found.wrong),
            len(found.wrong),
            "5xx",
            "== 0",
            "; ".join(found.wrong[:5]) or ends,
            quick or found.count >= MIN_REQUESTS,
        ),
        Guarantee("workers, servers and stubs that they end", found.count, 0, len(lost), len(lost), "lost", "== 0"),
        none_failed("other requests meanwhile (gateway)", len(load.sent), found.count, load.failures, quick=True),
        slow,
    ]


def slow_clients(target: ServerUnderTest) -> Guarantee:
    """Occupy all connections with clients that send nothing or half a request; the gateway must serve others again."""
    limits = [
        f"--max-connections={_CONNECTIONS}",
        f"--header-timeout-s={_SLOW_S}",
        f"--body-timeout-s={_SLOW_S}",
        f"--write-timeout-s={_SLOW_S}",
    ]
    heads = (
        b"",
        b"POST /v1/classify HTTP/1.1\r\nhost: x\r\n",
        b"POST /v1/classify HTTP/1.1\r\ncontent-length: 9\r\n\r\n{",
    )
    with before(target, *limits) as gateway:
        host, _, port = gateway.address.partition(":")
        open_ones = [socket.create_connection((host, int(port)), 30) for _ in range(2 * _CONNECTIONS)]
        try:
            for number, each in enumerate(open_ones):
                try:
                    each.sendall(heads[number % len(heads)])
                except OSError:  # beyond the limit
                    continue
            began = time.monotonic()
            while not _answers(gateway) and time.monotonic() < began + 60:
                time.sleep(0.05)
            served_s = time.monotonic() - began
            statuses = [_status(each) for each in open_ones]
        finally:
            for each in open_ones:
                each.close()
    wrong = sum(status not in ("408", "503") for status in statuses)
    note = ", ".join(f"{statuses.count(each)} {each}" for each in sorted(set(statuses)))
    return Guarantee(
        "slow clients are cut off, and others served again",
        len(statuses),
        0,
        wrong,
        served_s,
        "s",
        f"<= {5 + _SLOW_S:g}",
        note,
    )


def _answers(gateway: RunningGateway) -> bool:
    request = classifications(gateway)[0]
    try:
        return gateway.post(request.path, request.body).status_code == 200
    except OSError:
        return False
    except Exception as error:  # the connection was refused by the limit
        return "Error" not in type(error).__name__


def _status(connection: socket.socket) -> str:
    connection.settimeout(10)
    try:
        words = connection.recv(200).split(None, 2)
    except OSError as error:
        return type(error).__name__
    return words[1].decode() if len(words) > 1 else "closed"
