"""An exported program is data: a file that would run code when it is loaded is refused."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engines.support import Setup
from tidal.engines import Artifact, Precision, open_engines
from tidal.errors import InvalidArgument


class Trap:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.folder),)


def _with_entry(source: Path, target: Path, chosen: Callable[[str], bool], name: str | None, content: bytes) -> None:
    """Copy an archive with one entry's content replaced, or with a new entry."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for entry in old.namelist():
            new.writestr(entry, content if chosen(entry) else old.read(entry))
        if name is not None:
            new.writestr(f"{old.namelist()[0].split('/')[0]}/{name}", content)


@pytest.mark.parametrize("place", ["sample inputs", "constant"])
def test_pickles_are_not_loaded(artifact: Callable[[Setup, Precision], Artifact], tmp_path: Path, place: str) -> None:
    good, sprung = artifact(Setup("torch", "cpu"), "fp32"), tmp_path / "sprung"
    content = io.BytesIO()
    bad = tmp_path / "model.pt2"
    if place == "constant":
        pickle.dump(Trap(sprung), content)
        _with_entry(good.path, bad, lambda _: False, "data/constants/opaque_obj_0", content.getvalue())
    else:
        import torch

        torch.save(Trap(sprung), content)
        _with_entry(good.path, bad, lambda entry: "sample_inputs" in entry, None, content.getvalue())
    with pytest.raises(InvalidArgument):
        open_engines(Artifact("torch", bad, "fp32", good.shapes))
    assert not sprung.exists()
