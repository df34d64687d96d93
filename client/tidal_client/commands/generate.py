"""`tidal generate`: let a model write on behind a text, and print what it writes as it comes."""

from __future__ import annotations

import json
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from tidal_client import exit_codes
from tidal_client.client import DEFAULT_TIMEOUT_S, Client
from tidal_client.commands.target import Url, choose_target
from tidal_client.errors import RequestError
from tidal_client.options import Options


class EarlyStopping(StrEnum):
    """What --early-stopping takes."""

    TRUE = "true"
    FALSE = "false"
    NEVER = "never"


_EARLY_STOPPING: dict[EarlyStopping, bool | Literal["never"]] = {
    EarlyStopping.TRUE: True,
    EarlyStopping.FALSE: False,
    EarlyStopping.NEVER: "never",
}


def generate(
    model: Annotated[str, typer.Argument(help="Name of the model, as the server lists it.", show_default=False)],
    text: Annotated[
        list[str] | None, typer.Option("--text", "-t", help="The text to go on from; several are one request.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Read it from this UTF-8 file.", dir_okay=False)
    ] = None,
    url: Url = None,
    max_tokens: Annotated[int | None, typer.Option("--max-tokens", "-n", help="Tokens to generate at most.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Sampling temperature, 0 is greedy.")] = None,
    top_k: Annotated[int | None, typer.Option("--top-k", help="Sample among the k likeliest tokens.")] = None,
    top_p: Annotated[
        float | None,
        typer.Option("--top-p", help="Sample among the likeliest tokens that have this probability together."),
    ] = None,
    repetition_penalty: Annotated[
        float | None,
        typer.Option("--repetition-penalty", help="Above 1 makes tokens that the text has less likely."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the sampling: the same one repeats a text.")] = None,
    stop: Annotated[list[str] | None, typer.Option("--stop", help="Text that ends the generation; repeatable.")] = None,
    num_beams: Annotated[
        int | None, typer.Option("--num-beams", help="Search the likeliest text with so many beams.")
    ] = None,
    length_penalty: Annotated[
        float | None, typer.Option("--length-penalty", help="Of beam search: above 0 favours long texts.")
    ] = None,
    early_stopping: Annotated[
        EarlyStopping | None, typer.Option("--early-stopping", help="When beam search ends.")
    ] = None,
    task: Annotated[str | None, typer.Option(help="Fine-tuned task of the model, by name.")] = None,
    latency_ms: Annotated[
        float | None, typer.Option("--latency-ms", help="Deadline on the server, milliseconds after arrival.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON when all is there: one object a text.")] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.001, help="Seconds to wait for each part.")
    ] = DEFAULT_TIMEOUT_S,
) -> None:
    """Let a model write on behind a text, and print what it writes as it comes.

    The text is --text, the content of --file, or standard input. What ended the generation, its tokens and its times
    are on standard error. Several texts, by more than one --text, are printed in order when all is there. Ctrl-C
    withdraws the request.

    Examples:

    ```
    tidal generate writer --text "Once upon a time" --max-tokens 200
    tidal generate writer -t "Q: 2 + 2?\\nA:" --stop "\\n" --temperature 0.7 --seed 1
    tidal generate writer -t "Once" -t "Twice" --num-beams 4 --json
    tidal generate writer --file draft.txt --url http://127.0.0.1:8000 > more.txt
    ```

    With --json, an object has `index` (of the --text, from 0), `text`, `tokens`, `finish_reason`, `prompt_tokens`,
    `generated_tokens`, `first_token_ms` and `milliseconds`. If the request failed there is one with `error`, which has
    `code` and `message`.

    Exit codes:

    - **0** the text was generated
    - **1** the request failed; standard error says why
    - **2** wrong arguments, nothing was sent
    """
    prompts = _prompts(text, file)
    server = choose_target(url, "grpc")
    options = Options(
        max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p,
        repetition_penalty=repetition_penalty, seed=seed, stop=stop or None, task=task, latency_ms=latency_ms,
        num_beams=num_beams, length_penalty=length_penalty,
        early_stopping=None if early_stopping is None else _EARLY_STOPPING[early_stopping],
    )  # fmt: skip
    try:
        _run(model, prompts, server.url, timeout, options, as_json)
    except RequestError as error:
        typer.echo(server.message(error), err=True)
        if as_json:
            typer.echo(json.dumps({"error": {"code": error.code, "message": str(error)}}))
        raise typer.Exit(exit_codes.FAILED) from None


def _run(model: str, prompts: list[str], url: str, timeout: float, options: Options, as_json: bool) -> None:
    results: list[dict[str, Any]] = [{"index": index, "text": "", "tokens": []} for index in range(len(prompts))]
    as_it_comes = not as_json and len(prompts) == 1
    began = time.perf_counter()
    with Client(url, timeout_s=timeout) as client:
        for part in client.generate_stream(model, prompts, **options):
            found = results[part.index]
            found.setdefault("first_token_ms", _milliseconds(began))
            found["text"] += part.text
            found["tokens"] += part.tokens
            if as_it_comes:
                typer.echo(part.text, nl=False)
            if part.finish_reason is not None:
                found |= {
                    "finish_reason": part.finish_reason,
                    "prompt_tokens": part.prompt_tokens,
                    "generated_tokens": part.generated_tokens,
                    "milliseconds": _milliseconds(began),
                }
    for found in results:
        if as_json:
            typer.echo(json.dumps(found))
            continue
        typer.echo("" if as_it_comes else found["text"])
        typer.echo(
            f"{found['generated_tokens']} tokens behind {found['prompt_tokens']}, ended by {found['finish_reason']}: "
            f"the first after {found['first_token_ms']:.0f} ms, all after {found['milliseconds']:.0f} ms",
            err=True,
        )


def _milliseconds(began: float) -> float:
    return (time.perf_counter() - began) * 1e3


def _prompts(texts: list[str] | None, file: Path | None) -> list[str]:
    """The texts, from the one source that was given."""
    if texts and file is not None:
        raise typer.BadParameter("give --text or --file, not both", param_hint="--file")
    if texts:
        return texts
    try:
        if file is not None:
            return [file.read_text(encoding="utf-8")]
        if sys.stdin.isatty():
            raise typer.BadParameter("no text: give --text, --file, or standard input", param_hint="--text")
        return [sys.stdin.buffer.read().decode()]
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"cannot read the text: {error}", param_hint="--file") from None
