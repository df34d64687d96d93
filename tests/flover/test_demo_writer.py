"""The demo's decoder: its training text, its size in the repository, and its tokens against those of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from demo import train_writer
from demo.train_writer import END, TARGET, sections
from demo.writing import PROMPTS
from testing.decoders import tiny_runner
from tests.flover.generating import Generation, generate_together, generated_by_transformers
from tidal_builders.flover.source import load_decoder
from tidal_builders.specs import load_spec

ROOT = Path(__file__).parents[2]
MAX_BYTES = 5 * 10**6


@pytest.fixture(scope="module")
def source() -> Any:
    return load_decoder(ROOT / TARGET)


def test_greedy_text_equals_that_of_transformers(source: Any) -> None:
    """All prompts of the demo share the steps; both sides compute in float32."""
    prompts = [np.array(source.tokenizer(prompt).input_ids) for prompt in PROMPTS]
    expected = [generated_by_transformers(source.model, prompt, 24) for prompt in prompts]
    generations = [Generation(prompt, 24, number) for number, prompt in enumerate(prompts)]
    generate_together(tiny_runner(source.model, max_length=256), generations, np.random.default_rng(0))
    for generation, wanted in zip(generations, expected, strict=True):
        assert source.tokenizer.decode(generation.tokens) == source.tokenizer.decode(wanted)


def test_the_end_of_text_is_one_token(source: Any) -> None:
    end = source.model.config.eos_token_id
    assert source.tokenizer(f"naïve {END}").input_ids[-1] == source.tokenizer.eos_token_id == end
    assert source.tokenizer.decode(source.tokenizer("naïve 中 🙂").input_ids) == "naïve 中 🙂"


def test_the_files_of_the_demo_are_small() -> None:
    files = [path for path in (ROOT / "demo").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert sum(path.stat().st_size for path in files) < MAX_BYTES


def test_the_spec_of_the_demo_loads() -> None:
    spec = load_spec(ROOT / "demo/writer.yaml")
    assert (spec.kind, spec.name) == ("flover", "writer")
    assert (ROOT / "demo" / spec.model / "model.safetensors").exists()  # type: ignore[union-attr]


def test_sections_contain_the_prose_of_a_page() -> None:
    page = """# Tidal

It serves, as
[the docs](docs/x.md) say:

| a | table |
| --- | --- |

- one thing
  in two lines
- another

```sh
# a comment
```

![a picture](x.png)

## More
It goes on.
"""
    assert sections(page) == [
        "# Tidal\n\nIt serves, as the docs say:\n\n- one thing in two lines\n- another\n",
        "## More\nIt goes on.\n",
    ]


def test_training_writes_a_decoder_that_can_be_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"STEPS": 4, "CONTEXT": 16, "VOCABULARY": 300, "LAYERS": 1}.items():
        monkeypatch.setattr(train_writer, name, value)
    texts = sections((ROOT / "README.md").read_text(encoding="utf-8"))
    tokenizer = train_writer.train_tokenizer(texts)
    ids = [token for text in texts for token in tokenizer.encode(text + END).ids]
    with torch.random.fork_rng():
        train_writer.write(train_writer.train(ids, tokenizer.token_to_id(END)), tokenizer, tmp_path)
    written = load_decoder(tmp_path)
    assert written.eos_token_ids == (tokenizer.token_to_id(END),)
    assert written.form.layers == 1
