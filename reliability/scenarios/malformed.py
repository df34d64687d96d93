"""Ten thousand requests that cannot be accepted, over both protocols, some of them large."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product

from reliability.fuzzing.mutations import valid
from reliability.fuzzing.sending import (
    MalformedOutcome,
    grpc_requests,
    http_requests,
    mismatched_requests,
    send_grpc,
    send_http,
)
from reliability.fuzzing.wire import WireRequest, element, to_grpc, to_http
from reliability.rows import Guarantee, none_failed
from reliability.server_under_test import ServerUnderTest
from testing.cascades import SMALL

_COUNT, _QUICK_COUNT = 10_000, 210
_CLIENTS = 3
_SEED = 20_000
_MIB = 1 << 20
_LARGE = (1, 8, 64)


def run(target: ServerUnderTest) -> list[Guarantee]:
    """Send malformed requests from several clients of each protocol while all models receive normal ones."""
    count = (_QUICK_COUNT if target.quick else _COUNT) // (2 * _CLIENTS + 1) + 1
    large = _LARGE[:1] if target.quick else _LARGE
    report, names = target.served.report, [model.name for model in target.models]
    before = target.processes()
    # None of these may be counted as answered. Triton counts rejections by `engine` too.
    seeds = [_SEED + number for number in range(_CLIENTS)]
    with target.load(uncounted={"engine"}) as load, ThreadPoolExecutor(2 * _CLIENTS) as pool:
        jobs = [pool.submit(send_http, report["http"], http_requests(seed, count, names)) for seed in seeds]
        jobs += [pool.submit(send_grpc, report["grpc"], grpc_requests(-seed, count, names)) for seed in seeds]
        found = [refusal for job in jobs for refusal in job.result()]
        found += send_http(report["http"], ((what, to_http(wire)) for what, wire in _large(large, names)))
        found += send_grpc(report["grpc"], ((what, to_grpc(wire)) for what, wire in _large(large, names)))
        load.wait_for(20)
    # Without the load: tritonserver answers a batch with the error of one of these.
    found += send_grpc(report["grpc"], mismatched_requests(_SEED, count, names))
    changed = before ^ target.processes()
    wrong = [each for each in found if not each.rejected and not each.own]
    own = sum(each.own for each in found)
    note = f"{own} with JSON that tritonserver itself answers with 500"
    return [
        Guarantee(
            "malformed requests get an error of the class 4xx",
            len(found),
            0,
            len(wrong),
            len(wrong),
            "others",
            "== 0",
            _most_common(wrong) or note,
        ),
        Guarantee(
            "processes that malformed requests end", len(found), 0, len(changed), len(changed), "changed", "== 0"
        ),
        none_failed("other requests meanwhile", len(load.sent), len(found), load.failures(), quick=target.quick),
    ]


def _most_common(wrong: list[MalformedOutcome]) -> str:
    kinds = Counter(f"{each.what}: {each.answer[:90]}" for each in wrong)
    return "; ".join(f"{number}x {kind}" for kind, number in kinds.most_common(3))


def _large(sizes: Collection[int], names: Collection[str]) -> Iterator[tuple[str, WireRequest]]:
    """Yield requests with texts, images and inputs of many MiB."""
    for size, model in product(sizes, (SMALL, "cascade", "tasks", "images", "engine")):
        if model not in names:
            continue
        wire = valid(model, 0)
        if model == "engine":
            for tensor in wire.inputs:
                tensor.shape, tensor.content = [1, size * _MIB // 8], bytes(size * _MIB)
        else:
            wire.inputs[0].content = element(b"good " * (size * _MIB // 5))
        yield f"{model} of {size} MiB", wire
