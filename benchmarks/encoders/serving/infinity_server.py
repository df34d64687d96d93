"""infinity, started by its own command line; only its batches are counted."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable

from batch_counter import BatchCounter


def count_batches(folder: str) -> None:
    """Count each batch that infinity tokenizes, in a file of this process that the benchmark reads."""
    from infinity_emb.transformer.crossencoder.optimum import OptimumCrossEncoder
    from infinity_emb.transformer.crossencoder.torch import CrossEncoderPatched
    from infinity_emb.transformer.embedder.optimum import OptimumEmbedder
    from infinity_emb.transformer.embedder.sentence_transformer import SentenceTransformerPatched

    counter = BatchCounter(folder)

    def counted(encode_pre: Callable) -> Callable:
        def wrapped(self: object, rows: list) -> object:
            counter.add(len(rows))
            return encode_pre(self, rows)

        return wrapped

    for encoder in (OptimumCrossEncoder, CrossEncoderPatched, OptimumEmbedder, SentenceTransformerPatched):
        encoder.encode_pre = counted(encoder.encode_pre)


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    import torch
    from infinity_emb.cli import cli

    torch.set_num_threads(given["threads"])
    # Below another folder it does not find ONNX files: optimum compares their names with paths in the model's folder.
    os.chdir(given["source"])
    count_batches(given["counts"])
    sys.argv = [
        *("infinity_emb", "v2", "--model-id", ".", "--served-model-name", "encoder"),
        *("--host", "127.0.0.1", "--port", str(given["port"]), "--log-level", "warning"),
        *("--device", "cpu", "--dtype", "float32", "--engine", given["engine"]),
        *("--batch-size", str(given["max_batch"]), "--pooling-method", "mean"),
        "--compile" if given.get("compile") else "--no-compile",
        "--bettertransformer" if given.get("fused") else "--no-bettertransformer",
        "--no-model-warmup",
    ]
    cli()
