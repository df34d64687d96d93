"""`tidal infer`: classify texts or images and print the results."""

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

# Longer text outputs are not shown in the table.
_MAX_LABEL_CHARS = 32
# Errors that every further request would end in too.
_FATAL = (ConnectionFailed, DeadlineExceeded, NotFound, Unsupported)


@dataclass(frozen=True, slots=True)
class _InferQuery:
    """One text, pair of texts or image file to send."""

    text: str
    pair: str | None = None
    image: Path | None = None

    @property
    def shown(self) -> str:
        """Text that represents the query in the table."""
        if self.image is not None:
            return str(self.image)
        return self.text if self.pair is None else f"{self.text} | {self.pair}"


@dataclass(frozen=True, slots=True)
class _InferResult:
    """A query with its result or error, and its latency."""

    query: _InferQuery
    result: Classification | RequestError
    milliseconds: float


def infer(
    model: Annotated[str, typer.Argument(help="Name of the model on the server.", show_default=False)],
    text: Annotated[list[str] | None, typer.Option("--text", "-t", help="Text to classify; repeatable.")] = None,
    pair: Annotated[
        list[str] | None, typer.Option("--pair", "-p", help="Second text of a pair, one per --text.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Classify each line of this UTF-8 file.", dir_okay=False)
    ] = None,
    image: Annotated[
        list[Path] | None,
        typer.Option("--image", "-i", help="Image file to classify; repeatable.", exists=True, dir_okay=False),
    ] = None,
    url: Url = None,
    task: Annotated[str | None, typer.Option(help="Name of the task.")] = None,
    latency_ms: Annotated[
        float | None, typer.Option("--latency-ms", help="Deadline on the server, in milliseconds after arrival.")
    ] = None,
    utility: Annotated[float | None, typer.Option(help="Utility of a result that meets its deadline.")] = None,
    accuracy: Annotated[
        float | None, typer.Option(help="Cascades: minimum score to reach, 0 to 1; lower is faster.")
    ] = None,
    max_level: Annotated[
        int | None, typer.Option("--max-level", help="Cascades: highest level to use, from 1.")
    ] = None,
    output: Annotated[
        list[str] | None, typer.Option("--output", "-o", help="Output to request; repeatable. Default: all.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line instead of a table.")] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.001, help="Timeout for each response, in seconds.")
    ] = DEFAULT_TIMEOUT_S,
) -> None:
    """Classify texts or images and print the results.

    Inputs are --text, the lines of --file, --image files, or the lines of standard input. Each input is a separate
    request, sent after the previous one has ended: each has its own latency, and one error does not affect the others.

    The table shows for each input: the label (for a regression, the value), the probability of the label, `max_length`
    (the longest input in tokens of the runtime that served it) and the latency in milliseconds. If the model returns
    them, it also shows the level of the cascade that answered, γ (OTAS) and further labels. The first latency includes
    the time to connect.

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
    `logits`, `max_length` and `outputs` (null if the model does not return it) or `error` with `code` and `message`.

    Exit codes:

    - **0** every request was answered
    - **1** a request failed; standard error says which and why
    - **2** wrong usage; nothing was sent
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
                typer.echo(f"inputs not sent: {len(queries) - number - 1}", err=True)
                break
    if not as_json:
        Console().print(_table(answers))
    failed = any(isinstance(answer.result, RequestError) for answer in answers)
    raise typer.Exit(exit_codes.FAILED if failed else exit_codes.OK)


def _queries(
    text: list[str] | None, pair: list[str] | None, file: Path | None, image: list[Path] | None
) -> list[_InferQuery]:
    """Return the inputs from the one source that was given."""
    if image:
        if text or pair or file:
            raise typer.BadParameter("--image cannot be combined with --text, --pair or --file", param_hint="--image")
        return [_InferQuery("", image=each) for each in image]
    texts = _texts(text, file)
    if pair and len(pair) != len(texts):
        raise typer.BadParameter(f"got {len(pair)} for {len(texts)} texts; expected one per text", param_hint="--pair")
    return [_InferQuery(each, pair[number] if pair else None) for number, each in enumerate(texts)]


def _texts(text: list[str] | None, file: Path | None) -> list[str]:
    """Return the texts from --text, --file or standard input."""
    if text and file:
        raise typer.BadParameter("--text and --file exclude each other: give one of them", param_hint="--file")
    if text:
        return text
    try:
        if file is not None:
            with file.open(encoding="utf-8") as lines:
                texts = _lines(lines)
        elif sys.stdin.isatty():
            raise typer.BadParameter(
                "no input: give --text, --file, --image, or lines on standard input", param_hint="--text"
            )
        else:
            texts = _lines(io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"cannot read the texts: {error}", param_hint="--file") from None
    if not texts:
        raise typer.BadParameter("the input has no text", param_hint="--file" if file else "--text")
    return texts


def _lines(stream: Iterable[str]) -> list[str]:
    # str.splitlines would also split at characters that occur within texts.
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
    """Return a table with one row per result, with columns only for outputs that occur."""
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
    """Return an output of one value as text; empty if the model does not return it."""
    value = None if isinstance(answer.result, RequestError) else answer.result.other.get(name)
    return "" if value is None else escape(str(_plain(value.reshape(-1))[0]))


def _further_labels(answer: _InferResult) -> list[str]:
    """Return the names of further outputs that are one short text each."""
    if isinstance(answer.result, RequestError):
        return []
    texts = [name for name, value in answer.result.other.items() if value.dtype == np.object_ and value.size == 1]
    return [name for name in texts if len(_choice(answer, name)) <= _MAX_LABEL_CHARS]


def _label(result: Classification) -> str:
    """Return the label, or the value of a regression."""
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
    """Return an array as nested lists for JSON."""
    if value.dtype == np.object_:
        return [item.decode(errors="replace") if isinstance(item, bytes) else item for item in value.reshape(-1)]
    return value.tolist()
