"""What single calls of Triton's Python stub cost: reading an input, creating tensors and responses, sending answers."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tritonclient.grpc as triton

from benchmarks.report import Report, progress
from benchmarks.request_path.load import Requests
from benchmarks.request_path.rounds import Bench
from tidal.server.child import RunningServer

#: Calls in the order of the model's answer, in words.
CALLS = (
    "get_input_tensor_by_name",
    "as_numpy of one text",
    "Tensor of 7 float32",
    "Tensor of one label",
    "InferenceResponse of both",
    "get_response_sender",
    "send",
)
_ANSWERS = ("list", "senders")
_ROWS = 256


def add(report: Report, bench: Bench, server: RunningServer, repository: Path, concurrencies: Sequence[int]) -> None:
    """Measure the calls with answers in a list and with senders, and add a table.

    Args:
        report: Report to add to.
        bench: Benchmark that sends the load.
        server: Server of the repository.
        repository: Model repository, to which the models are added.
        concurrencies: Numbers of requests in flight.
    """
    measured: dict[str, dict[str, list[float]]] = {}
    for answers in _ANSWERS:
        model = f"stub_calls_{answers}"
        _write(repository / model, answers)
        server.control.load(model, None)
        requests = Requests(model, [{"text_input": [f"text {number}"]} for number in range(_ROWS)])
        for concurrency in concurrencies:
            progress(f"calls of the stub, {answers}: {concurrency} in flight")
            bench.generator.run(server.state.grpc, requests, concurrency=concurrency, seconds=bench.seconds)
            measured.setdefault(answers, {})[str(concurrency)] = _medians(server.state.grpc, model)
        server.control.unload(model)
    report.measured["stub_calls_us"] = measured
    columns = [f"{answers}, {at} in flight" for answers, cells in measured.items() for at in cells]
    every = [cells for sides in measured.values() for cells in sides.values()]
    rows = [
        [call, *(f"{cells[number]:.1f}" if cells[number] else "-" for cells in every)]
        for number, call in enumerate(CALLS)
    ]
    report.add_table("a call of the stub, µs: medians of the last 1,000", ["", *columns], rows)


def _write(folder: Path, answers: str) -> None:
    (folder / "1").mkdir(parents=True)
    shutil.copyfile(Path(__file__).with_name("stub_model.py"), folder / "1" / "model.py")
    (folder / "config.pbtxt").write_text(
        'backend: "python"\nmax_batch_size: 64\n'
        'input { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] }\n'
        f'output {{ name: "microseconds" data_type: TYPE_FP32 dims: [ {len(CALLS)} ] }}\n'
        'output { name: "label" data_type: TYPE_STRING dims: [ 1 ] }\n'
        "instance_group { kind: KIND_CPU count: 1 }\ndynamic_batching { }\n"
        f'parameters {{ key: "answers" value {{ string_value: "{answers}" }} }}\n'
    )


def _medians(address: str, model: str) -> list[float]:
    with triton.InferenceServerClient(address) as client:
        text = triton.InferInput("text_input", [1, 1], "BYTES")
        text.set_data_from_numpy(np.array([[b"what did it cost"]], object))
        found = client.infer(model, [text]).as_numpy("microseconds")
    return [float(each) for each in found[0]]
