"""A task that `tidal tasks add` adds, as its options describe it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tidal.commands.output import fail
from tidal.errors import InvalidArgument
from tidal.tasks.record import TASK_FILE
from tidal_client.extras import install_command

MISSING_EXTRA = 2


@dataclass(frozen=True, slots=True)
class NewTask:
    """Options of `tidal tasks add`. Each kind of model refuses those that it does not support.

    Attributes:
        source: Folder to add the task from.
        name: Name of the task.
        labels: Names of the classes, if they are given.
        half: Whether values are stored as float16.
        sparsity: Share of a checkpoint's weights that stay the base's, if it is given.
        data: Labelled queries or images that accuracy is measured on, if they are given.
        base_model: Folder of the base that the task was trained on, if it is given.
        replace: Whether an existing task of this name is replaced.
        force: Whether the task is added although its base or its outputs differ or cannot be compared.
        min_agreement: Least agreement with the source model's outputs, if it is given.
        task: Task of encoders that the head answers, if it is given.
        pooling: Pooling of hidden states into an embedding, if it is given.
        impossible_answers: Whether a question may have no answer in its context.
        max_answer_tokens: Maximum number of tokens of an answer to a question, if it is given.
    """

    source: Path
    name: str
    labels: tuple[str, ...] | None
    half: bool
    sparsity: float | None
    data: Path | None
    base_model: Path | None
    replace: bool
    force: bool
    min_agreement: float | None = None
    task: str | None = None
    pooling: str | None = None
    impossible_answers: bool = False
    max_answer_tokens: int | None = None

    @property
    def stored(self) -> bool:
        """Whether the source is the folder of a stored task."""
        return (self.source / TASK_FILE).is_file()

    def refuse_for_stored(self, **options: bool) -> None:
        """Refuse options that a stored task, which is copied as it is, cannot have.

        Args:
            **options: Whether each option was given, by its name.

        Raises:
            InvalidArgument: One was given.
        """
        if any(options.values()):
            names = " and ".join(f"--{name.replace('_', '-')}" for name in options)
            raise InvalidArgument(f"{self.source} is a stored task, which is copied as it is: without {names}")

    def refuse_encoder_options(self, model: str) -> None:
        """Refuse options that only tasks of encoders have.

        Args:
            model: Description of the model, for the error.

        Raises:
            InvalidArgument: One was given.
        """
        given = {
            "--sparsity": self.sparsity is not None,
            "--min-agreement": self.min_agreement is not None,
            "--task": self.task is not None,
            "--pooling": self.pooling is not None,
            "--impossible-answers": self.impossible_answers,
            "--max-answer-tokens": self.max_answer_tokens is not None,
        }
        if any(given.values()):
            *others, last = given
            raise InvalidArgument(f"{', '.join(others)} and {last} are for tasks of encoders, not of {model}")


@contextmanager
def needs_extra(what: str) -> Iterator[None]:
    """End the command, with the command that installs the `build` extra, if an import inside fails for its lack.

    Args:
        what: Purpose of the command, for the error: "import a task".
    """
    try:
        yield
    except ModuleNotFoundError as error:
        fail(f"to {what} needs {error.name}: {install_command('build')}", MISSING_EXTRA)
