"""Options of `tidal cluster start`, `join` and `up` that several of them have, and what becomes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidal.commands.output import fail, one_sentence
from tidal.controller import decisions
from tidal.controller.decisions import PlanSettings
from tidal.controller.scaling import ScalingSettings

_USAGE = 2

Period = Annotated[
    float, typer.Option(metavar="SECONDS", help="Time between two decisions about the lengths of queries.")
]
MinGain = Annotated[
    float, typer.Option(metavar="SHARE", help="Reallocate only if it saves at least this share of the mean latency.")
]
Devices = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Cores or GPUs to count on a node.  [default: those of its server]"),
]
Entrance = Annotated[
    bool,
    typer.Option(
        "--entrance/--no-entrance",
        help="Whether queries may arrive at the node. If not, it holds instances for other nodes only.",
    ),
]
MetricsPort = Annotated[
    int, typer.Option(min=0, max=65535, metavar="PORT", help="Port of Prometheus metrics on --host, 0 for a free one.")
]

Autoscale = Annotated[
    bool, typer.Option("--autoscale", help="Use as many devices as the latency requires, instead of all.")
]
MinInstances = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Minimum number of instances per model, with --autoscale.",
        show_default="1, and one per entrance",
    ),
]
MaxInstances = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Maximum number of instances per model, with --autoscale.",
        show_default="as many as devices hold",
    ),
]

Block = Annotated[
    bool,
    typer.Option("--block", help="Keep running until a signal, then end what was started; for containers and systemd."),
]


def plan_settings(period: float, min_gain: float, scaling: ScalingSettings | None = None) -> PlanSettings:
    """Return the settings of the controller's decisions; a value out of range ends the command.

    Args:
        period: Option --period, in seconds.
        min_gain: Option --min-gain.
        scaling: Settings of scaling; None: all devices are used.
    """
    with one_sentence(_USAGE):
        return decisions.plan_settings(period, min_gain, scaling)


def scaling_settings(
    autoscale: bool, min_instances: int | None, max_instances: int | None, min_nodes: int | None, max_nodes: int | None
) -> ScalingSettings | None:
    """Return the settings of scaling, None without --autoscale; options that need another one end the command.

    Args:
        autoscale: Option --autoscale.
        min_instances: Option --min-instances; None: 1.
        max_instances: Option --max-instances; None: as many as devices hold.
        min_nodes: Option --min-nodes; None: 1.
        max_nodes: Option --max-nodes; None: nodes are not scaled.
    """
    instances = {"--min-instances": min_instances, "--max-instances": max_instances}
    for option, value in {**instances, "--min-nodes": min_nodes, "--max-nodes": max_nodes}.items():
        if value is not None and not autoscale:
            fail(f"{option} {value} needs --autoscale", _USAGE)
    if min_nodes is not None and max_nodes is None:
        fail(f"--min-nodes {min_nodes} needs --max-nodes", _USAGE)
    if not autoscale:
        return None
    with one_sentence(_USAGE):
        return ScalingSettings(
            1 if min_instances is None else min_instances,
            max_instances,
            1 if min_nodes is None else min_nodes,
            max_nodes,
        )


def secret_file(file: Path | None) -> Path | None:
    """Return the absolute path of a file with a secret."""
    if file is None:
        return None
    expected = "expected the secret of the cluster, such as the file that tidal cluster start wrote"
    if not file.is_file():
        fail(f"--token-file: {file} is not a file; {expected}", _USAGE)
    try:
        empty = not file.read_bytes().strip()
    except OSError as error:
        fail(f"--token-file: {file} cannot be read: {error.strerror}; {expected}", _USAGE)
    if empty:
        fail(f"--token-file: {file} is empty; {expected}", _USAGE)
    return file.absolute()
