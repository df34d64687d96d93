"""The baseline: one full model per task, behind one synchronous model of Triton's Python backend.

Loaded by Triton as `<model>/1/model.py`. Requests of a task in the same batch of Triton's dynamic batcher run together;
tasks run one after another (SeqS), or concurrently (ParS), each on its own model.
"""

import json
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Synchronous model; every instance has the models of all tasks."""

    def initialize(self, args: dict[str, str]) -> None:
        """Compile a model for every task."""
        config = json.loads(args["model_config"])
        parameters = {key: value["string_value"] for key, value in config["parameters"].items()}
        sys.path.insert(0, parameters["code"])
        from tokenizers import Tokenizer

        from benchmarks.pets.full_models import FullModels
        from tidal.pets.base import load_base_layers
        from tidal.pets.manifest import load_pets_manifest
        from tidal.pets.tasks.folder import load_task

        version = Path(parameters["version_dir"])
        manifest = load_pets_manifest(version)
        base = load_base_layers(version)
        models = FullModels(Path(parameters["full"]), base)
        self.models, self.labels = {}, {}
        for place in Path(parameters["tasks"]).read_text().split():
            task = load_task(Path(place).parent, Path(place).name, base)
            self.models[task.name] = models.compile(task.terms, int(parameters["threads"]))
            self.labels[task.name] = np.array([label.encode() for label in task.terms.head.labels], object)
        self.tokenizer = Tokenizer.from_file(str(version / manifest.tokenizer.file))
        self.tokenizer.enable_truncation(manifest.max_length)
        self.tokenizer.enable_padding()
        self.workers = ThreadPoolExecutor(int(parameters["workers"]))

    def execute(self, requests: list[Any]) -> list[Any]:
        """Run a batch, grouped by task, and return a response per request."""
        of_task = defaultdict[str, list[int]](list)
        for place, request in enumerate(requests):
            of_task[json.loads(request.parameters())["task"]].append(place)
        responses = list[Any]([None] * len(requests))

        def run(task: str) -> None:
            places = of_task[task]
            texts = [pb_utils.get_input_tensor_by_name(requests[p], "text_input").as_numpy()[:, 0] for p in places]
            encodings = self.tokenizer.encode_batch_fast([t.decode() for rows in texts for t in rows])
            inputs = {
                "input_ids": np.array([e.ids for e in encodings], np.int64),
                "attention_mask": np.array([e.attention_mask for e in encodings], np.int64),
                "token_type_ids": np.array([e.type_ids for e in encodings], np.int64),
            }
            logits = self.models[task](inputs)[0]
            labels = self.labels[task][logits.argmax(-1)][:, None]
            start = 0
            for place, rows in zip(places, texts, strict=True):
                end = start + len(rows)
                tensors = [pb_utils.Tensor("logits", logits[start:end]), pb_utils.Tensor("label", labels[start:end])]
                responses[place] = pb_utils.InferenceResponse(tensors)
                start = end

        list(self.workers.map(run, of_task))
        return responses
