"""Levels of the paper's relative cost: larger models with the functions of the trained levels."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import openvino
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

from benchmarks.report import Report
from benchmarks.tabi import sized_case
from benchmarks.tabi.claims import add_sized_claims
from benchmarks.tabi.crowd import OpenLoopResult
from benchmarks.tabi.rounds import TaskRun
from benchmarks.tabi.serial import SerialResult
from benchmarks.tabi.sized import SIZES, BertSize, cancelling, expand, layer_copies
from benchmarks.tabi.sized_case import SizedOutcome
from benchmarks.tabi.sized_levels import SizedLevel
from benchmarks.tabi.variants import LARGE, NO_PRUNING, SMALL, TABI
from demo.train import minilm_folder
from testing.models import make_tiny_classifier

TEXTS = [
    "a gripping, well-acted film that never lets go",
    "it 's not a bad movie , just a slow and forgettable one .",
    "What is my account balance?",
    "no",
]


def tiny(folder: Path, layers: int = 2) -> BertForSequenceClassification:
    """Return a random classifier with heads of 32 dimensions, whose LayerNorms have scales and shifts."""
    make_tiny_classifier(folder, layers=layers)
    model = BertForSequenceClassification.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(1)
        for module in model.modules():
            if isinstance(module, torch.nn.LayerNorm):
                module.weight.normal_(1.0, 0.3)
                module.bias.normal_(0.0, 0.5)
    return model


def run(model, tokens):
    with torch.inference_mode():
        return model(**tokens, output_attentions=True, output_hidden_states=True)


def tokens_of(folder: Path):
    return AutoTokenizer.from_pretrained(folder)(TEXTS, padding=True, return_tensors="pt")


@pytest.mark.slow
@pytest.mark.parametrize("level", ["small", "large"])
def test_the_real_weights_have_the_same_logits_at_the_size_of_bert(level):
    layers = {"small": 2, "large": 6}[level]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = BertConfig.from_pretrained(minilm_folder(), num_hidden_layers=layers, num_labels=3)
        model = BertForSequenceClassification.from_pretrained(minilm_folder(), config=config).eval()
        torch.nn.init.normal_(model.classifier.weight, std=0.3)
    larger = expand(model, SIZES[level])
    tokens = tokens_of(minilm_folder())
    ours, theirs = run(larger, tokens), run(model, tokens)
    assert (ours.logits - theirs.logits).abs().max() < 1e-4
    assert (ours.logits - theirs.logits).abs().max() < theirs.logits.std(dim=0).min() / 100
    copies = SIZES[level].hidden_size // 384
    assert (ours.hidden_states[-1] - theirs.hidden_states[-1].repeat(1, 1, copies)).abs().max() < 1e-3
    config = larger.config
    plain = (config.num_hidden_layers, config.hidden_size, config.num_attention_heads, config.intermediate_size)
    assert plain == {"small": (12, 768, 12, 3072), "large": (18, 1152, 18, 4608)}[level]
    weights = sum(p.numel() for name, p in larger.named_parameters() if "encoder" in name and name.endswith("weight"))
    assert weights / 1e6 == pytest.approx({"small": 84.9, "large": 286.7}[level], abs=0.1)


@pytest.mark.parametrize(
    "size",
    [
        BertSize(2, 64, 2, 128),
        BertSize(2, 192, 6, 200),  # heads replicated, units unequally often
        BertSize(4, 128, 2, 256),  # heads of 64 dimensions
        BertSize(7, 192, 3, 384),  # heads of 64 dimensions, unequally often; layers unequally often; three copies
        BertSize(5, 256, 2, 300),
    ],
    ids=str,
)
def test_a_larger_model_has_the_same_outputs(tmp_path, size):
    model = tiny(tmp_path)
    larger = expand(model, size)
    tokens = tokens_of(tmp_path)
    theirs, ours = run(model, tokens), run(larger, tokens)
    assert len(larger.bert.encoder.layer) == size.num_hidden_layers
    assert (ours.logits - theirs.logits).abs().max() < 1e-4
    state = ours.hidden_states[-1]
    assert state.shape[-1] == size.hidden_size
    assert (state - theirs.hidden_states[-1].repeat(1, 1, size.hidden_size // 64)).abs().max() < 1e-4


def test_inserted_layers_attend_as_the_layer_that_they_copy(tmp_path):
    # The importance of words is the attention over all layers.
    model = tiny(tmp_path)
    tokens = tokens_of(tmp_path)
    larger = expand(model, BertSize(6, 128, 2, 256))
    larger.set_attn_implementation("eager")
    theirs, ours = run(model, tokens).attentions, run(larger, tokens).attentions
    for layer, found in enumerate(ours):
        assert (found - theirs[layer // 3]).abs().max() < 1e-5


@pytest.mark.slow
def test_no_layer_is_optimised_away(tmp_path):
    size = BertSize(6, 192, 6, 384)
    larger = expand(tiny(tmp_path), size)
    found = [compiled_nodes(each) for each in (larger, BertForSequenceClassification(larger.config).eval())]
    for nodes in found:
        # A scale of 1 and a shift of 0, in LayerNorms and in biases, cost nothing.
        del nodes["Eltwise"], nodes["Const"]
    assert found[0] == found[1]
    assert found[0]["FullyConnected"] == size.linear_layers
    assert found[0]["MVN"] == 1 + 2 * size.num_hidden_layers


def compiled_nodes(model) -> Counter[str]:
    """Return the nodes of a model that OpenVINO has optimised, by kind."""
    tokens = {name: torch.ones(1, 7, dtype=torch.int64) for name in ("input_ids", "attention_mask", "token_type_ids")}
    graph = openvino.convert_model(model, example_input=tokens)
    compiled = openvino.Core().compile_model(graph, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    kinds = [each.get_rt_info()["layerType"] for each in compiled.get_runtime_model().get_ops()]
    return Counter(str(getattr(kind, "value", kind)) for kind in kinds)


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (BertSize(2, 160, 5, 128), "hidden_size is 160; expected a multiple of 64"),
        (BertSize(1, 64, 2, 128), "num_hidden_layers is 1; expected at least the model's own, 2"),
        (BertSize(2, 128, 8, 128), "num_attention_heads is 8; expected heads of a multiple of 32 dimensions"),
        (BertSize(3, 128, 4, 200), "intermediate_size is 200; expected at least twice the model's"),
        (BertSize(3, 64, 2, 256), "hidden_size is 64; expected at least twice the model's"),
    ],
)
def test_a_size_that_cannot_keep_the_function_is_refused(tmp_path, size, message):
    with pytest.raises(ValueError, match=message):
        expand(tiny(tmp_path), size)


@given(st.integers(1, 5), st.integers(0, 4), st.integers(2, 6), st.floats(2**-10, 8, width=32))
def test_copies_cancel_in_every_precision(sources, further, copies, weight):
    of = np.arange(sources * copies + min(further, sources)) % sources
    factors = cancelling(of)
    assert np.abs(factors).min() > 0
    for source in range(sources):
        products = torch.tensor(factors[of == source]) * weight
        for precision in (torch.float32, torch.bfloat16):
            assert products.to(precision).double().sum() == 0


@given(st.integers(1, 12), st.integers(0, 30))
def test_layers_are_copied_as_equally_as_possible(old, further):
    counts = layer_copies(old, old + further)
    assert (len(counts), sum(counts)) == (old, old + further)
    assert max(counts) - min(counts) <= 1


def an_outcome() -> SizedOutcome:
    """Return one round of two queries; the levels disagree on the second, which the cascade re-routes."""

    def cell(ms: list[float], labels: str, levels: list[int]) -> SerialResult:
        return SerialResult([0, 1], ms, list(labels), levels, 0.9, 0.01)

    serial = {
        SMALL: cell([10.0, 10.0], "aa", [0, 0]),
        LARGE: cell([40.0, 40.0], "ab", [0, 0]),
        TABI: cell([11.0, 45.0], "ab", [1, 2]),
        NO_PRUNING: cell([11.0, 51.0], "ab", [1, 2]),
    }
    crowd = {
        name: OpenLoopResult(10.0, ms, {}, 0.5, 0.0, "") for name, ms in ((LARGE, [80.0, 80.0]), (TABI, [40.0, 60.0]))
    }
    levels = {SMALL: SizedLevel(109_000_000, 5e-7, 74), LARGE: SizedLevel(324_000_000, 8e-7, 110)}
    ms, same = {SMALL: 10.0, LARGE: 39.0}, {SMALL: 1.0, LARGE: 1.0}
    return SizedOutcome("sst2", TaskRun([serial], [20.0], [crowd]), ("a", "b"), levels, ms, same)


def test_claims_and_tables_of_sized_levels():
    report, outcome = Report("tabi", True), an_outcome()
    assert (outcome.cost_ratio, outcome.disagreement) == (pytest.approx(3.9), 0.5)
    add_sized_claims(report, [outcome])
    claims = {claim.name: (claim.goal, claim.measured) for claim in report.claims}
    assert claims == {
        "mean_vs_large[sst2, sized]": ("<= 0.70", pytest.approx(0.7)),
        "p99_vs_large[sst2, sized]": ("<= 1.05", pytest.approx(59.8 / 80)),
    }
    sized_case.add_tables(report, [outcome])
    assert [list(column.cells)[1] for column in report.tables[0].columns][2:5] == ["18 x 1152", "324 M", "110/110"]
    assert list(report.tables[1].columns[8].cells) == ["-", "-", "50.0%", "50.0%"]
    assert sized_case.measured(outcome)["accuracy"] == {SMALL: 0.5, LARGE: 1.0, TABI: 1.0, NO_PRUNING: 1.0}


def test_labels_are_compared_on_common_queries():
    outcome = an_outcome()
    trained = [{SMALL: SerialResult([1, 2], [1.0, 1.0], ["b", "a"], [0, 0])}]
    assert sized_case._same_labels(outcome.run.serial, SMALL, trained, SMALL) == 0
    assert sized_case._same_labels(outcome.run.serial, LARGE, trained, SMALL) == 1
