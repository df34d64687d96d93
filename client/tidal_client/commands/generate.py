"""`tidal generate`: generate text from a prompt and print it as it arrives."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
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
    """Values of --early-stopping."""

    TRUE = "true"
    FALSE = "false"
    NEVER = "never"


_EARLY_STOPPING: dict[EarlyStopping, bool | Literal["never"]] = {
    EarlyStopping.TRUE: True,
    EarlyStopping.FALSE: False,
    EarlyStopping.NEVER: "never",
}


def generate(
    model: Annotated[str, typer.Argument(help="Name of the model on the server.", show_default=False)],
    text: Annotated[
        list[str] | None, typer.Option("--text", "-t", help="Prompt; repeat it to send several in one request.")
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Send the prompt as a user's message, by the model's chat template.")
    ] = False,
    system: Annotated[str | None, typer.Option("--system", help="With --chat: text of a system message.")] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Read the prompt from this UTF-8 file.", dir_okay=False)
    ] = None,
    url: Url = None,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", "-n", help="Maximum number of tokens to generate.")
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="Sampling temperature; 0: greedy decoding.")] = None,
    top_k: Annotated[int | None, typer.Option("--top-k", help="Sample from the k most likely tokens.")] = None,
    top_p: Annotated[
        float | None,
        typer.Option("--top-p", help="Sample from the most likely tokens whose probabilities sum to this."),
    ] = None,
    min_p: Annotated[
        float | None,
        typer.Option("--min-p", help="Sample from tokens with this share of the most likely token's probability."),
    ] = None,
    repetition_penalty: Annotated[
        float | None,
        typer.Option("--repetition-penalty", help="Above 1: penalize tokens that already occur in the text."),
    ] = None,
    presence_penalty: Annotated[
        float | None, typer.Option("--presence-penalty", help="Above 0: penalize tokens that occur in the new text.")
    ] = None,
    frequency_penalty: Annotated[
        float | None,
        typer.Option("--frequency-penalty", help="Above 0: penalize tokens by their number in the new text."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the sampling; equal seeds give equal texts.")] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option("--stop", help="Stop generating at this text, which is not returned; repeatable."),
    ] = None,
    samples: Annotated[
        int | None, typer.Option("--samples", help="Number of texts for each prompt; needs sampling.")
    ] = None,
    min_tokens: Annotated[
        int | None, typer.Option("--min-tokens", help="Tokens to generate before the text may end by itself.")
    ] = None,
    ignore_eos: Annotated[
        bool | None, typer.Option("--ignore-eos", help="Continue after an end-of-text token.")
    ] = None,
    echo: Annotated[bool | None, typer.Option("--echo", help="Print the prompt before the text.")] = None,
    guided_json: Annotated[
        Path | None, typer.Option("--guided-json", help="File of a JSON schema for the text.", dir_okay=False)
    ] = None,
    guided_regex: Annotated[
        str | None, typer.Option("--guided-regex", help="Regular expression that the whole text matches.")
    ] = None,
    guided_choice: Annotated[
        list[str] | None, typer.Option("--guided-choice", help="A text to choose from; repeatable.")
    ] = None,
    guided_grammar: Annotated[
        Path | None, typer.Option("--guided-grammar", help="File of a grammar in Lark's format.", dir_okay=False)
    ] = None,
    num_beams: Annotated[int | None, typer.Option("--num-beams", help="Number of beams; above 1: beam search.")] = None,
    length_penalty: Annotated[
        float | None, typer.Option("--length-penalty", help="Beam search: above 0 favors long texts.")
    ] = None,
    early_stopping: Annotated[
        EarlyStopping | None, typer.Option("--early-stopping", help="Beam search: when to stop.")
    ] = None,
    task: Annotated[str | None, typer.Option(help="Name of a fine-tuned task of the model.")] = None,
    latency_ms: Annotated[
        float | None, typer.Option("--latency-ms", help="Deadline on the server, in milliseconds after arrival.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per prompt, at the end.")] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.001, help="Timeout for each part of the response, in seconds.")
    ] = DEFAULT_TIMEOUT_S,
) -> None:
    """Generate text from a prompt and print it as it arrives.

    The prompt is --text, the content of --file, or standard input. Token counts, times and the reason why the
    generation ended go to standard error. With several --text, the texts are printed in order at the end. Ctrl-C
    cancels the request.

    Examples:

    ```
    tidal generate writer --text "Once upon a time" --max-tokens 200
    tidal generate writer -t "Q: 2 + 2?\\nA:" --stop "\\n" --temperature 0.7 --seed 1
    tidal generate writer -t "Once" -t "Twice" --num-beams 4 --json
    tidal generate writer --chat --system "Answer in one word." -t "Capital of France?"
    tidal generate writer -t "Is water wet? " --guided-choice yes --guided-choice no
    tidal generate writer --file draft.txt --url http://127.0.0.1:8000 > more.txt
    ```

    With --json, each object has `index` (of its --text, from 0, times --samples), `text`, `tokens`, `finish_reason`,
    `prompt_tokens`, `generated_tokens`, `first_token_ms` and `milliseconds`. A failed request prints one object with
    `error`, which has `code` and `message`.

    Exit codes:

    - **0** the text was generated
    - **1** the request failed; standard error says why
    - **2** wrong usage; nothing was sent
    """
    prompts = _prompts(text, file)
    if chat and len(prompts) > 1:
        raise typer.BadParameter(f"--chat takes one prompt, got {len(prompts)} --text", param_hint="--chat")
    if system is not None and not chat:
        raise typer.BadParameter("--system requires --chat", param_hint="--system")
    server = choose_target(url, "grpc")
    options = Options(
        max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
        repetition_penalty=repetition_penalty, presence_penalty=presence_penalty, frequency_penalty=frequency_penalty,
        seed=seed, n=samples, min_tokens=min_tokens, ignore_eos=ignore_eos, echo=echo,
        guided_json=None if guided_json is None else _schema(guided_json), guided_regex=guided_regex,
        guided_choice=guided_choice or None,
        guided_grammar=None if guided_grammar is None else _read(guided_grammar, "--guided-grammar"),
        stop=stop or None, task=task, latency_ms=latency_ms,
        num_beams=num_beams, length_penalty=length_penalty,
        early_stopping=None if early_stopping is None else _EARLY_STOPPING[early_stopping],
    )  # fmt: skip
    try:
        _run(model, prompts, server.urls, timeout, options, as_json=as_json, messages=_messages(prompts, chat, system))
    except RequestError as error:
        typer.echo(server.message(error), err=True)
        if as_json:
            typer.echo(json.dumps({"error": {"code": error.code, "message": str(error)}}))
        raise typer.Exit(exit_codes.FAILED) from None


def _run(
    model: str, prompts: list[str], urls: Sequence[str], timeout: float, options: Options, *, as_json: bool,
    messages: list[dict[str, str]] | None,
) -> None:  # fmt: skip
    count = len(prompts) * (options.get("n") or 1)
    results: list[dict[str, Any]] = [{"index": index, "text": "", "tokens": []} for index in range(count)]
    streaming = not as_json and count == 1
    began = time.perf_counter()
    with Client(urls, timeout_s=timeout) as client:
        if messages is None:
            parts = client.generate_stream(model, prompts, **options)
        else:
            parts = client.chat_stream(model, messages, **options)
        for part in parts:
            result = results[part.index]
            result.setdefault("first_token_ms", _milliseconds(began))
            result["text"] += part.text
            result["tokens"] += part.tokens
            if streaming:
                typer.echo(part.text, nl=False)
            if part.finish_reason is not None:
                result |= {
                    "finish_reason": part.finish_reason,
                    "prompt_tokens": part.prompt_tokens,
                    "generated_tokens": part.generated_tokens,
                    "milliseconds": _milliseconds(began),
                }
    for result in results:
        if as_json:
            typer.echo(json.dumps(result))
            continue
        typer.echo("" if streaming else result["text"])
        typer.echo(
            f"{result['prompt_tokens']} prompt tokens, {result['generated_tokens']} generated tokens, finish reason "
            f"{result['finish_reason']}: first token after {result['first_token_ms']:.0f} ms, last after "
            f"{result['milliseconds']:.0f} ms",
            err=True,
        )


def _messages(prompts: list[str], chat: bool, system: str | None) -> list[dict[str, str]] | None:
    """Return the messages of a chat; None if the prompts are texts."""
    if not chat:
        return None
    messages = [] if system is None else [{"role": "system", "content": system}]
    return [*messages, {"role": "user", "content": prompts[0]}]


def _schema(file: Path) -> dict[str, Any]:
    """Return the JSON schema in a file."""
    try:
        schema = json.loads(_read(file, "--guided-json"))
    except ValueError as error:
        raise typer.BadParameter(f"{file} is not valid JSON: {error}", param_hint="--guided-json") from None
    if not isinstance(schema, dict):
        raise typer.BadParameter(f"{file} has no JSON object; a schema is one", param_hint="--guided-json")
    return schema


def _read(file: Path, option: str) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"cannot read {file}: {error}", param_hint=option) from None


def _milliseconds(began: float) -> float:
    return (time.perf_counter() - began) * 1e3


def _prompts(texts: list[str] | None, file: Path | None) -> list[str]:
    """Return the prompts from --text, --file or standard input."""
    if texts and file is not None:
        raise typer.BadParameter("--text and --file exclude each other: give one of them", param_hint="--file")
    if texts:
        return texts
    try:
        if file is not None:
            return [file.read_text(encoding="utf-8")]
        if sys.stdin.isatty():
            raise typer.BadParameter("no prompt: give --text, --file or standard input", param_hint="--text")
        return [sys.stdin.buffer.read().decode()]
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"cannot read the prompt: {error}", param_hint="--file") from None
