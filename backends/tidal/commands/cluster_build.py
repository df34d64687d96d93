"""`tidal cluster build`: build on the nodes of a cluster, once per class of devices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tidal.cluster.builds import BuildLine, ClassBuild, NodeDevice, plan_builds, run_builds
from tidal.cluster.connection import connected
from tidal.cluster.handles import RayAgents
from tidal.cluster.records import this_cluster
from tidal.commands.connecting import AsJson
from tidal.commands.output import fail, one_sentence, print_json, print_table
from tidal.controller.agents import check_answers
from tidal.errors import InvalidArgument
from tidal.version_store.store import open_store

_NO_CLUSTER, _USAGE, _FAILED = 3, 2, 1
_ANSWER_S = 30.0


def build_on_nodes(
    specs: Annotated[list[Path], typer.Argument(metavar="SPEC.yaml...", exists=True, dir_okay=False, help="Specs.")],
    to: Annotated[
        str, typer.Option("--to", metavar="URI", help="Store of each class of devices, with {device} for its name.")
    ],
    node: Annotated[
        list[str] | None, typer.Option("--node", metavar="NODE", help="Node that builds.  [default: one per class]")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Build on the nodes of a cluster, once per class of devices, and publish the versions to a store per class.

    A class is a processor with its instruction sets, or a GPU: a version runs on the devices that it was built for.
    Specs and local models must be in a folder that the nodes share, at the same path. What is up to date is not built
    again. A build uses the node's processor beside its server: name a quiet node with `--node`. Nodes get the versions
    by `tidal cluster fetch URI --watch SECONDS --reload`.

    ```
    tidal cluster build /srv/specs/intents.yaml --to s3://models/{device}
    tidal cluster build /srv/specs/*.yaml --to /srv/store/{device} --node b
    ```

    Exit codes: **0** all are in the stores, **1** a build failed; the others are in their stores, **2** wrong usage,
    **3** this machine is in no cluster, or its head does not answer.
    """
    with one_sentence(_USAGE):
        names = [_name(spec) for spec in specs]
        open_store(to)
    with one_sentence(_NO_CLUSTER):
        record = this_cluster()
        with connected(record.address, record.host, record.token) as ray, one_sentence(_FAILED):
            agents = RayAgents()
            found: dict[str, Any] = agents.call(dict.fromkeys(agents.names(), ("device",)), _ANSWER_S)
            check_answers(found)
            devices: dict[str, NodeDevice] = found
            with one_sentence(_USAGE):
                builds = plan_builds(devices, to, node or ())
            lines = run_builds(ray, builds, [str(spec.absolute()) for spec in specs], names)
            ended = _follow(builds, lines)
    rows = [_facts(each) for each in ended]
    if as_json:
        print_json(rows)
    else:
        columns = ("DEVICE", "BUILT ON", "STORE", "RESULT")
        print_table(columns, [[each.build.device, each.build.node, each.build.store, _result(each)] for each in ended])
    if failed := [each for each in ended if each.failed]:
        fail(f"{len(failed)} of {len(ended)} builds failed: {failed[0].build.node}: {failed[0].text}")


def _name(spec: Path) -> str:
    """Return the name of a spec's model; all else is checked where it is built."""
    import yaml

    try:
        content = yaml.safe_load(spec.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InvalidArgument(f"{spec} cannot be read: {' '.join(str(error).split())}") from None
    name = content.get("name") if isinstance(content, dict) else None
    if not isinstance(name, str):
        raise InvalidArgument(f"{spec}: field 'name' is missing; expected the name of the model")
    return name


def _follow(builds: Sequence[ClassBuild], lines: Iterable[BuildLine]) -> list[BuildLine]:
    """Show the progress of all builds in one table, on standard error; returns the last line of each."""
    console, last = Console(stderr=True), {build: BuildLine(build, "starting") for build in builds}
    with Live(_table(last.values()), console=console, transient=True, auto_refresh=console.is_terminal) as live:
        for line in lines:
            if line.text:
                last[line.build] = line
                if console.is_terminal:
                    live.update(_table(last.values()))
                else:
                    console.print(f"{line.build.node}: {line.text}", markup=False, highlight=False)
    return list(last.values())


def _table(lines: Iterable[BuildLine]) -> Table:
    table = Table("DEVICE", "NODE", "STEP", box=None)
    for line in lines:
        table.add_row(*map(Text, (line.build.device, line.build.node, line.text)))
    return table


def _result(line: BuildLine) -> str:
    if line.models is None:
        return f"failed: {line.text}"
    return ", ".join(f"{each['model']}:{each['version']} {each['state']}" for each in line.models)


def _facts(line: BuildLine) -> dict[str, Any]:
    build = line.build
    return {
        "device": build.device,
        "node": build.node,
        "nodes": list(build.nodes),
        "store": build.store,
        "models": None if line.models is None else list(line.models),
        "error": line.text if line.failed else None,
    }
