"""Artefacts of all compositions' benchmarks: trained heads in a cache folder named by a hash of their recipe."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import demo.texts
import demo.train
from benchmarks.kept import cache_folder
from benchmarks.report import progress
from tidal.repository.entries import ModelEntry

#: For each level the number of MiniLM's 6 layers, and of passes over the texts that its head is trained on.
RECIPES = {"small": (2, 300), "large": (6, 60)}
#: Number of texts that cascades are calibrated with, and the seed that draws them.
LABELLED, SEED = 480, 7


@dataclass(frozen=True, slots=True)
class BuiltArtefacts:
    """The repository with all built models, and the hash of recipe and code that names it."""

    repository: Path
    digest: str

    def version(self, model: str) -> Path:
        """Return a model's newest version folder.

        Args:
            model: Name of the model.
        """
        latest = ModelEntry(self.repository / model).latest()
        assert latest is not None
        return latest


def begin(name: str, module: str, made_of: str = "") -> tuple[Path, str]:
    """Train the missing levels.

    Args:
        name: Name of the benchmark's artefacts.
        module: File of the module that prepares them.
        made_of: Further content that they depend on.

    Returns:
        A folder with one model for each of `RECIPES`, in Hugging Face format, and the hash in its name.
    """
    files = [module, __file__, *(str(each.__file__) for each in (demo.texts, demo.train))]
    text = "".join(Path(file).read_text() for file in files) + made_of
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    folder = cache_folder() / f"{name}-{digest}"
    for level, (layers, epochs) in RECIPES.items():
        if not (folder / level / "config.json").exists():
            progress(f"training the head of the {level} level")
            demo.train.train_intent_classifier(folder / level, layers=layers, epochs=epochs)
    return folder, digest
