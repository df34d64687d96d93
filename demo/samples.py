"""`python -m demo.samples [FOLDER]`: create the small models, texts and images that the README's examples use.

Nothing is downloaded: classifiers and a LoRA use the installed weights of all-MiniLM-L6-v2, reviews come from
templates, and a small vision transformer is trained on scikit-learn's digits.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from demo import digits
from demo.reviews import LABELS, make_reviews, write_reviews
from demo.tasks import copy_encoder

#: Number of layers of each sample classifier, of MiniLM's 6.
_CLASSIFIERS = {"sentiment": 6, "sentiment-small": 2}


def write_samples(folder: Path, report: Callable[[str], None]) -> None:
    """Create the missing samples.

    Args:
        folder: Folder to write; created when absent.
        report: Receives one line about each sample.
    """
    folder.mkdir(parents=True, exist_ok=True)
    encoder = folder / "encoder"
    copy_encoder(encoder)
    report("encoder: all-MiniLM-L6-v2")
    for name, layers in _CLASSIFIERS.items():
        if not (folder / name / "config.json").exists():
            accuracy = _train(encoder, folder / name, layers=layers)
            report(f"{name}: classifier of {layers} layers, accuracy on held-out texts {accuracy:.3f}")
    write_reviews(folder / "reviews.tsv", 480, seed=3)
    report("reviews.tsv: 480 labelled texts")
    if not (folder / "my-lora" / "adapter_config.json").exists():
        accuracy = _train(encoder, folder / "my-lora", lora=True)
        report(f"my-lora: LoRA trained with peft on the encoder, accuracy on held-out texts {accuracy:.3f}")
    digits.write_digits(folder / "digits")
    digits.train_transformer(folder / "digits", folder / "transformer")
    report("transformer: small vision transformer trained on digits")
    digits.write_image_folder(folder / "digit-images")
    report("digit-images: images of digits, one folder per label")


def _train(encoder: Path, target: Path, *, layers: int = 6, lora: bool = False) -> float:
    """Fine-tune a review classifier with transformers, or a LoRA with peft, and save it.

    Args:
        encoder: Folder of all-MiniLM-L6-v2.
        target: Folder to write: a model, or with `lora` what peft saves.
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
    examples = make_reviews(320, seed=1)
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


def main() -> int:
    """Create the samples in the folder of the first argument, by default `samples`."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "samples")
    write_samples(folder, lambda line: print(f"{folder}/{line}", flush=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
