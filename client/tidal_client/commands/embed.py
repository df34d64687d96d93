"""`tidal embed`: embed the texts of a file."""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from tidal_client import exit_codes
from tidal_client.bulk.output import SUFFIXES
from tidal_client.bulk.run import Paths, embed_file
from tidal_client.bulk.state import BulkSettings
from tidal_client.bulk.texts import Scan, TextFile, open_texts, scan
from tidal_client.client import Client
from tidal_client.commands.target import TargetServer, Url, choose_target
from tidal_client.encoder_calls import checked_dtype
from tidal_client.encoder_results import EmbeddingType
from tidal_client.errors import InvalidArgument, RequestError
from tidal_client.extras import install_command
from tidal_client.retrying import LOAD_RETRIES
from tidal_client.row_runs import CONCURRENCY

_TIMEOUT_S = 120.0


def embed(
    file: Annotated[
        Path,
        typer.Argument(help="Texts: one per line, or .jsonl, .csv, .tsv or .parquet.", exists=True, dir_okay=False),
    ],
    model: Annotated[str, typer.Option("--model", "-m", help="Name of the model on the server.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write: .npy or .parquet.", show_default=False)],
    field: Annotated[
        str | None, typer.Option("--field", "-f", help="Field or column with the text. Default: text.")
    ] = None,
    dtype: Annotated[str, typer.Option("--dtype", help="Element type: float32, float16, int8 or binary.")] = "float32",
    task: Annotated[str | None, typer.Option("--task", help="Name of the task.")] = None,
    prompt: Annotated[str | None, typer.Option("--prompt", help="Name of the model's prompt.")] = None,
    dimensions: Annotated[
        int | None, typer.Option("--dimensions", min=1, help="Number of dimensions to keep. Default: all.")
    ] = None,
    concurrency: Annotated[
        int, typer.Option("--concurrency", "-c", min=1, help="Maximum number of requests in flight.")
    ] = CONCURRENCY,
    url: Url = None,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.001, help="Timeout of a request with its retries, in seconds.")
    ] = _TIMEOUT_S,
) -> None:
    """Embed the texts of a file and write the vectors, one row per text, in the order of the file.

    The whole file is read and checked before a text is sent. Blank lines of JSON lines, CSV and TSV are skipped. Texts
    of similar lengths share a request, and several requests are in flight. A request that ends in UNAVAILABLE or loses
    its connection is sent again, up to 8 times.

    The vectors are written in place to `OUT.partial`, and every 2 s to `OUT.state.json` which of them are complete. The
    same command continues an interrupted or failed run and sends only the other texts. At the end the output gets its
    name in one step. Memory does not grow with the file.

    A .parquet output has the columns `text` and `embedding`. It requires pyarrow, as does a .parquet input. With
    `--dtype binary`, a row has one byte for 8 dimensions.

    Examples:

    ```
    tidal embed texts.txt --model minilm --out texts.npy
    tidal embed articles.jsonl --field body --model minilm --out articles.parquet --dtype float16
    tidal embed queries.csv --field question --model minilm --out queries.npy --prompt query --dimensions 128
    ```

    Exit codes:

    - **0** the output is complete
    - **1** a request failed, or the run was interrupted; the same command continues it
    - **2** wrong usage, or the file has a text that cannot be sent; nothing was sent
    """
    element, texts = _checked(file, field, out, dtype)
    server = choose_target(url, "http")
    began = time.perf_counter()
    done = 0
    with Client(server.urls, timeout_s=timeout, retries=LOAD_RETRIES) as client, _bars() as bars:
        found = _scan(texts, bars)
        bar = bars.add_task("embedding", total=found.texts)

        def report(count: int) -> None:
            nonlocal done
            done += count
            bars.update(bar, completed=done)

        try:
            versions = client.metadata(model).versions
            settings = BulkSettings(found.texts, found.digest, model, versions, prompt, dimensions, element, task)
            shape = embed_file(client, texts, settings, Paths(out), concurrency=concurrency, report=report)
        except (RequestError, OSError, KeyboardInterrupt) as error:
            bars.stop()
            typer.echo(_failure(error, server), err=True)
            if Paths(out).state.exists():
                typer.echo(f"{done} of {found.texts} texts are written; the same command continues", err=True)
            raise typer.Exit(exit_codes.FAILED) from None
    seconds = time.perf_counter() - began
    # The last byte of a binary vector is filled up.
    width = shape[1] if element != "binary" else shape[1] * 8 if dimensions is None else dimensions
    typer.echo(
        f"{out}: {shape[0]} texts, {width} dimensions, {element}, {decimal(out.stat().st_size)}, in {seconds:.1f} s"
    )


def _checked(file: Path, field: str | None, out: Path, dtype: str) -> tuple[EmbeddingType, TextFile]:
    """Return the element type and the texts.

    Raises:
        typer.BadParameter: An option cannot be used; the error names it.
    """
    try:
        element = checked_dtype(dtype)
    except InvalidArgument as error:
        raise typer.BadParameter(str(error).partition(": ")[2], param_hint="--dtype") from None
    if out.suffix not in SUFFIXES:
        raise typer.BadParameter(f"got {out.name}; expected a name that ends in .npy or .parquet", param_hint="--out")
    if out.exists():
        raise typer.BadParameter(f"{out} exists; delete it or give another name", param_hint="--out")
    if not out.parent.is_dir():
        raise typer.BadParameter(f"the folder {out.parent} does not exist: create it first", param_hint="--out")
    for path, hint in ((file, "FILE"), (out, "--out")):
        if path.suffix.lower() == ".parquet":
            try:
                importlib.import_module("pyarrow.parquet")
            except ImportError as error:
                needed = f"{path.name} requires pyarrow: {error}: {install_command('parquet')}"
                raise typer.BadParameter(needed, param_hint=hint) from None
    try:
        return element, open_texts(file, field)
    except InvalidArgument as error:
        raise typer.BadParameter(str(error).partition(": ")[2], param_hint="--field") from None


def _scan(texts: TextFile, bars: Bars) -> Scan:
    """Read and check all texts before one is sent."""
    task = bars.add_task("reading", total=None)
    try:
        return scan(texts, lambda count: bars.update(task, completed=count))
    except InvalidArgument as error:
        bars.stop()
        raise typer.BadParameter(str(error), param_hint="FILE") from None
    finally:
        bars.remove_task(task)


def _failure(error: BaseException, server: TargetServer) -> str:
    if isinstance(error, RequestError):
        return server.message(error)
    return "interrupted" if isinstance(error, KeyboardInterrupt) else f"cannot write the output: {error}"


@contextmanager
def _bars() -> Iterator[Bars]:
    """Show progress bars while standard error is a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bars(*columns, console=console, transient=True, disable=not console.is_terminal, refresh_per_second=2) as bars:
        yield bars
