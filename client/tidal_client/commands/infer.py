"""`tidal infer`: send texts or images to a model and print the results."""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, NoReturn, cast

import typer
from rich.console import Console

from tidal_client import exit_codes
from tidal_client.client import DEFAULT_TIMEOUT_S, Client
from tidal_client.commands.infer_tables import (
    InferQuery,
    InferResult,
    answer_fields,
    answer_table,
    ranked_fields,
    ranked_table,
)
from tidal_client.commands.target import TargetServer, Url, choose_target
from tidal_client.errors import ConnectionFailed, DeadlineExceeded, NotFound, RequestError, Unsupported
from tidal_client.options import Options
from tidal_client.results import Classification

# Errors that every further request would end in too.
_FATAL = (ConnectionFailed, DeadlineExceeded, NotFound, Unsupported)


def infer(
    model: Annotated[str, typer.Argument(help="Name of the model on the server.", show_default=False)],
    text: Annotated[list[str] | None, typer.Option("--text", "-t", help="Text to send; repeatable.")] = None,
    pair: Annotated[
        list[str] | None,
        typer.Option("--pair", "-p", help="Second text of a pair or context of a question, one per --text."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Send each line of this UTF-8 file.", dir_okay=False)
    ] = None,
    query: Annotated[
        str | None, typer.Option("--query", "-q", help="Rank the texts for this query, in one list.")
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
    prompt: Annotated[str | None, typer.Option(help="Embeddings: name of the model's prompt.")] = None,
    dimensions: Annotated[int | None, typer.Option(help="Embeddings: number of dimensions to keep.")] = None,
    aggregation: Annotated[
        str | None, typer.Option(help="Entities: how tokens are joined: none, simple, first, average or max.")
    ] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Several labels for each text: minimum probability, 0 to 1.")
    ] = None,
    top_k: Annotated[
        int | None, typer.Option("--top-k", help="Answers and masks: number of candidates to return.")
    ] = None,
    output: Annotated[
        list[str] | None, typer.Option("--output", "-o", help="Output to request; repeatable. Default: all.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line instead of a table.")] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.001, help="Timeout for each response, in seconds.")
    ] = DEFAULT_TIMEOUT_S,
) -> None:
    """Send texts or images to a model and print the results.

    Inputs are --text, the lines of --file, --image files, or the lines of standard input. Each input is a separate
    request, sent after the previous one has ended: each has its own latency, and one error does not affect the others.

    The table shows for each input: the label (for a regression, the value), the probability of the label, `max_length`
    (the longest input in tokens of the runtime that served it) and the latency in milliseconds. If the model returns
    them, it also shows the level of the cascade that answered, γ (OTAS) and further labels. The first latency includes
    the time to connect.

    For other kinds of models the table shows the embedding, the entities with their offsets in characters, the answers,
    the predictions for masks, or the score; the outputs of the response determine the kind.

    With --query, the texts are documents: they are sent as one list and printed in the order of their scores.

    Examples:

    ```
    tidal infer intent --text "book a table for two"
    tidal infer intent -t "hello" -t "what is the weather" --latency-ms 50
    tidal infer entailment -t "A man sleeps." --pair "Somebody is awake."
    tidal infer intent --file questions.txt --json > answers.jsonl
    head -3 questions.txt | tidal infer intent --url http://127.0.0.1:8000
    tidal infer intent -t "only these" --output label --output max_length
    tidal infer reviews -t "not bad at all" --accuracy 0.9 --output label --output level
    tidal infer minilm -t "a train to Oslo" --dimensions 64
    tidal infer reranker --query "trains to Oslo" --file documents.txt
    tidal infer ner -t "Lena flies to Lima" --aggregation simple
    tidal infer qa -t "where does Lena fly?" --pair "Lena flies to Lima on Friday" --top-k 3
    tidal infer vit --image cat.jpg --image dog.png --task animals --latency-ms 600
    ```

    With --json, each line has `text` and `pair`, or `image`; `milliseconds`; and either `label`, `probabilities`,
    `logits`, `max_length` and `outputs` (null if the model does not return it) or `error` with `code` and `message`.
    Other kinds of models have `embedding`, `entities`, `answers`, `predictions`, `indices` and `weights`, or `score`
    instead; with --query, a line has `query`, `document`, `index` and `score`.

    Exit codes:

    - **0** every request was answered
    - **1** a request failed; standard error says which and why
    - **2** wrong usage; nothing was sent
    """
    queries = _queries(text, pair, file, image)
    server = choose_target(url, "grpc")
    given: dict[str, Any] = {
        "task": task,
        "latency_ms": latency_ms,
        "utility": utility,
        "accuracy": accuracy,
        "max_level": max_level,
        "prompt": prompt,
        "dimensions": dimensions,
        "aggregation": aggregation,
        "threshold": threshold,
        "top_k": top_k,
    }
    options = cast(Options, given)
    if query is not None:
        if pair or image or output:
            raise typer.BadParameter("cannot be combined with --pair, --image or --output", param_hint="--query")
        _rank(server, model, query, [each.text for each in queries], options, timeout, as_json=as_json)
    answers: list[InferResult] = []
    with Client(server.urls, timeout_s=timeout) as client:
        for number, each in enumerate(queries):
            answer = _send(client, model, each, output or None, options)
            answers.append(answer)
            if isinstance(answer.result, RequestError):
                kind = "text" if each.image is None else "image"
                typer.echo(f"{kind} {number + 1} of {len(queries)}: {server.message(answer.result)}", err=True)
            if as_json:
                typer.echo(json.dumps(answer_fields(answer)))
            if isinstance(answer.result, _FATAL) and number + 1 < len(queries):
                typer.echo(f"inputs not sent: {len(queries) - number - 1}", err=True)
                break
    if not as_json:
        Console().print(answer_table(answers))
    failed = any(isinstance(answer.result, RequestError) for answer in answers)
    raise typer.Exit(exit_codes.FAILED if failed else exit_codes.OK)


def _queries(
    text: list[str] | None, pair: list[str] | None, file: Path | None, image: list[Path] | None
) -> list[InferQuery]:
    """Return the inputs from the one source that was given."""
    if image:
        if text or pair or file:
            raise typer.BadParameter("--image cannot be combined with --text, --pair or --file", param_hint="--image")
        return [InferQuery("", image=each) for each in image]
    texts = _texts(text, file)
    if pair and len(pair) != len(texts):
        raise typer.BadParameter(f"got {len(pair)} for {len(texts)} texts; expected one per text", param_hint="--pair")
    return [InferQuery(each, pair[number] if pair else None) for number, each in enumerate(texts)]


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


def _rank(
    server: TargetServer,
    model: str,
    query: str,
    documents: list[str],
    options: Options,
    timeout_s: float,
    *,
    as_json: bool,
) -> NoReturn:
    """Rank documents and end the command."""
    start = time.perf_counter()
    try:
        with Client(server.urls, timeout_s=timeout_s) as client:
            ranked = client.rerank(model, query, documents, **options)
    except RequestError as error:
        typer.echo(server.message(error), err=True)
        raise typer.Exit(exit_codes.FAILED) from None
    if as_json:
        for each in ranked:
            typer.echo(json.dumps({"query": query, **ranked_fields(each)}))
    else:
        Console().print(ranked_table(query, ranked, (time.perf_counter() - start) * 1000))
    raise typer.Exit(exit_codes.OK)


def _send(client: Client, model: str, query: InferQuery, outputs: list[str] | None, options: Options) -> InferResult:
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
    return InferResult(query, result, (time.perf_counter() - start) * 1000)
