"""Record what sentence-transformers computes for the models of `vector_cases` and for all-MiniLM-L6-v2.

pip install sentence-transformers && python -m tests.encoder_tasks.record_vectors
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import sentence_transformers  # type: ignore[import-not-found]

from demo.train import minilm_folder
from tests.encoder_tasks.vector_cases import CASES, PAIRS, TEXTS, VECTORS, make


def _values(folder: Path, task: str) -> Any:
    if task == "rerank":
        return sentence_transformers.CrossEncoder(str(folder), device="cpu").predict(list(PAIRS))
    if task == "sparse-embedding":
        model = sentence_transformers.SparseEncoder(str(folder), device="cpu")
        return model.encode(list(TEXTS), convert_to_sparse_tensor=False).numpy()
    return sentence_transformers.SentenceTransformer(str(folder), device="cpu").encode(list(TEXTS))


def main() -> None:
    """Compute all values, and write the file."""
    found: dict[str, Any] = {}
    for name, case in CASES.items():
        with tempfile.TemporaryDirectory() as temporary:
            found[name] = _values(make(Path(temporary), name), case.task)
    found["all-MiniLM-L6-v2"] = _values(minilm_folder(), "embedding")[:2]
    rounded = {
        name: [[float(f"{value:.7g}") for value in np.ravel(row)] for row in values] for name, values in found.items()
    }
    content = {"sentence_transformers": sentence_transformers.__version__, "values": rounded}
    VECTORS.write_text(json.dumps(content) + "\n")


if __name__ == "__main__":
    main()
