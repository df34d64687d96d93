"""Engines that generate for one prompt, or for several side by side that begin and end together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from benchmarks.flover.serving.outbox import Ids

Take = Callable[[Ids], None]


class Worker(Protocol):
    """Generates greedily; keeps keys and values of its own, and shares weights with the engine's other workers."""

    def generate(self, prompts: Sequence[Ids], steps: int, take: Take) -> None:
        """Generate for all prompts together.

        Args:
            prompts: [tokens] each.
            steps: tokens for each of them.
            take: is called after every pass with a token for each prompt, [prompts].
        """


class Engine(Protocol):
    """Weights, once."""

    def worker(self) -> Worker:
        """A new one; different ones may generate at the same time."""


class OpenVinoEngine:
    """OpenVINO with keys and values as states.

    Args:
        graph: file, see `benchmarks.flover.export`.
        precision: `bf16` or `fp32`, also of keys and values.
        threads: of all streams together.
        streams: passes that run at a time.
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
    """Properties of OpenVINO's CPU plugin; what it would quantise by itself stays in the precision."""
    kind = {"bf16": "bf16", "fp32": "f32"}[precision]
    return {
        "INFERENCE_PRECISION_HINT": kind,
        "KV_CACHE_PRECISION": kind,
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": streams,
        # Several engines are on this machine, and would be pinned to the same cores.
        "ENABLE_CPU_PINNING": False,
    }


class _OpenVinoWorker:
    def __init__(self, request: Any) -> None:
        self._request = request

    def generate(self, prompts: Sequence[Ids], steps: int, take: Take) -> None:
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
            take(tokens)
            ids, places, end = tokens[:, None], places[:, -1:] + 1, end + 1


class TidalEngine:
    """Tidal's own pass, without its scheduler: slots are the workers'. Workers take turns, pass by pass.

    Args:
        version: folder of a published decoder.
        threads: of a pass.
        workers: how many there may be.
        rows: prompts that a worker may have at the same time.
    """

    def __init__(self, version: Path, *, threads: int, workers: int, rows: int) -> None:
        import torch

        from tidal.flover.manifest import WEIGHTS_FILE, load_flover_manifest
        from tidal.flover.models.weights import load_weights
        from tidal.flover.runner import FloverRunner

        torch.set_num_threads(threads)
        manifest = load_flover_manifest(version)
        weights = load_weights(version / WEIGHTS_FILE, manifest.form, torch.device("cpu"))
        self._runner = FloverRunner(manifest.form, weights, slots=workers * rows, max_length=manifest.max_length)
        self._runner.warm_up()
        self._rows, self._given, self._turn = rows, 0, threading.Lock()

    def worker(self) -> Worker:
        """See `Engine`."""
        begin, self._given = self._given, self._given + self._rows
        return _TidalWorker(self._runner, begin, self._turn)


class _TidalWorker:
    def __init__(self, runner: Any, begin: int, turn: threading.Lock) -> None:
        self._runner, self._begin, self._turn = runner, begin, turn

    def generate(self, prompts: Sequence[Ids], steps: int, take: Take) -> None:
        tokens = np.empty(len(prompts), np.int64)
        for row, prompt in enumerate(prompts):
            with self._turn:
                tokens[row] = int(self._runner.prefill(self._begin + row, prompt, 0).argmax())
        take(tokens)
        places = np.array([len(prompt) for prompt in prompts], np.int64)
        for _ in range(steps - 1):
            with self._turn:
                logits = self._runner.decode(self._begin, self._begin + len(prompts), tokens, places)
            tokens, places = logits.numpy().argmax(-1), places + 1
            take(tokens)


class TransformersEngine:
    """`generate` of transformers.

    Args:
        source: folder in Hugging Face format.
        precision: `bf16` or `fp32`.
        threads: of torch.
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

    def generate(self, prompts: Sequence[Ids], steps: int, take: Take) -> None:
        import torch

        ids, mask = left_padded(prompts)
        self._model.generate(
            torch.from_numpy(ids),
            attention_mask=torch.from_numpy(mask),
            do_sample=False,
            max_new_tokens=steps,
            pad_token_id=0,
            streamer=_Streamer(take),
        )


class _Streamer:
    """Takes what `generate` puts: first the prompts, then a token of each."""

    def __init__(self, take: Take) -> None:
        self._take, self._begun = take, False

    def put(self, value: Any) -> None:
        if self._begun:
            self._take(value.numpy().reshape(-1))
        self._begun = True

    def end(self) -> None:
        pass


def left_padded(prompts: Sequence[Ids]) -> tuple[Ids, Ids]:
    """Token ids and mask, [prompts, longest], with padding before the shorter ones."""
    longest = max(len(prompt) for prompt in prompts)
    ids, mask = np.zeros((2, len(prompts), longest), np.int64)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = prompt
        mask[row, longest - len(prompt) :] = 1
    return ids, mask
