"""The baseline: a hand-written synchronous model of Triton's Python backend around the same engine and tokenizer.

Loaded by Triton as `<model>/1/model.py`. It returns the outputs of the `arlo` backend for single texts. The parameter
`answers` selects how: `list` returns all responses from `execute`; `senders` sends each with its response sender;
`thread` does so on another thread, while `execute` returns at once.
"""

import json
import queue
import threading
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Synchronous model with one engine per instance."""

    def initialize(self, args: dict[str, str]) -> None:
        """Open the engine with this instance's share of the threads."""
        from tokenizers import Tokenizer

        from tidal.arlo.manifest import load_arlo_manifest
        from tidal.engines import open_engines

        parameters = {k: v["string_value"] for k, v in json.loads(args["model_config"])["parameters"].items()}
        version = Path(parameters["version_dir"])
        manifest = load_arlo_manifest(version)
        runtime = manifest.runtimes[-1]
        (self.engine,) = open_engines(
            manifest.artifact(runtime, version), contexts=1, threads=int(parameters["threads"])
        )
        self.inputs, self.length = manifest.inputs, runtime.max_length
        self.labels = np.array([label.encode() for label in manifest.labels], object)
        self.tokenizer = Tokenizer.from_file(str(version / manifest.tokenizer.file))
        self.tokenizer.enable_padding()
        self.answers = parameters["answers"]
        self.waiting = queue.SimpleQueue[tuple[list[Any], list[Any]]]()
        if self.answers == "thread":
            threading.Thread(target=self._answer_batches, daemon=True).start()

    def execute(self, requests: list[Any]) -> list[Any] | None:
        """Run a batch; return a response per request, or send them."""
        if self.answers == "list":
            return self._responses(requests)
        if self.answers == "senders":
            self._send(requests, [request.get_response_sender() for request in requests])
        else:
            self.waiting.put((requests, [request.get_response_sender() for request in requests]))
        return None

    def _responses(self, requests: list[Any]) -> list[Any]:
        columns = [pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy() for request in requests]
        encodings = self.tokenizer.encode_batch_fast([text.decode() for rows in columns for text in rows[:, 0]])
        fields = {
            "input_ids": [each.ids for each in encodings],
            "attention_mask": [each.attention_mask for each in encodings],
            "token_type_ids": [each.type_ids for each in encodings],
        }
        logits = self.engine.run({name: np.array(fields[name], np.int64) for name in self.inputs})["logits"]
        shifted = np.exp(logits - logits.max(-1, keepdims=True))
        outputs = {
            "logits": logits,
            "probabilities": shifted / shifted.sum(-1, keepdims=True),
            "label": self.labels[logits.argmax(-1)][:, None],
            "max_length": np.full((len(logits), 1), self.length, np.int32),
            "input_tokens": np.array([sum(each.attention_mask) for each in encodings], np.int32)[:, None],
        }
        responses, start = [], 0
        for rows in columns:
            end = start + len(rows)
            tensors = [pb_utils.Tensor(name, values[start:end]) for name, values in outputs.items()]
            responses.append(pb_utils.InferenceResponse(tensors))
            start = end
        return responses

    def _send(self, requests: list[Any], senders: list[Any]) -> None:
        for sender, response in zip(senders, self._responses(requests), strict=True):
            sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def _answer_batches(self) -> None:
        while True:
            self._send(*self.waiting.get())
