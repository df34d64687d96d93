"""What every comparison of compositions begins with: trained heads, in a folder by what they come from."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import demo.texts
import demo.train
from benchmarks.kept import cache_folder
from benchmarks.report import progress
from tidal.repository.entries import ModelEntry

#: Of levels: so many of MiniLM's 6 layers, and passes over the texts that a head is trained on.
RECIPES = {"small": (2, 300), "large": (6, 60)}
#: Texts that cascades are calibrated with, and what they are drawn by.
LABELLED, SEED = 480, 7


@dataclass(frozen=True, slots=True)
class Artefacts:
    """The repository of everything that was built, and the hash of recipe and code that names it."""

    repository: Path
    digest: str

    def version(self, model: str) -> Path:
        """A model's newest version folder."""
        latest = ModelEntry(self.repository / model).latest()
        assert latest is not None
        return latest


def begin(name: str, module: str, made_of: str = "") -> tuple[Path, str]:
    """Train what is missing of the levels.

    Args:
        name: of what is prepared.
        module: file of the module that prepares it.
        made_of: what else it depends on.

    Returns:
        A folder with a model of each of `RECIPES`, in Hugging Face format, and the hash in its name.
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
