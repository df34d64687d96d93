"""The baseline: what one writes by hand for Triton's Python backend around the same engine and tokenizer.

Loaded by Triton as `<model>/1/model.py`. It tokenises the batch that Triton's dynamic batcher formed, pads it to its
longest text, runs the engine and answers.
"""

import json
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Synchronous, one engine an instance."""

    def initialize(self, args):
        """Open the engine with this instance's share of the threads."""
        from tokenizers import Tokenizer

        from tidal.engines import open_engines
        from tidal.manifest import load_manifest

        parameters = json.loads(args["model_config"])["parameters"]
        version = Path(parameters["version_dir"]["string_value"])
        manifest = load_manifest(version)
        artifact = manifest.artifact(manifest.runtimes[-1], version)
        (self.engine,) = open_engines(artifact, contexts=1, threads=int(parameters["threads"]["string_value"]))
        self.type_ids = manifest.tokenizer.type_ids
        self.labels = np.array([label.encode() for label in manifest.labels], object)
        self.tokenizer = Tokenizer.from_file(str(version / manifest.tokenizer.file))
        self.tokenizer.enable_padding()
        self.fixed_length = None if manifest.runtimes[-1].dynamic else manifest.max_length
        if self.fixed_length:
            self.tokenizer.enable_padding(length=self.fixed_length)

    def execute(self, requests):
        """Answer a batch."""
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
