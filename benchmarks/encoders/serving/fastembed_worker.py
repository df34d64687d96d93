"""FastEmbed in process, without a server: reads lines of JSON with texts, and writes how long each call took."""

from __future__ import annotations

import json
import sys
import time

import numpy as np
from fastembed import TextEmbedding
from fastembed.common.model_description import ModelSource
from fastembed.rerank.cross_encoder import TextCrossEncoder

# FastEmbed knows the embedding model by this name; the files are those of the settings.
_EMBEDDING, _CROSS_ENCODER = "sentence-transformers/all-MiniLM-L6-v2", "cross-encoder"


def main(settings: dict) -> None:
    """Answer a line after the other until the input ends."""
    options = {"threads": settings["threads"], "specific_model_path": settings["source"], "cuda": False}
    if settings["task"] == "embed":
        embedder = TextEmbedding(_EMBEDDING, **options)
        encode = embedder.embed
    else:
        TextCrossEncoder.add_custom_model(_CROSS_ENCODER, ModelSource(hf=_CROSS_ENCODER), model_file="model.onnx")
        scorer = TextCrossEncoder(_CROSS_ENCODER, **options)
        encode = scorer.rerank_pairs
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        calls = [[tuple(row) if isinstance(row, list) else row for row in rows] for rows in request["calls"]]
        used, start, times, values = time.process_time(), time.perf_counter(), [], []
        for rows in calls:
            begun = time.perf_counter()
            found = [np.asarray(each, np.float64).tolist() for each in encode(rows, batch_size=settings["max_batch"])]
            times.append(time.perf_counter() - begun)
            if request["answers"]:
                values.append(found)
            if time.perf_counter() - start > request["seconds"]:
                break
        print(json.dumps({"times": times, "values": values, "cpu_s": time.process_time() - used}), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
