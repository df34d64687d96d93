"""`tidal cluster`: nodes that serve models together, and versions in a store that they share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from tidal.commands.cluster_allocate import allocate_on_nodes
from tidal.commands.cluster_build import build_on_nodes
from tidal.commands.cluster_members import join_cluster, start_head, stop_cluster, up_local
from tidal.commands.cluster_nodes import connect_nodes, disconnect_nodes, list_nodes
from tidal.commands.cluster_progress import transfer_bars
from tidal.commands.cluster_reload import reload_served
from tidal.commands.cluster_status import drain_node, show_models, show_status
from tidal.commands.connecting import DEFAULT_REPOSITORY, AsJson, Server
from tidal.commands.output import fail, one_sentence, print_json, print_table, size_text
from tidal.commands.stopping import stop_on_signals
from tidal.errors import InvalidArgument, TidalError
from tidal.version_store import fetch as fetching
from tidal.version_store import publish as publishing
from tidal.version_store import task_transfer
from tidal.version_store.store import VersionStore, open_store
from tidal.version_store.stored_version import is_version_number
from tidal.version_store.transfers import Report

_USAGE = 2

cluster = typer.Typer(
    rich_markup_mode="markdown",
    no_args_is_help=True,
    add_completion=False,
    help="""Serve models from several machines, and share their versions in a store.

A cluster is a head and nodes. A node is a machine with a running `tidal serve`; the head's controller shares the
devices of all nodes among the runtimes of partitioned models. Queries go from node to node, never through the head. The
commands `start`, `join`, `up`, `status`, `models`, `allocate`, `drain`, `build` and `stop` require the extra `ray`.
Nodes can also be connected by hand, without a head: `connect`, `disconnect` and `nodes`.

```
tidal cluster start --host 10.0.0.1                   on the head
tidal cluster join 10.0.0.1:6379 --host 10.0.0.2 --token-file cluster.token
tidal cluster up --local 2 model_repository           two nodes on this machine, to try it out
tidal cluster status
tidal cluster connect intents b=10.0.0.2:8001         by hand: queries also run on node b
```

A store is a folder (`file:///srv/store`, or its path) or a bucket (`s3://bucket/path`, `gs://bucket/path`). Each file
is stored once, by its hash.

```
tidal cluster publish intents --to s3://models/cpu    after a build
tidal cluster versions s3://models/cpu                list published versions
tidal cluster fetch s3://models/cpu                   into ./model_repository
tidal cluster fetch s3://models/cpu --watch 30 --reload
```

Exit codes:

- **0** done
- **1** a version was refused, the store failed, or a node does not serve the model; the same command continues
- **2** wrong usage, an unknown scheme, or the extra that a scheme needs is not installed
- **3** `join`: no server runs; `status`, `models`, `allocate`, `drain`, `build`: this machine is in no cluster, or its
  head does not answer
""",
)
cluster.command("start")(start_head)
cluster.command("join")(join_cluster)
cluster.command("up")(up_local)
cluster.command("status")(show_status)
cluster.command("models")(show_models)
cluster.command("allocate")(allocate_on_nodes)
cluster.command("drain")(drain_node)
cluster.command("stop")(stop_cluster)
cluster.command("build")(build_on_nodes)
cluster.command("connect")(connect_nodes)
cluster.command("disconnect")(disconnect_nodes)
cluster.command("nodes")(list_nodes)

Store = Annotated[str, typer.Argument(metavar="URI", help="URI of the store, or the path of a folder.")]
Repository = Annotated[Path, typer.Option(help="Model repository.")]
_MODELS = "Names of models; NAME:VERSION for another version than the newest."


@cluster.command("publish")
def publish_versions(
    models: Annotated[list[str], typer.Argument(metavar="MODEL...", help=_MODELS)],
    to: Annotated[str, typer.Option("--to", metavar="URI", help="URI of the store, or the path of a folder.")],
    repository: Repository = DEFAULT_REPOSITORY,
    remove_tasks: Annotated[
        bool,
        typer.Option("--remove-tasks", help="Remove the tasks of these models that the repository does not have."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Publish versions with all that they require: runtimes, levels with their tasks, steps of ensembles.

    A reader of the store sees a version when it is complete. A number that has been published with another content is
    refused.

    The tasks of these models are published too. Repeat the command after `tidal tasks add`, and with `--remove-tasks`
    after `tidal tasks remove`.

    Exit codes: **0** all are in the store, **1** one was refused or the store failed, **2** wrong usage.
    """
    with one_sentence(_USAGE):
        store, wanted = open_store(to), [_wanted(model) for model in models]
    with one_sentence(), transfer_bars() as report:
        done = publishing.publish(store, repository, wanted, report)
        published = dict.fromkeys(each.model for each in done)
        tasks = task_transfer.publish_tasks(store, repository, published, report, remove=remove_tasks)
    if as_json:
        print_json([*map(asdict, done), *map(asdict, tasks)])
        return
    for each in done:
        sent = f", {size_text(each.uploaded_bytes)} sent" if each.uploaded_bytes else ""
        typer.echo(f"{each.model}: version {each.version} {each.state}{_size(each.files, each.bytes)}{sent}")
    for task in tasks:
        typer.echo(f"{task.model}: task {task.task} {task.state}")


@cluster.command("fetch")
def fetch_versions(
    uri: Store,
    models: Annotated[list[str] | None, typer.Argument(metavar="[MODEL]...", help=f"{_MODELS} Default: all.")] = None,
    repository: Repository = DEFAULT_REPOSITORY,
    watch: Annotated[
        float | None,
        typer.Option(min=1, metavar="SECONDS", help="Time between two fetches; runs until a signal."),
    ] = None,
    reload: Annotated[
        bool, typer.Option("--reload", help="Reload the models that the repository's server serves, one at a time.")
    ] = False,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Fetch versions with all that they require and the tasks of these models, and make each visible in one step.

    Versions that are in the repository are left as they are, and none is removed. A running server serves a new version
    when it is reloaded: no request fails. It serves a new task without that. Tasks that are replaced or removed in the
    store change, except those that the store never had.

    Exit codes: **0** all are in the repository, or `--watch` ended by a signal, **1** one was refused, the store
    failed, or a model does not load, **2** wrong usage.
    """
    with one_sentence(_USAGE):
        store, wanted = open_store(uri), [_wanted(model) for model in models or ()]
    if server is not None and not reload:
        fail("--server names the server of --reload: add --reload", _USAGE)
    if watch is None:
        failures = _fetch_once(store, wanted, repository, as_json, verbose=True)
        failures += reload_served(repository, server, _names(store, wanted)) if reload else []
        if failures:
            fail("; ".join(failures))
        return
    first = True
    stop = stop_on_signals()
    while not stop.is_set():
        failures = _fetch_once(store, wanted, repository, as_json, verbose=first)
        # Also when nothing was fetched: an earlier process may have ended, or failed, between the two.
        failures += reload_served(repository, server, _names(store, wanted)) if reload else []
        for failure in failures:
            typer.echo(f"error: {failure}", err=True)
        first = False
        stop.wait(watch)


@cluster.command("versions")
def list_versions(
    uri: Store,
    models: Annotated[list[str] | None, typer.Argument(metavar="[MODEL]...", help="Names of models.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the versions of a store: kind, build time, files, size, requirements, and whether this machine can run them.

    Exit codes: **0** listed, **1** the store failed or has no such model, **2** wrong usage.
    """
    with one_sentence(_USAGE):
        store = open_store(uri)
    with one_sentence():
        for model in models or ():
            store.newest(model)
        names = models or store.models()
        rows = [_row(store, model, version) for model in names for version in store.versions(model)]
    if as_json:
        print_json(rows)
        return
    columns = ("MODEL", "VERSION", "KIND", "BUILT", "FILES", "SIZE", "REQUIRES", "STATE")
    print_table(columns, [_cells(row) for row in rows])


def _fetch_once(
    store: VersionStore,
    wanted: Sequence[publishing.Wanted],
    repository: Path,
    as_json: bool,
    *,
    verbose: bool,
) -> list[str]:
    """Fetch all wanted versions, also after one failed; returns the failures."""
    done: dict[tuple[str, int], fetching.Fetched] = {}
    tasks: list[task_transfer.FetchedTask] = []
    failures: list[str] = []

    def run(report: Report) -> None:
        for model, version in wanted or [(name, None) for name in fetching.roots(store)]:
            try:
                found = fetching.fetch(store, repository, model, version, report)
                new = {each.model for each in found} - {model for model, _ in done}
                done.update(
                    {(each.model, each.version): each for each in found if (each.model, each.version) not in done}
                )
                tasks.extend(task_transfer.fetch_tasks(store, repository, sorted(new), report))
            except TidalError as error:
                failures.append(str(error))
        if not done and not failures:
            failures.append(f"{store.uri} has no models")

    try:
        with transfer_bars() as report:
            run(report)
    except TidalError as error:
        failures.append(str(error))
    failures += [
        f"task '{each.task}' of model '{each.model}' was changed here and is kept: publish it, or remove it with tidal "
        f"tasks remove {each.model} {each.task}"
        for each in tasks
        if each.state == "kept"
    ]
    shown = [each for each in done.values() if verbose or each.state == "fetched"]
    changed = [each for each in tasks if each.state in ("fetched", "removed") or (verbose and each.state != "kept")]
    if as_json and (verbose or shown or changed):
        print_json([*map(asdict, shown), *map(asdict, changed)])
        return failures
    for each in shown:
        typer.echo(f"{each.model}: version {each.version} {each.state}{_size(each.files, each.bytes)}")
    for task in changed:
        typer.echo(f"{task.model}: task {task.task} {task.state}")
    return failures


def _names(store: VersionStore, wanted: Sequence[publishing.Wanted]) -> list[str]:
    """Models to reload; none where the store fails, which the fetch has reported."""
    try:
        return [model for model, _ in wanted] or fetching.roots(store)
    except TidalError:
        return []


def _wanted(text: str) -> publishing.Wanted:
    model, separator, version = text.partition(":")
    if not separator:
        return model, None
    if not is_version_number(version):
        raise InvalidArgument(
            f"'{text}' names the version '{version}'; expected NAME or NAME:VERSION, such as intents:3"
        )
    return model, int(version)


def _row(store: VersionStore, model: str, version: int) -> dict[str, Any]:
    try:
        stored = store.read(model, version)
    except InvalidArgument as error:
        return {"model": model, "version": version, "state": str(error)}
    problems = stored.binding.problems() if stored.binding is not None else []
    return {
        "model": model,
        "version": version,
        "kind": stored.kind,
        "created": stored.created or None,
        "device": stored.binding.device.model_dump() if stored.binding is not None else None,
        "files": len(stored.files),
        "bytes": stored.bytes,
        "requires": [f"{each.model}:{each.version}" for each in stored.requires],
        "state": "; ".join(problems) or "fits",
    }


def _cells(row: dict[str, Any]) -> list[str]:
    if "kind" not in row:
        return [row["model"], str(row["version"]), *["-"] * 5, row["state"]]
    return [
        row["model"],
        str(row["version"]),
        row["kind"] or "-",
        row["created"] or "-",
        str(row["files"]),
        size_text(row["bytes"]),
        ", ".join(row["requires"]) or "-",
        row["state"],
    ]


def _size(files: int, size: int) -> str:
    return f", {files} file{'' if files == 1 else 's'}, {size_text(size)}"
