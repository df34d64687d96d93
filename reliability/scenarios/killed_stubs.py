"""Each Python stub killed under load: it comes back by itself, and nobody else notices."""

from __future__ import annotations

import asyncio
import os
import signal
import time

from reliability.bench import Bench
from reliability.load import Load, Sent, ask
from reliability.models import LATENCIES_MS, SMALL, Model, engine_inputs
from reliability.rows import Row, none_failed
from tidal_client import AsyncClient

SERVED_AGAIN_S = 5.0
TIMEOUT_S, _QUICK_TIMEOUT_S = 5.0, 2.5
# Where nothing is judged by time, others are not either.
_QUICK_OTHERS_S = 30.0
_EVERY_S, GIVE_UP_S = 0.1, 60.0
# Sent together right before a kill, so that some of them are in flight. None in the quick form: the busier a process
# is when it is killed, the likelier it ends tritonserver.
_IN_FLIGHT, _QUICK_IN_FLIGHT, _UNDER_WAY_S = 64, 0, 0.005
# What a client that shares its processor with the server takes to notice that its time is over.
_NOTICED_S = 1.0
# Requests that others send before and after a kill.
_AROUND = 50


def _runtime(length: int) -> Model:
    name = f"split_len{length}"
    return Model(name, "", lambda client, n: client.infer(name, engine_inputs(n, length)))


def run(bench: Bench) -> list[Row]:
    """Kill the stubs one after the other."""
    # Instances may have been moved away from a runtime: nothing of it can be killed then.
    victims = [model for model in (*bench.models, *map(_runtime, LATENCIES_MS)) if bench.stubs(model.name)]
    timeout_s, others_s, uncounted = TIMEOUT_S, TIMEOUT_S, set[str]()
    if bench.quick:
        victims = [model for model in bench.models if model.name == SMALL]
        # Who has just been asked without being counted would have to be waited for.
        uncounted = {model.name for model in bench.models}
        timeout_s, others_s = _QUICK_TIMEOUT_S, _QUICK_OTHERS_S
    away, waited, probes, others, failures, lost = dict[str, float](), [0.0], 0, 0, list[str](), list[str]()
    for victim in victims:
        report, asking = bench.served.report, _asking(bench, victim)
        rest = [model for model in bench.models if model != victim and model not in asking]
        apart = {model.name for model in (victim, *asking)} | uncounted
        with (
            bench.load(rest, uncounted=apart, timeout_s=others_s) as load,
            Load(report["grpc"], report["http"], [victim, *asking], timeout_s=timeout_s) as hit,
        ):
            load.goes_on(_AROUND)
            killed, asked = asyncio.run(_kill(bench, victim, timeout_s))
            load.goes_on(_AROUND)
        probes += len(asked)
        again = [each.end for each in asked if each.answered and each.start > killed]
        seconds = min(again, default=killed + GIVE_UP_S) - killed
        if not bench.alive():
            lost.append(
                f"{victim.name}: {f'served with a new one after {seconds:.1f} s' if again else 'never served again'}"
            )
            continue
        away[victim.name] = seconds
        waited += [each.end - each.start for each in (*hit.sent, *asked) if each.start <= killed < each.end]
        others += len(load.sent)
        failures += [f"while {victim.name} was killed: {each}" for each in load.failures()]
    kills = len(victims)
    slowest = max(away.values(), default=GIVE_UP_S)
    each = ", ".join(f"{name} {seconds:.1f}" for name, seconds in away.items()) or "every kill ended tritonserver"
    return [
        Row("a killed stub is served again by itself", probes, kills, 0, slowest, "s",
            f"<= {SERVED_AGAIN_S:g}", each),
        Row("what was in flight there ends at the client's timeout", len(waited) - 1, kills, 0, max(waited), "s",
            f"<= {timeout_s + _NOTICED_S:g}", f"clients wait {timeout_s:g} s"),
        none_failed("other models while a stub is killed", others, kills, failures, quick=bench.quick),
        Row("tritonserver outlives a killed stub", 0, kills, 0, len(lost), "lost", "== 0", ", ".join(lost)),
    ]  # fmt: skip


def _asking(bench: Bench, victim: Model) -> list[Model]:
    """Models whose queries are in flight in the victim: of a runtime, the one that sends them there."""
    return [model for model in bench.models if victim.name.startswith(f"{model.name}_len")]


async def _kill(bench: Bench, victim: Model, timeout_s: float) -> tuple[float, list[Sent]]:
    """Kill a model's stubs with requests in flight; ask ten times a second until one of after the kill is answered.

    Returns:
        When it was killed, and what was asked, before and after.
    """
    stubs = bench.stubs(victim.name)
    in_flight = _QUICK_IN_FLIGHT if bench.quick else _IN_FLIGHT
    async with AsyncClient(f"grpc://{bench.served.report['grpc']}", timeout_s=timeout_s) as client:
        await ask(client, victim, 0)  # which connects
        asked = [asyncio.create_task(ask(client, victim, number)) for number in range(in_flight)]
        await asyncio.sleep(_UNDER_WAY_S)
        for stub in stubs:
            os.kill(stub.pid, signal.SIGKILL)
        killed = time.monotonic()
        while time.monotonic() < killed + GIVE_UP_S:
            asked.append(asyncio.create_task(ask(client, victim, len(asked))))
            await asyncio.sleep(_EVERY_S)
            if any(each.done() and each.result().answered and each.result().start > killed for each in asked):
                break
        return killed, list(await asyncio.gather(*asked))
