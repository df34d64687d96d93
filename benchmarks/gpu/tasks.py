"""BERT-base with 32 tasks in float32: PetS's shared encoder against a model per task, in turn or in parallel."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.encoder import EncoderModule, make_encoder, size_of
from benchmarks.gpu.recording import Record, Setting, median_ms
from benchmarks.gpu.shared_encoder import SharedEncoder

TASKS = 32
ROWS, LENGTHS = (1, 4), (32, 128)


def measure(setting: Setting, record: Record) -> None:
    """Measure queries/s of batches with rows of all tasks; claims `gpu_pets_vs_seqs[32]`.

    The claim is of one row per task of the shorter length, where the tasks of a busy server meet.
    """
    tasks = setting.choose(TASKS, 4)
    shared = SharedEncoder(setting)
    engine = shared.open(setting.device)
    loaded = shared.add_tasks(engine, tasks)
    vocabulary = size_of(setting).vocabulary
    found: dict[str, dict[str, float]] = {}
    for length in setting.choose(LENGTHS, (8,)):
        for rows in setting.choose(ROWS, (1,)):
            case = f"{rows} rows of {length} tokens per task"
            draw = np.random.default_rng(length)
            ids = draw.integers(0, vocabulary, (tasks * rows, length)).astype(np.int32)
            lengths = np.full(len(ids), length, np.int32)
            of_rows = [task for task in loaded for _ in range(rows)]
            calls: dict[str, Callable[[], Any]] = {"PetS": partial(engine.pooled, of_rows, ids, lengths)}
            with record.case(f"models, {case}"):
                models = ModelPerTask(setting, tasks, rows, length)
                calls |= {"SeqS": models.in_turn, "ParS": models.in_parallel}
            found[case] = {}
            for name, call in calls.items():
                with record.case(f"{name}, {case}"):
                    taken = median_ms(call, setting.torch_device, seconds=setting.choose(1.0, 0.02))
                    found[case][name] = len(ids) / taken * 1e3
                    record.put("queries/s", found)
            if len(found) == 1 and {"PetS", "SeqS"} <= found[case].keys():
                record.claim(f"gpu_pets_vs_seqs[{TASKS}]", found[case]["PetS"] / found[case]["SeqS"])
            names = list(dict.fromkeys(name for cells in found.values() for name in cells))
            table = [[at, *(f"{cells[n]:.0f}" if n in cells else "-" for n in names)] for at, cells in found.items()]
            record.table(f"BERT-base fp32 with {tasks} tasks, queries/s", ["batch", *names], table)


class ModelPerTask:
    """A full model per task, each with a captured graph for its rows: the best way to do without a shared encoder.

    Args:
        setting: Setting of the step.
        tasks: Number of tasks.
        rows: Number of rows of each task.
        length: Number of tokens of each row.
    """

    def __init__(self, setting: Setting, tasks: int, rows: int, length: int) -> None:
        size, device = size_of(setting), setting.torch_device
        first = make_encoder(size).to(device)
        self._device = device
        # Copies, as every task has weights of its own: each model is read from memory.
        self._models = [first, *(_copy(first, size, device) for _ in range(tasks - 1))]
        draw = np.random.default_rng(0)
        self._host = [torch.from_numpy(draw.integers(0, size.vocabulary, (rows, length))) for _ in range(tasks)]
        if device.type == "cuda":
            self._host = [each.pin_memory() for each in self._host]
        self._inputs = [each.to(device) for each in self._host]
        self._mask = torch.ones_like(self._inputs[0])
        self._streams: list[torch.cuda.Stream] = []
        self._graphs: list[torch.cuda.CUDAGraph] = []
        self._outputs: list[torch.Tensor] = []
        if device.type == "cuda":
            self._streams = [torch.cuda.Stream() for _ in self._models]
            for number, stream in enumerate(self._streams):
                self._capture(number, stream)

    def in_turn(self) -> list[torch.Tensor]:
        """Run the models one after another."""
        return [self._run(number).cpu() for number in range(len(self._models))]

    def in_parallel(self) -> list[torch.Tensor]:
        """Run the models concurrently, each on a stream of its own."""
        if not self._streams:
            return self.in_turn()
        outputs = []
        for number, stream in enumerate(self._streams):
            with torch.cuda.stream(stream):
                outputs.append(self._run(number).to("cpu", non_blocking=True))
        torch.cuda.synchronize()
        return outputs

    def _run(self, number: int) -> torch.Tensor:
        self._inputs[number].copy_(self._host[number], non_blocking=True)
        if self._graphs:
            self._graphs[number].replay()
            return self._outputs[number]
        return self._forward(number)

    def _forward(self, number: int) -> torch.Tensor:
        with torch.inference_mode():
            logits: torch.Tensor = self._models[number](self._inputs[number], self._mask)["logits"]
            return logits

    def _capture(self, number: int, stream: torch.cuda.Stream) -> None:
        with torch.cuda.stream(stream):
            for _ in range(2):
                self._forward(number)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            output = self._forward(number)
        self._graphs.append(graph)
        self._outputs.append(output)


def _copy(model: EncoderModule, size: Any, device: torch.device) -> EncoderModule:
    with torch.device("meta"):
        made = EncoderModule(size)
    made = made.to_empty(device=device).eval().requires_grad_(False)
    made.load_state_dict(model.state_dict())
    return made
