"""Exported programs that would run code when they are loaded are refused."""

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
    """An object that creates a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.folder),)


def _with_entry(source: Path, target: Path, chosen: Callable[[str], bool], name: str | None, content: bytes) -> None:
    """Copy an archive; replace the content of the chosen entry, or add the entry `name`."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for entry in old.namelist():
            new.writestr(entry, content if chosen(entry) else old.read(entry))
        if name is not None:
            new.writestr(f"{old.namelist()[0].split('/')[0]}/{name}", content)


@pytest.mark.parametrize("where", ["sample inputs", "constant"])
def test_pickles_are_not_loaded(artifact: Callable[[Setup, Precision], Artifact], tmp_path: Path, where: str) -> None:
    good, executed = artifact(Setup("torch", "cpu"), "fp32"), tmp_path / "executed"
    content = io.BytesIO()
    bad = tmp_path / "model.pt2"
    if where == "constant":
        pickle.dump(Trap(executed), content)
        _with_entry(good.path, bad, lambda _: False, "data/constants/opaque_obj_0", content.getvalue())
    else:
        import torch

        torch.save(Trap(executed), content)
        _with_entry(good.path, bad, lambda entry: "sample_inputs" in entry, None, content.getvalue())
    with pytest.raises(InvalidArgument):
        open_engines(Artifact("torch", bad, "fp32", good.shapes))
    assert not executed.exists()
