"""Engines that generate for one prompt, or for several that begin and end together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from benchmarks.flover.serving.outbox import Ids

AddTokens = Callable[[Ids], None]


class Worker(Protocol):
    """Generates greedily, with its own keys and values and the weights of its engine."""

    def generate(self, prompts: Sequence[Ids], steps: int, add: AddTokens) -> None:
        """Generate for all prompts together.

        Args:
            prompts: Token ids of each prompt, [tokens].
            steps: Number of tokens to generate for each.
            add: Called after every pass with the tokens of all prompts, [prompts].
        """


class Engine(Protocol):
    """Weights shared by workers."""

    def worker(self) -> Worker:
        """Create a worker; different workers may generate at the same time."""


class OpenVinoEngine:
    """OpenVINO with keys and values as states.

    Args:
        graph: Graph file, see `benchmarks.flover.export`.
        precision: `bf16` or `fp32`, also of keys and values.
        threads: Number of threads of all streams together.
        streams: Number of simultaneous passes.
    """

    def __init__(self, graph: Path, precision: str, *, threads: int, streams: int) -> None:
        import openvino as ov

        from benchmarks.flover.export import only_last

        core = ov.Core()
        model = core.read_model(graph)
        only_last(model)
        self._compiled = core.compile_model(model, "CPU", openvino_settings(precision, threads, streams))

    def worker(self) -> Worker:
        """See `Engine`."""
        return _OpenVinoWorker(self._compiled.create_infer_request())


def openvino_settings(precision: str, threads: int, streams: int = 1) -> dict[str, Any]:
    """Return properties of OpenVINO's CPU plugin, which disable its automatic quantisation."""
    kind = {"bf16": "bf16", "fp32": "f32"}[precision]
    return {
        "INFERENCE_PRECISION_HINT": kind,
        "KV_CACHE_PRECISION": kind,
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": streams,
        # Several engines on this machine would be pinned to the same cores.
        "ENABLE_CPU_PINNING": False,
    }


class _OpenVinoWorker:
    def __init__(self, request: Any) -> None:
        self._request = request

    def generate(self, prompts: Sequence[Ids], steps: int, add: AddTokens) -> None:
        self._request.reset_state()
        ids, known = left_padded(prompts)
        mask = np.ones((len(prompts), known.shape[1] + steps), np.int64)
        mask[:, : known.shape[1]] = known
        places = np.maximum(known.cumsum(1) - 1, 0)
        order, end = np.arange(len(prompts), dtype=np.int32), known.shape[1]
        for _ in range(steps):
            inputs = {"input_ids": ids, "attention_mask": mask[:, :end], "position_ids": places, "beam_idx": order}
            logits = self._request.infer(inputs, share_outputs=True)[0]
            tokens = logits[:, -1].argmax(-1)
            add(tokens)
            ids, places, end = tokens[:, None], places[:, -1:] + 1, end + 1


class TidalEngine:
    """Tidal's passes without its scheduler: each worker has its own slots, and passes of workers alternate.

    Args:
        version: Folder of a published decoder.
        threads: Number of threads of a pass.
        workers: Largest number of workers.
        rows: Largest number of simultaneous prompts of a worker.
    """

    def __init__(self, version: Path, *, threads: int, workers: int, rows: int) -> None:
        import torch

        from tidal.flover.manifest import WEIGHTS_FILE, load_flover_manifest
        from tidal.flover.models.weights_file import load_weights
        from tidal.flover.runner import FloverRunner

        torch.set_num_threads(threads)
        manifest = load_flover_manifest(version)
        weights = load_weights(version / WEIGHTS_FILE, manifest.form, torch.device("cpu"))
        self._runner = FloverRunner(manifest.form, weights, slots=workers * rows, max_length=manifest.max_length)
        self._runner.warm_up()
        self._rows, self._given, self._lock = rows, 0, threading.Lock()

    def worker(self) -> Worker:
        """See `Engine`."""
        begin, self._given = self._given, self._given + self._rows
        return _TidalWorker(self._runner, begin, self._lock)


class _TidalWorker:
    def __init__(self, runner: Any, begin: int, lock: threading.Lock) -> None:
        self._runner, self._begin, self._lock = runner, begin, lock

    def generate(self, prompts: Sequence[Ids], steps: int, add: AddTokens) -> None:
        tokens = np.empty(len(prompts), np.int64)
        for row, prompt in enumerate(prompts):
            with self._lock:
                tokens[row] = int(self._runner.prefill(self._begin + row, prompt, 0).argmax())
        add(tokens)
        places = np.array([len(prompt) for prompt in prompts], np.int64)
        for _ in range(steps - 1):
            with self._lock:
                logits = self._runner.decode(self._begin, self._begin + len(prompts), tokens, places)
            tokens, places = logits.numpy().argmax(-1), places + 1
            add(tokens)


class TransformersEngine:
    """`generate` of transformers.

    Args:
        source: Folder in Hugging Face format.
        precision: `bf16` or `fp32`.
        threads: Number of threads of torch.
    """

    def __init__(self, source: Path, precision: str, *, threads: int) -> None:
        import torch

        from benchmarks.flover.source import open_source

        torch.set_num_threads(threads)
        self._model = open_source(source, precision)

    def worker(self) -> Worker:
        """See `Engine`."""
        return _TransformersWorker(self._model)


class _TransformersWorker:
    def __init__(self, model: Any) -> None:
        self._model = model

    def generate(self, prompts: Sequence[Ids], steps: int, add: AddTokens) -> None:
        import torch

        ids, mask = left_padded(prompts)
        self._model.generate(
            torch.from_numpy(ids),
            attention_mask=torch.from_numpy(mask),
            do_sample=False,
            max_new_tokens=steps,
            pad_token_id=0,
            streamer=_Streamer(add),
        )


class _Streamer:
    """Receives the output of `generate`: first the prompts, then a token of each."""

    def __init__(self, add: AddTokens) -> None:
        self._add, self._begun = add, False

    def put(self, value: Any) -> None:
        if self._begun:
            self._add(value.numpy().reshape(-1))
        self._begun = True

    def end(self) -> None:
        pass


def left_padded(prompts: Sequence[Ids]) -> tuple[Ids, Ids]:
    """Return token ids and mask, [prompts, longest], with padding before the shorter prompts."""
    longest = max(len(prompt) for prompt in prompts)
    ids, mask = np.zeros((2, len(prompts), longest), np.int64)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = prompt
        mask[row, longest - len(prompt) :] = 1
    return ids, mask
