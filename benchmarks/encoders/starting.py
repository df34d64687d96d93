"""Start a peer with its settings, around a task's model."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.encoders.prepare import EncoderArtefacts
from benchmarks.encoders.processes import NotStarted, free_port, last_lines, running, wait_until_healthy
from benchmarks.encoders.sides import InProcessSide, PeerSide, Side
from benchmarks.encoders.source import LONGEST, Task
from benchmarks.encoders.systems import FASTEMBED, PROGRAMS, Form
from benchmarks.environments import why_not


@contextmanager
def started(form: Form, task: Task, artefacts: EncoderArtefacts) -> Iterator[Side]:
    """Run a peer until the block ends.

    Args:
        form: The peer with its settings.
        task: Task of its model.
        artefacts: Prepared artefacts.

    Raises:
        NotStarted: It does not run; with the reason.
    """
    program = PROGRAMS[form.system]
    if reason := why_not(program.environment):
        raise NotStarted(reason)
    with tempfile.TemporaryDirectory(prefix="tidal-peer-") as here:
        folder, port = Path(here), free_port()
        settings = json.dumps({**_settings(task, artefacts), **form.settings, "port": port, "counts": here})
        # infinity writes an optimised ONNX file there, by a name that is the same for all models.
        cache = {"HUGGINGFACE_HUB_CACHE": str(folder / "hub")}
        piped = form.system == FASTEMBED
        with running(program, settings, folder, cache, piped=piped) as process:
            if piped:
                assert process.stdout is not None
                if not process.stdout.readline():
                    raise NotStarted(last_lines(folder))
                yield InProcessSide(process)
            else:
                location = f"127.0.0.1:{port}"
                wait_until_healthy(process, location, program.health, folder)
                yield PeerSide(form, task, process, location, folder)


def _settings(task: Task, artefacts: EncoderArtefacts) -> dict[str, str | int]:
    return {
        "task": task,
        "model": str(artefacts.graph(task)),
        "output": artefacts.graph_output(task),
        "source": str(artefacts.source(task)),
        "tokenizer": str(artefacts.tokenizer(task)),
        "max_length": LONGEST,
    }
