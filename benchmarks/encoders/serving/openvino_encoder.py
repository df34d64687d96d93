"""Tokenizer and OpenVINO model that FastAPI, LitServe and Ray Serve are put around."""

from __future__ import annotations

import numpy as np
import openvino
from batch_counter import BatchCounter
from tokenizers import Tokenizer


class Encoder:
    """An encoder in fp32.

    Args:
        settings: Settings of the server; see `benchmarks.encoders.systems`.
        threads: Number of threads of all streams together.
        streams: Number of requests that it computes at the same time.
    """

    def __init__(self, settings: dict, threads: int, streams: int = 1) -> None:
        self._tokenizer = Tokenizer.from_file(settings["tokenizer"])
        self._tokenizer.enable_truncation(settings["max_length"])
        self._tokenizer.enable_padding()
        self._scores = settings["task"] == "rerank"
        self.compiled = openvino.Core().compile_model(
            settings["model"],
            "CPU",
            {
                "INFERENCE_PRECISION_HINT": "f32",
                "INFERENCE_NUM_THREADS": threads,
                "NUM_STREAMS": streams,
                "ENABLE_CPU_PINNING": False,
            },
        )
        self._inputs = [each.any_name for each in self.compiled.inputs]
        self._output = self.compiled.output(settings["output"])
        self._counter = BatchCounter(settings["counts"])

    def tokenize(self, rows: list) -> dict:
        """Return the padded inputs of texts, or of pairs of texts; the rows count as a batch."""
        self._counter.add(len(rows))
        every = self._tokenizer.encode_batch([tuple(row) if isinstance(row, list) else row for row in rows])
        found = {
            "input_ids": [each.ids for each in every],
            "attention_mask": [each.attention_mask for each in every],
            "token_type_ids": [each.type_ids for each in every],
        }
        return {name: np.array(found[name], np.int64) for name in self._inputs}

    def output(self, results: object) -> np.ndarray:
        """Return a copy of the embeddings or scores of an inference, [rows, values]."""
        values = results[self._output]
        return 1 / (1 + np.exp(-values)) if self._scores else values.copy()

    def infer(self, rows: list) -> np.ndarray:
        """Return the embeddings or scores of a batch, [rows, values]."""
        return self.output(self.compiled(self.tokenize(rows)))
