"""`python -m demo.samples [FOLDER] [--small]`: create the models, texts and images that the README's examples use.

Nothing is downloaded: classifiers and a LoRA use the installed weights of all-MiniLM-L6-v2, reviews come from
templates, and a small vision transformer is trained on scikit-learn's digits.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo import digits
from demo.reviews import LABELS, make_reviews, write_reviews
from demo.tasks import copy_encoder
from demo.train import minilm_folder


@dataclass(frozen=True, slots=True)
class SampleSizes:
    """Sizes of the samples.

    Attributes:
        layers: Number of the encoder's layers, of MiniLM's 6.
        classifiers: Number of layers of each classifier.
        texts: Number of training texts of a classifier or LoRA.
        epochs: Number of epochs of the vision transformer.
        images: Number of images per label.
    """

    layers: int
    classifiers: Mapping[str, int]
    texts: int
    epochs: int
    images: int


FULL = SampleSizes(6, {"sentiment": 6, "sentiment-small": 2}, texts=320, epochs=12, images=60)
#: Created in a few seconds; the models are less accurate.
SMALL = SampleSizes(2, {"sentiment": 2, "sentiment-small": 1}, texts=32, epochs=1, images=12)


def write_samples(folder: Path, report: Callable[[str], None], sizes: SampleSizes = FULL) -> None:
    """Create the missing samples.

    Args:
        folder: Folder to write; created when absent.
        report: Receives one line about each sample.
        sizes: Sizes of the samples.
    """
    folder.mkdir(parents=True, exist_ok=True)
    encoder = folder / "encoder"
    _write_encoder(encoder, sizes.layers)
    report(f"encoder: all-MiniLM-L6-v2, {sizes.layers} layers")
    for name, layers in sizes.classifiers.items():
        if not (folder / name / "config.json").exists():
            accuracy = _train(encoder, folder / name, sizes.texts, layers=layers)
            report(f"{name}: classifier of {layers} layers, accuracy on held-out texts {accuracy:.3f}")
    write_reviews(folder / "reviews.tsv", 480, seed=3)
    report("reviews.tsv: 480 labelled texts")
    if not (folder / "my-lora" / "adapter_config.json").exists():
        accuracy = _train(encoder, folder / "my-lora", sizes.texts, layers=sizes.layers, lora=True)
        report(f"my-lora: LoRA trained with peft on the encoder, accuracy on held-out texts {accuracy:.3f}")
    digits.write_digits(folder / "digits")
    digits.train_transformer(folder / "digits", folder / "transformer", sizes.epochs)
    report("transformer: small vision transformer trained on digits")
    digits.write_image_folder(folder / "digit-images", sizes.images)
    report("digit-images: images of digits, one folder per label")


def _write_encoder(target: Path, layers: int) -> None:
    """Copy all-MiniLM-L6-v2, or write its first layers, unless the folder exists."""
    if layers == FULL.layers:
        copy_encoder(target)
    elif not target.exists():
        from transformers import AutoModel, AutoTokenizer

        # The files of sentence-transformers, which have the pooling, without the weights of all layers.
        shutil.copytree(minilm_folder(), target, ignore=shutil.ignore_patterns("*.safetensors"))
        AutoModel.from_pretrained(minilm_folder(), num_hidden_layers=layers).save_pretrained(target)
        AutoTokenizer.from_pretrained(minilm_folder()).save_pretrained(target)


def _train(encoder: Path, target: Path, count: int, *, layers: int, lora: bool = False) -> float:
    """Fine-tune a review classifier with transformers, or a LoRA with peft, and save it.

    Args:
        encoder: Folder of all-MiniLM-L6-v2.
        target: Folder to write: a model, or with `lora` what peft saves.
        count: Number of training texts.
        layers: Number of layers to keep, from the first.
        lora: Whether to train a LoRA of rank 8 instead of all weights.

    Returns:
        Accuracy on held-out reviews, from 0 to 1.
    """
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    labels = dict(enumerate(LABELS))
    model: Any = AutoModelForSequenceClassification.from_pretrained(
        encoder, num_hidden_layers=layers, id2label=labels, label2id={name: number for number, name in labels.items()}
    )
    if lora:
        from peft import LoraConfig, TaskType, get_peft_model

        model.config.save_pretrained(target)  # the names of the labels, which peft does not save
        config = LoraConfig(task_type=TaskType.SEQ_CLS, r=8, lora_alpha=16, target_modules=["query", "value"])
        model = get_peft_model(model, config)
    trained = [each for each in model.parameters() if each.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=2e-3 if lora else 2e-4)
    examples = make_reviews(count, seed=1)
    model.train()
    for _ in range(12 // layers):  # fewer layers need more passes over the texts, and each is cheaper
        for start in range(0, len(examples), 32):
            texts, truth = zip(*examples[start : start + 32], strict=True)
            batch = tokenizer(list(texts), padding=True, return_tensors="pt")
            loss = model(**batch, labels=torch.tensor(truth)).loss
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    model.eval()
    texts, truth = zip(*make_reviews(240, seed=2), strict=True)
    with torch.inference_mode():
        predicted = model(**tokenizer(list(texts), padding=True, return_tensors="pt")).logits.argmax(-1)
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    return float((predicted == torch.tensor(truth)).float().mean())


def main(arguments: Sequence[str] | None = None) -> int:
    """Create the samples in the folder of the first argument, by default `samples`.

    Args:
        arguments: Arguments of the command; None: those of this process.
    """
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    parser = argparse.ArgumentParser(description="Create the models, texts and images that the README's examples use.")
    parser.add_argument("folder", nargs="?", type=Path, default=Path("samples"), help="folder to write")
    parser.add_argument("--small", action="store_true", help="fewer layers and shorter training: for tests")
    called = parser.parse_args(arguments)
    write_samples(
        called.folder, lambda line: print(f"{called.folder}/{line}", flush=True), SMALL if called.small else FULL
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
