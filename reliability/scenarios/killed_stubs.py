"""Each Python stub killed under load: it is restarted automatically, and no other model is affected."""

from __future__ import annotations

import asyncio
import os
import signal
import time

from reliability.load import BackgroundLoad, EndedRequest, send
from reliability.models import LATENCIES_MS, ServedModel, engine_inputs
from reliability.rows import Guarantee, none_failed
from reliability.server_under_test import ServerUnderTest
from testing.cascades import SMALL
from tidal_client import AsyncClient

SERVED_AGAIN_S = 5.0
TIMEOUT_S, _QUICK_TIMEOUT_S = 5.0, 2.5
# Timeout of the other models in the quick form, which does not measure time.
_QUICK_OTHERS_S = 30.0
_EVERY_S, GIVE_UP_S = 0.1, 60.0
# Requests sent right before a kill, so that some of them are in flight. None in the quick form: the busier a process
# is when it is killed, the more likely it ends tritonserver too.
_IN_FLIGHT, _QUICK_IN_FLIGHT, _UNDER_WAY_S = 64, 0, 0.005
# Time that a client on the server's processor needs to detect its timeout.
_NOTICED_S = 1.0
# Requests to the other models before and after a kill.
_AROUND = 50


def _runtime(length: int) -> ServedModel:
    name = f"split_len{length}"
    return ServedModel(name, "", lambda client, n: client.infer(name, engine_inputs(n, length)))


def run(target: ServerUnderTest) -> list[Guarantee]:
    """Kill the stubs one after the other."""
    # A runtime may have no instances any more: it has no process to kill then.
    victims = [model for model in (*target.models, *map(_runtime, LATENCIES_MS)) if target.stubs(model.name)]
    timeout_s, others_s, uncounted = TIMEOUT_S, TIMEOUT_S, set[str]()
    if target.quick:
        victims = [model for model in target.models if model.name == SMALL]
        # Models with uncompared requests would require a wait until their counters are stable.
        uncounted = {model.name for model in target.models}
        timeout_s, others_s = _QUICK_TIMEOUT_S, _QUICK_OTHERS_S
    unavailable_s, waited_s, probes, others, failures, lost = dict[str, float](), [0.0], 0, 0, list[str](), list[str]()
    for victim in victims:
        report, fronts = target.served.report, _fronts_of(target, victim)
        rest = [model for model in target.models if model != victim and model not in fronts]
        apart = {model.name for model in (victim, *fronts)} | uncounted
        with (
            target.load(rest, uncounted=apart, timeout_s=others_s) as load,
            BackgroundLoad(report["grpc"], report["http"], [victim, *fronts], timeout_s=timeout_s) as hit,
        ):
            load.wait_for(_AROUND)
            killed, probe_requests = asyncio.run(_kill(target, victim, timeout_s))
            load.wait_for(_AROUND)
        probes += len(probe_requests)
        again = [each.end for each in probe_requests if each.answered and each.start > killed]
        seconds = min(again, default=killed + GIVE_UP_S) - killed
        if not target.alive():
            lost.append(
                f"{victim.name}: {f'served with a new one after {seconds:.1f} s' if again else 'never served again'}"
            )
            continue
        unavailable_s[victim.name] = seconds
        waited_s += [each.end - each.start for each in (*hit.sent, *probe_requests) if each.start <= killed < each.end]
        others += len(load.sent)
        failures += [f"while {victim.name} was killed: {each}" for each in load.failures()]
    kills = len(victims)
    slowest = max(unavailable_s.values(), default=GIVE_UP_S)
    each = (
        ", ".join(f"{name} {seconds:.1f}" for name, seconds in unavailable_s.items()) or "every kill ended tritonserver"
    )
    return [
        Guarantee(
            "a killed stub is served again by itself", probes, kills, 0, slowest, "s", f"<= {SERVED_AGAIN_S:g}", each
        ),
        Guarantee(
            "what was in flight there ends at the client's timeout",
            len(waited_s) - 1,
            kills,
            0,
            max(waited_s),
            "s",
            f"<= {timeout_s + _NOTICED_S:g}",
            f"clients wait {timeout_s:g} s",
        ),
        none_failed("other models while a stub is killed", others, kills, failures, quick=target.quick),
        Guarantee("tritonserver outlives a killed stub", 0, kills, 0, len(lost), "lost", "== 0", ", ".join(lost)),
    ]


def _fronts_of(target: ServerUnderTest, victim: ServedModel) -> list[ServedModel]:
    """Return the models whose queries are in flight in the victim: for a runtime, its front."""
    return [model for model in target.models if victim.name.startswith(f"{model.name}_len")]


async def _kill(target: ServerUnderTest, victim: ServedModel, timeout_s: float) -> tuple[float, list[EndedRequest]]:
    """Kill a model's stubs with requests in flight; send ten requests per second until one of them is answered.

    Returns:
        Time of the kill, and the requests before and after it.
    """
    stubs = target.stubs(victim.name)
    in_flight = _QUICK_IN_FLIGHT if target.quick else _IN_FLIGHT
    async with AsyncClient(f"grpc://{target.served.report['grpc']}", timeout_s=timeout_s) as client:
        await send(client, victim, 0)  # opens the connection
        probe_requests = [asyncio.create_task(send(client, victim, number)) for number in range(in_flight)]
        await asyncio.sleep(_UNDER_WAY_S)
        for stub in stubs:
            os.kill(stub.pid, signal.SIGKILL)
        killed = time.monotonic()
        while time.monotonic() < killed + GIVE_UP_S:
            probe_requests.append(asyncio.create_task(send(client, victim, len(probe_requests))))
            await asyncio.sleep(_EVERY_S)
            if any(each.done() and each.result().answered and each.result().start > killed for each in probe_requests):
                break
        return killed, list(await asyncio.gather(*probe_requests))
