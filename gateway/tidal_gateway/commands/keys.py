"""`tidal keys`: API keys of the gateway."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from tidal.errors import TidalError
from tidal_client import exit_codes
from tidal_gateway.keys.store import KeyEntry, add_key, read_keys, revoke_key

keys = typer.Typer(
    help="List, add and revoke API keys of the gateway.",
    rich_markup_mode="markdown",
    no_args_is_help=True,
    add_completion=False,
)

KeysFile = Annotated[
    Path, typer.Option("--file", "-f", envvar="TIDAL_GATEWAY_KEYS", help="File of keys, see `tidal gateway --keys`.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one line of JSON.")]


@keys.command("add")
def add(
    name: Annotated[str, typer.Argument(help="Name of the key's owner.")],
    file: KeysFile,
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN", help="Model, or model/task, that the key may use, such as `encoder/*`. Repeatable."
        ),
    ] = None,
    requests_per_minute: Annotated[int | None, typer.Option(min=1, help="Maximum number of requests a minute.")] = None,
    tokens_per_minute: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of prompt and generated tokens a minute.")
    ] = None,
    max_concurrency: Annotated[int | None, typer.Option(min=1, help="Maximum number of concurrent requests.")] = None,
    as_json: AsJson = False,
) -> None:
    """Add a key and print it.

    The file stores only the key's hash: the key is shown once. A running gateway accepts it at once.

    ```
    tidal keys add search-team --file keys.json --model "encoder/*" --requests-per-minute 600
    ```

    Exit codes: **0** added, **1** the file cannot be read or written, or a value is not accepted.
    """
    with _one_sentence():
        key, entry = add_key(
            file,
            name,
            models=tuple(model or ()),
            requests_per_minute=requests_per_minute,
            tokens_per_minute=tokens_per_minute,
            max_concurrency=max_concurrency,
        )
    typer.echo(json.dumps({"key": key, **_shown(entry)}) if as_json else key)


@keys.command("list")
def list_keys(file: KeysFile, as_json: AsJson = False) -> None:
    """List the keys of a file, the revoked ones too, without the keys themselves.

    Exit codes: **0** listed, **1** the file cannot be read.
    """
    with _one_sentence():
        entries = read_keys(file).keys
    if as_json:
        typer.echo(json.dumps([_shown(each) for each in entries]))
        return
    rows = [("id", "name", "models", "limits", "created", "revoked"), *map(_row, entries)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        typer.echo("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


@keys.command("revoke")
def revoke(identifier: Annotated[str, typer.Argument(metavar="ID", help="Id of the key.")], file: KeysFile) -> None:
    """Revoke a key by its id. A running gateway refuses it within a second; the file keeps its entry.

    Exit codes: **0** revoked, **1** no such key, or revoked before.
    """
    with _one_sentence():
        entry = revoke_key(file, identifier)
    typer.echo(f"revoked {entry.id} ({entry.name})")


def _shown(entry: KeyEntry) -> dict[str, object]:
    return entry.model_dump(mode="json", exclude={"sha256"})


def _row(entry: KeyEntry) -> tuple[str, ...]:
    limits = {
        "requests/min": entry.requests_per_minute,
        "tokens/min": entry.tokens_per_minute,
        "concurrent": entry.max_concurrency,
    }
    shown = _shown(entry)
    return (
        entry.id,
        entry.name,
        ", ".join(entry.models) or "all",
        ", ".join(f"{value} {unit}" for unit, value in limits.items() if value is not None) or "none",
        str(shown["created"]),
        str(shown["revoked"] or "no"),
    )


@contextmanager
def _one_sentence() -> Iterator[None]:
    try:
        yield
    except TidalError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(exit_codes.FAILED) from None
