"""`tidal tasks add` of tasks that score words, compared with the unmodified models on the engine that serves them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from typer.testing import CliRunner, Result

from testing.pets import build
from testing.token_models import make_tiny_head
from tests.pets.importing.test_words import lora
from tidal.pets.base import load_base_layers
from tidal.pets.tasks.folder import load_task
from tidal_client.main import build_app


@pytest.fixture(scope="module", params=["openvino", "torch"])
def repository(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the model `base`, built from the masked language model in `source`."""
    folder: Path = tmp_path_factory.mktemp(request.param)
    source = make_tiny_head(folder / "source", "MaskedLM", seed=2)
    build(source, folder, "base", engine=request.param, threads=1, max_batch=2)
    return folder


def add(repository: Path, source: Path, *options: str) -> Result:
    return CliRunner().invoke(
        build_app(), ["tasks", "add", "base", str(source), *options, "--repository", str(repository)]
    )


def test_the_bases_own_head(repository: Path) -> None:
    layers = load_base_layers(repository / "base/1")
    for name, task, measure in (("words", "fill-mask", "masked_words"), ("terms", "sparse-embedding", "similarity")):
        done = add(repository, repository / "source", "--name", name, "--task", task)
        assert done.exit_code == 0, done.output
        assert "nothing but the classifier" in done.stdout
        found = load_task(repository / "base/tasks", name, layers)
        compared = found.info.provenance.answers
        assert compared is not None
        assert compared.measure.startswith(measure)
        assert compared.labels == pytest.approx(1.0)
        assert compared.max_error < 1e-4
        assert found.terms.head.tied
        assert found.terms.bytes < 100_000


def test_a_lora(repository: Path, tmp_path: Path) -> None:
    lora(repository / "source", tmp_path / "lora")
    for task in ("fill-mask", "sparse-embedding"):
        done = add(repository, tmp_path / "lora", "--name", f"lora-{task}", "--task", task)
        assert done.exit_code == 0, done.output
        found = load_task(repository / "base/tasks", f"lora-{task}", load_base_layers(repository / "base/1"))
        assert found.info.kind == "lora"
        assert found.info.provenance.answers is not None
        assert found.info.provenance.answers.max_error < 1e-4


def test_a_head_of_other_embeddings_is_stored_and_compared(repository: Path, tmp_path: Path) -> None:
    """Embeddings of the source that a task cannot change: its answers differ, and it is refused."""
    model = transformers.AutoModelForMaskedLM.from_pretrained(repository / "source")
    torch.manual_seed(0)
    with torch.no_grad():
        model.get_input_embeddings().weight.add_(torch.randn_like(model.get_input_embeddings().weight))
    model.save_pretrained(tmp_path / "tuned")
    transformers.AutoTokenizer.from_pretrained(repository / "source").save_pretrained(tmp_path / "tuned")
    done = add(repository, tmp_path / "tuned", "--name", "tuned")
    assert done.exit_code == 1
    assert "agreement with the checkpoint on 128 generated texts is" in done.stderr
    done = add(repository, tmp_path / "tuned", "--name", "tuned", "--force")
    assert done.exit_code == 0, done.output
    found = load_task(repository / "base/tasks", "tuned", load_base_layers(repository / "base/1"))
    assert not found.terms.head.tied
    assert "not carried, because a task cannot change it: embeddings.word_embeddings.weight" in "".join(
        found.info.provenance.notes
    )
