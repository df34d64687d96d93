from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from testing.once import built_once
from testing.serving import Served, serving
from tests.deploy.otlp import Receiver, receiving
from tests.deploy.project import ROOT


@pytest.fixture(scope="session")
def everything_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the repository `models`, which has a tiny model of each system, and with `images`."""
    from tests.deploy import everything

    def build(folder: Path) -> None:
        folder.mkdir()
        everything.publish_everything(folder, tmp_path_factory)
        everything.write_images(folder / "images")

    folder = tmp_path_factory.mktemp("everything") / "copy"
    shutil.copytree(built_once(tmp_path_factory, "everything", build), folder)
    return folder


@dataclass
class Observed:
    """A server with a request log on its standard output, that sends its traces to a receiver."""

    served: Served
    receiver: Receiver
    images: Path
    _lines: list[str] = field(default_factory=list)

    def read(self) -> None:
        """Collect the request log until the server ends."""
        assert self.served.process.stdout is not None
        for line in self.served.process.stdout:
            self._lines.append(line)

    def lines(self) -> list[dict[str, Any]]:
        """The request log so far."""
        return [json.loads(each) for each in list(self._lines)]


@pytest.fixture(scope="package")
def observed(everything_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    """The server of tests about logs and traces; options as in docs/how-to/trace-requests.md."""
    text = (ROOT / "docs" / "how-to" / "trace-requests.md").read_text()
    command = text.partition("tidal serve model_repository -- ")[2].partition("```")[0]
    options = re.findall(r"^ +(--trace-config=\S+)", command, re.MULTILINE)
    with receiving() as receiver:
        options = [re.sub(r"url=\S+", f"url={receiver.url}", each) for each in options]
        # Not after five seconds, as usual.
        options.append("--trace-config=opentelemetry,bsp_schedule_delay=300")
        runtime = tmp_path_factory.mktemp("observed")
        with serving(
            everything_folder / "models", runtime, "--exit-timeout", "10", "--access-log", "-", "--", *options
        ) as served:
            found = Observed(served, receiver, everything_folder / "images")
            threading.Thread(target=found.read, daemon=True).start()
            yield found
