"""The architectures that docs/reference/supported-models.md names: each is exported, run padded, and compared."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from testing.models import make_tiny_classifier
from testing.sentence_models import add_sentence_files
from tidal.engines import Artifact, compile_engine, engine_file, open_engines
from tidal.errors import InvalidArgument
from tidal_builders.arlo.source import Exported, Source, load_source
from tidal_builders.encoder_tasks.detect import choose_task
from tidal_builders.encoder_tasks.prepared import PrepareOptions
from tidal_builders.samples import pad

LONGEST = 40
SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48}
#: Position tables of RoBERTa and its descendants begin behind the padding's index, 0 here.
SHIFTED = {**SMALL, "max_position_embeddings": LONGEST + 1}
SIZED = {**SMALL, "max_position_embeddings": LONGEST}
#: Prefix of the classes of transformers, its config's fields, and whether the tokenizer gives token types.
ARCHITECTURES: dict[str, tuple[dict[str, Any], bool]] = {
    "Bert": (SIZED, True),
    "Roberta": (SHIFTED, False),
    "XLMRoberta": (SHIFTED, False),
    "DistilBert": (
        {"dim": 32, "n_layers": 1, "n_heads": 2, "hidden_dim": 48, "max_position_embeddings": LONGEST},
        False,
    ),
    "MPNet": ({**SMALL, "max_position_embeddings": LONGEST + 2}, False),  # whose padding index is always 1
    "DebertaV2": (
        {
            **SIZED,
            "relative_attention": True,
            "position_buckets": 16,
            "pos_att_type": ["p2c", "c2p"],
            "share_att_key": True,
            "norm_rel_ebd": "layer_norm",
            "position_biased_input": False,
            "type_vocab_size": 0,
        },
        True,
    ),
    "Electra": ({**SIZED, "embedding_size": 16}, True),
    "ModernBert": ({**SIZED, "local_attention": 8, "global_attn_every_n_layers": 2, "num_hidden_layers": 3}, False),
    "NomicBert": ({**SIZED}, True),
    "Albert": ({**SIZED, "embedding_size": 16}, True),
}
HEADS = {"embedding": "Model", "classification": "ForSequenceClassification"}
TEXTS = ["good", "please book a flight to the city", "the weather is not bad today but the food was awful too"]


def make(folder: Path, architecture: str, task: str) -> Path:
    """A random model of an architecture, with the tiny tokenizer."""
    fields, types = ARCHITECTURES[architecture]
    make_tiny_classifier(folder, hidden=32, layers=1, max_position=512)
    file = folder / "tokenizer_config.json"
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if types else [])]
    file.write_text(json.dumps({**json.loads(file.read_text()), "model_input_names": names}))
    ids = transformers.AutoTokenizer.from_pretrained(folder)
    special = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}
    config = getattr(transformers, f"{architecture}Config")(
        **{**fields, **special, "vocab_size": len(ids), "initializer_range": 0.25}
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = getattr(transformers, architecture + HEADS[task])(config)
    model.eval().save_pretrained(folder)
    return folder


def run_padded(source: Source, engine: str, folder: Path) -> tuple[np.ndarray[Any, Any], list[np.ndarray[Any, Any]]]:
    """Outputs of an engine for a batch of all texts, and of the source model for each alone."""
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if source.type_ids else [])]
    rows = [{name: np.asarray(source.tokenizer(text)[name], np.int64) for name in names} for text in TEXTS]
    shapes = dict.fromkeys(names, ((1, 4), (1, LONGEST)))
    module, batch = Exported(source, attention=False), pad(rows, LONGEST, 0)
    example = pad(rows[:2], LONGEST // 2, 0)
    compile_engine(engine, module, folder, precision="fp32", shapes=shapes, example=example)
    artifact = Artifact(engine, folder / engine_file(engine), "fp32", shapes)
    (opened,) = open_engines(artifact, contexts=1, threads=1)
    name = source.main_output.name
    return opened.run(batch)[name], [source.outputs(row, attention=False)[name] for row in rows]


@pytest.mark.slow
# Either engine runs every architecture. A head is exported by code that all engines share.
@pytest.mark.parametrize(("engine", "task"), [("openvino", "embedding"), ("torch", "classification")])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_an_engine_equals_the_source_model(tmp_path: Path, architecture: str, engine: str, task: str) -> None:
    folder = make(tmp_path / "source", architecture, task)
    source = load_source(folder, task, PrepareOptions(pooling="mean" if task == "embedding" else None))
    assert source.max_length == LONGEST
    (tmp_path / "engine").mkdir()
    got, wanted = run_padded(source, engine, tmp_path / "engine")
    np.testing.assert_allclose(got, np.stack(wanted), atol=1e-4, rtol=1e-4)


def test_the_page_names_them() -> None:
    text = (Path(__file__).parents[2] / "docs/reference/supported-models.md").read_text(encoding="utf-8")
    table = text.partition("## Architectures")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert sorted(re.findall(r"`(\w+)`", "".join(rows))) == sorted([*ARCHITECTURES, *DECODERS])


#: Decoders that embed: their classes and the fields of their configs.
DECODERS: dict[str, dict[str, Any]] = {
    "Qwen3": {**SIZED, "num_key_value_heads": 1, "head_dim": 16, "num_hidden_layers": 2},
    "Llama": {**SIZED, "num_key_value_heads": 2, "num_hidden_layers": 2},
}


def make_decoder(folder: Path, architecture: str, **fields: Any) -> Path:
    """A random decoder as sentence-transformers saves it to embed by the last token."""
    make_tiny_classifier(folder, hidden=32, layers=1, max_position=512)
    file = folder / "tokenizer_config.json"
    names = {"model_input_names": ["input_ids", "attention_mask"], "padding_side": "left"}
    file.write_text(json.dumps({**json.loads(file.read_text()), **names}))
    size = len(transformers.AutoTokenizer.from_pretrained(folder))
    config = getattr(transformers, f"{architecture}Config")(
        **{**DECODERS[architecture], "vocab_size": size, "pad_token_id": 0, "initializer_range": 0.25}
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = getattr(transformers, f"{architecture}ForCausalLM")(config)
    model.eval().save_pretrained(folder)
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**content, **fields}))
    modules = [("Transformer", {}), ("Pooling", {"pooling_mode": "lasttoken"}), ("Normalize", {})]
    return add_sentence_files(folder, modules)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["openvino", "torch"])
@pytest.mark.parametrize("architecture", DECODERS)
def test_a_decoder_that_embeds_equals_the_unmodified_model(tmp_path: Path, architecture: str, engine: str) -> None:
    folder = make_decoder(tmp_path / "source", architecture)
    assert choose_task(folder, "auto", "arlo") == "embedding"
    source = load_source(folder, "embedding", PrepareOptions())
    (tmp_path / "engine").mkdir()
    got, _ = run_padded(source, engine, tmp_path / "engine")
    model = getattr(transformers, f"{architecture}ForCausalLM").from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for row, text in enumerate(TEXTS):
        with torch.inference_mode():
            found = model(**tokenizer(text, return_tensors="pt"), output_hidden_states=True).hidden_states[-1][0, -1]
        np.testing.assert_allclose(got[row], (found / found.norm()).numpy(), atol=1e-5)


@pytest.mark.slow
def test_a_decoder_with_code_of_its_own_is_refused(tmp_path: Path) -> None:
    folder = make_decoder(tmp_path / "source", "Qwen3", auto_map={"AutoModel": "modeling.Bidirectional"})
    with pytest.raises(InvalidArgument, match=r"names code of its own for Qwen3ForCausalLM \(auto_map\)"):
        load_source(folder, "embedding", PrepareOptions())
