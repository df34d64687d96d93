"""Ten thousand requests that cannot be accepted, over both protocols, some of them large."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product

from reliability.bench import Bench
from reliability.fuzzing.mutations import valid
from reliability.fuzzing.sending import Refusal, grpc_requests, http_requests, lying_requests, send_grpc, send_http
from reliability.fuzzing.wire import Wire, element, to_grpc, to_http
from reliability.models import SMALL
from reliability.rows import Row, none_failed

_COUNT, _QUICK_COUNT = 10_000, 210
_CLIENTS = 3
_SEED = 20_000
_MIB = 1 << 20
_LARGE = (1, 8, 64)


def run(bench: Bench) -> list[Row]:
    """Send them from several clients of each protocol while all models are asked."""
    count = (_QUICK_COUNT if bench.quick else _COUNT) // (2 * _CLIENTS + 1) + 1
    large = _LARGE[:1] if bench.quick else _LARGE
    report, names = bench.served.report, [model.name for model in bench.models]
    before = bench.processes()
    # What models count as answered is of the load alone: none of these may be. Triton counts refusals of `engine` too.
    seeds = [_SEED + number for number in range(_CLIENTS)]
    with bench.load(uncounted={"engine"}) as load, ThreadPoolExecutor(2 * _CLIENTS) as pool:
        jobs = [pool.submit(send_http, report["http"], http_requests(seed, count, names)) for seed in seeds]
        jobs += [pool.submit(send_grpc, report["grpc"], grpc_requests(-seed, count, names)) for seed in seeds]
        found = [refusal for job in jobs for refusal in job.result()]
        found += send_http(report["http"], ((what, to_http(wire)) for what, wire in _large(large, names)))
        found += send_grpc(report["grpc"], ((what, to_grpc(wire)) for what, wire in _large(large, names)))
        load.goes_on(20)
    # Alone: tritonserver answers what shares a batch with one of these with its error.
    found += send_grpc(report["grpc"], lying_requests(_SEED, count, names))
    changed = before ^ bench.processes()
    wrong = [each for each in found if not each.kept and not each.own]
    own = sum(each.own for each in found)
    note = f"{own} with JSON that tritonserver itself answers with 500"
    return [
        Row("malformed requests get an error of the class 4xx", len(found), 0, len(wrong), len(wrong), "others",
            "== 0", _told(wrong) or note),
        Row("processes that malformed requests end", len(found), 0, len(changed), len(changed), "changed", "== 0"),
        none_failed("other requests meanwhile", len(load.sent), len(found), load.failures(), quick=bench.quick),
    ]  # fmt: skip


def _told(wrong: list[Refusal]) -> str:
    kinds = Counter(f"{each.what}: {each.answer[:90]}" for each in wrong)
    return "; ".join(f"{number}x {kind}" for kind, number in kinds.most_common(3))


def _large(sizes: Collection[int], names: Collection[str]) -> Iterator[tuple[str, Wire]]:
    """Texts, images and inputs of many MiB."""
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
