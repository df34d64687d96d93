"""The baseline: a hand-written model of Triton's Python backend around the same engine and tokenizer.

Loaded by Triton as `<model>/1/model.py`. It tokenises the batch formed by Triton's dynamic batcher, pads it to its
longest text (or to `padded_length`, on an engine of that one static shape), runs the engine and responds.
"""

import json
import os
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

        config = json.loads(args["model_config"])
        parameters = {key: value["string_value"] for key, value in config["parameters"].items()}
        if "pinned" in parameters:  # one core per instance; the engine's threads inherit it
            cores = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(0, {cores[int(args["model_instance_name"].rsplit("_", 1)[1]) % len(cores)]})
        version = Path(parameters["version_dir"])
        manifest = load_arlo_manifest(version)
        runtime = manifest.runtimes[-1]
        if "padded_length" in parameters:
            static = {"dynamic": False, "max_length": int(parameters["padded_length"])}
            runtime = runtime.model_copy(update={**static, "max_batch": config["max_batch_size"]})
        artifact = manifest.artifact(runtime, version)
        (self.engine,) = open_engines(artifact, contexts=1, threads=int(parameters["threads"]))
        self.type_ids = manifest.tokenizer.type_ids
        self.labels = np.array([label.encode() for label in manifest.labels], object)
        self.tokenizer = Tokenizer.from_file(str(version / manifest.tokenizer.file))
        self.tokenizer.enable_padding()
        if not runtime.dynamic:
            self.tokenizer.enable_padding(length=runtime.max_length)

    def execute(self, requests: list[Any]) -> list[Any]:
        """Run a batch and return a response per request."""
        texts = [pb_utils.get_input_tensor_by_name(r, "text_input").as_numpy()[:, 0] for r in requests]
        encodings = self.tokenizer.encode_batch_fast([t.decode() for rows in texts for t in rows])
        inputs = {
            "input_ids": np.array([e.ids for e in encodings], np.int64),
            "attention_mask": np.array([e.attention_mask for e in encodings], np.int64),
        }
        if self.type_ids:
            inputs["token_type_ids"] = np.array([e.type_ids for e in encodings], np.int64)
        logits = self.engine.run(inputs)["logits"]
        labels = self.labels[logits.argmax(-1)][:, None]
        responses, start = [], 0
        for rows in texts:
            end = start + len(rows)
            tensors = [pb_utils.Tensor("logits", logits[start:end]), pb_utils.Tensor("label", labels[start:end])]
            responses.append(pb_utils.InferenceResponse(tensors))
            start = end
        return responses
