"""`tidal infer`: send texts or images to a model, print its answers."""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tidal_client import exit_codes
from tidal_client.client import DEFAULT_TIMEOUT_S, Client
from tidal_client.commands.target import Url, choose_target
from tidal_client.errors import ConnectionFailed, DeadlineExceeded, NotFound, RequestError, Unsupported
from tidal_client.options import Options
from tidal_client.results import Classification

# Characters of an output that still is a label.
_LABEL = 32
# Errors that the next text would meet as well.
_FATAL = (ConnectionFailed, DeadlineExceeded, NotFound, Unsupported)


@dataclass(frozen=True, slots=True)
class _InferQuery:
    """One text, or an image by its file."""

    text: str
    pair: str | None = None
    image: Path | None = None

    @property
    def shown(self) -> str:
        """What stands for it in a table."""
        if self.image is not None:
            return str(self.image)
        return self.text if self.pair is None else f"{self.text} | {self.pair}"


@dataclass(frozen=True, slots=True)
class _InferResult:
    """One query, and what came of it."""

    query: _InferQuery
    result: Classification | RequestError
    milliseconds: float


def infer(
    model: Annotated[str, typer.Argument(help="Name of the model, as the server lists it.", show_default=False)],
    text: Annotated[list[str] | None, typer.Option("--text", "-t", help="A text to send; repeatable.")] = None,
    pair: Annotated[
        list[str] | None, typer.Option("--pair", "-p", help="Second text for models that compare two; one a text.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Send every line of this UTF-8 file.", dir_okay=False)
    ] = None,
    image: Annotated[
        list[Path] | None,
        typer.Option("--image", "-i", help="An image file to send; repeatable.", exists=True, dir_okay=False),
    ] = None,
    url: Url = None,
    task: Annotated[str | None, typer.Option(help="Task that the queries belong to.")] = None,
    latency_ms: Annotated[
        float | None, typer.Option("--latency-ms", help="Deadline on the server, milliseconds after arrival.")
    ] = None,
    utility: Annotated[float | None, typer.Option(help="Worth of an answer in time.")] = None,
    accuracy: Annotated[
        float | None, typer.Option(help="Least score that a cascade is to answer with, 0 to 1: lower is faster.")
    ] = None,
    max_level: Annotated[
        int | None, typer.Option("--max-level", help="Last level of a cascade that may be asked, from 1.")
    ] = None,
    output: Annotated[
        list[str] | None, typer.Option("--output", "-o", help="Output to ask for; repeatable. Default: all.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line instead of a table.")] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.001, help="Seconds to wait for each answer.")
    ] = DEFAULT_TIMEOUT_S,
) -> None:
    """Send texts or images to a model and print its answers.

    Each is a request of its own, sent one after the other, so that each has its own latency, and one that the
    server refuses does not harm the others. Texts come from --text, from the lines of --file, or from the lines of
    standard input when neither they nor an --image is given.

    The table shows the text or the image's file, the label (a regression's value), the probability of that label, the
    longest input in tokens of the runtime that served it, the milliseconds until the answer was here, the level of a
    cascade that answered, γ where the model adapts its tokens, and what else is a short text, as the labels of an
    ensemble's other steps. The first request also pays for the connection.

    Examples:

    ```
    tidal infer intent --text "book a table for two"
    tidal infer intent -t "hello" -t "what is the weather" --latency-ms 50
    tidal infer entailment -t "A man sleeps." --pair "Somebody is awake."
    tidal infer intent --file questions.txt --json > answers.jsonl
    head -3 questions.txt | tidal infer intent --url http://127.0.0.1:8000
    tidal infer intent -t "only these" --output label --output max_length
    tidal infer reviews -t "not bad at all" --accuracy 0.9 --output label --output level
    tidal infer vit --image cat.jpg --image dog.png --task animals --latency-ms 600
    ```

    With --json, each line has `text` and `pair`, or `image`; `milliseconds`; and either `label`, `probabilities`,
    `logits`, `max_length` and `outputs` (null where the model gave none) or `error` with `code` and `message`.

    Exit codes:

    - **0** every query was answered
    - **1** a request failed; standard error says which and why
    - **2** wrong arguments, nothing was sent
    """
    queries = _queries(text, pair, file, image)
    server = choose_target(url, "grpc")
    options = Options(task=task, latency_ms=latency_ms, utility=utility, accuracy=accuracy, max_level=max_level)
    answers: list[_InferResult] = []
    with Client(server.url, timeout_s=timeout) as client:
        for number, each in enumerate(queries):
            answer = _send(client, model, each, output or None, options)
            answers.append(answer)
            if isinstance(answer.result, RequestError):
                kind = "text" if each.image is None else "image"
                typer.echo(f"{kind} {number + 1} of {len(queries)}: {server.message(answer.result)}", err=True)
            if as_json:
                typer.echo(json.dumps(_as_json(answer)))
            if isinstance(answer.result, _FATAL) and number + 1 < len(queries):
                typer.echo(f"{len(queries) - number - 1} more not sent", err=True)
                break
    if not as_json:
        Console().print(_table(answers))
    failed = any(isinstance(answer.result, RequestError) for answer in answers)
    raise typer.Exit(exit_codes.FAILED if failed else exit_codes.OK)


def _queries(
    text: list[str] | None, pair: list[str] | None, file: Path | None, image: list[Path] | None
) -> list[_InferQuery]:
    """What to send, from the one source that was given."""
    if image:
        if text or pair or file:
            raise typer.BadParameter("give images or texts, not both", param_hint="--image")
        return [_InferQuery("", image=each) for each in image]
    texts = _texts(text, file)
    if pair and len(pair) != len(texts):
        raise typer.BadParameter(
            f"expected one for each of the {len(texts)} texts, got {len(pair)}", param_hint="--pair"
        )
    return [_InferQuery(each, pair[number] if pair else None) for number, each in enumerate(texts)]


def _texts(text: list[str] | None, file: Path | None) -> list[str]:
    """The texts to send, from the one source that was given."""
    if text and file:
        raise typer.BadParameter("give --text or --file, not both", param_hint="--file")
    if text:
        return text
    try:
        if file is not None:
            with file.open(encoding="utf-8") as lines:
                texts = _lines(lines)
        elif sys.stdin.isatty():
            raise typer.BadParameter("no text: give --text, --file, or lines on standard input", param_hint="--text")
        else:
            texts = _lines(io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"cannot read the texts: {error}", param_hint="--file") from None
    if not texts:
        raise typer.BadParameter("no text in the input", param_hint="--file" if file else "--text")
    return texts


def _lines(stream: Iterable[str]) -> list[str]:
    # Not str.splitlines, which also splits at characters that stand inside texts.
    return [line.rstrip("\r\n") for line in stream]


def _send(client: Client, model: str, query: _InferQuery, outputs: list[str] | None, options: Options) -> _InferResult:
    try:
        image = None if query.image is None else query.image.read_bytes()
    except OSError as error:
        raise typer.BadParameter(f"cannot read the image: {error}", param_hint="--image") from None
    start = time.perf_counter()
    result: Classification | RequestError
    try:
        if image is None:
            result = client.classify(model, query.text, pair=query.pair, outputs=outputs, **options)
        else:
            result = client.classify_image(model, image, outputs=outputs, **options)
    except RequestError as error:
        result = error
    return _InferResult(query, result, (time.perf_counter() - start) * 1000)


def _table(answers: list[_InferResult]) -> Table:
    """A line an answer; a cascade's level, a batch's γ and an ensemble's other labels stand behind where there are."""
    images = any(answer.query.image is not None for answer in answers)
    table = Table("image" if images else "text", "label")
    given = dict.fromkeys(name for answer in answers for name in _further_labels(answer))
    choices = [name for name in ("level", "gamma", *given) if any(_choice(answer, name) for answer in answers)]
    for numeric in ("probability", *([] if images else ["max_length"]), "ms", *choices):
        table.add_column(numeric, justify="right", no_wrap=True)
    for answer in answers:
        *cells, length, milliseconds = _as_row(answer)
        lengths = [] if images else [length]
        table.add_row(*cells, *lengths, milliseconds, *(_choice(answer, name) for name in choices))
    return table


def _choice(answer: _InferResult, name: str) -> str:
    """What the server chose for an answer, as text; empty where the model does not say."""
    value = None if isinstance(answer.result, RequestError) else answer.result.other.get(name)
    return "" if value is None else escape(str(_plain(value.reshape(-1))[0]))


def _further_labels(answer: _InferResult) -> list[str]:
    """Outputs that are one short text each, beside the label."""
    if isinstance(answer.result, RequestError):
        return []
    texts = [name for name, value in answer.result.other.items() if value.dtype == np.object_ and value.size == 1]
    return [name for name in texts if len(_choice(answer, name)) <= _LABEL]


def _label(result: Classification) -> str:
    """The label, or a regression's value."""
    value = result.other.get("value")
    return (result.label or "") if value is None else f"{value.item():.4g}"


def _as_row(answer: _InferResult) -> list[str]:
    shown = answer.query.shown
    milliseconds = f"{answer.milliseconds:.1f}"
    if isinstance(answer.result, RequestError):
        return [escape(shown), f"[red]{answer.result.code}[/red]", "", "", milliseconds]
    result, top = answer.result, answer.result.top_probability
    return [
        escape(shown),
        escape(_label(result)),
        "" if top is None else f"{top:.3f}",
        "" if result.max_length is None else str(result.max_length),
        milliseconds,
    ]


def _as_json(answer: _InferResult) -> dict[str, Any]:
    query = answer.query
    found: dict[str, Any] = (
        {"text": query.text, "pair": query.pair} if query.image is None else {"image": str(query.image)}
    )
    found["milliseconds"] = round(answer.milliseconds, 3)
    result = answer.result
    if isinstance(result, RequestError):
        return found | {"error": {"code": result.code, "message": str(result)}}
    return found | {
        "label": result.label,
        "probabilities": None if result.probabilities is None else result.probabilities.tolist(),
        "logits": None if result.logits is None else result.logits.tolist(),
        "max_length": result.max_length,
        "outputs": {name: _plain(value) for name, value in result.other.items()},
    }


def _plain(value: np.ndarray[Any, Any]) -> Any:
    """Nested lists that JSON can hold."""
    if value.dtype == np.object_:
        return [item.decode(errors="replace") if isinstance(item, bytes) else item for item in value.reshape(-1)]
    return value.tolist()
