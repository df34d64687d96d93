"""Root of the `tidal` command: subcommands of the entry-point group `tidal.commands`, imported when called."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points, version
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from tidal_client import exit_codes
from tidal_client.extras import install_command

# Help texts are markdown: paragraphs are wrapped to the terminal, code blocks are not.
_MARKUP: Final = "markdown"

GROUP = "tidal.commands"
_OWN_PACKAGES = frozenset({"tidal", "tidal_builders", "tidal_client", "tidal_gateway"})

HELP = """Elastic transformer serving on NVIDIA Triton: build models, serve them, send requests.

Getting started:

```
tidal doctor                            check this machine
tidal build SPEC.yaml                   compile, verify and publish a model
tidal serve model_repository            serve it with tritonserver
tidal infer MODEL --text "a question"   send a request
```

`tidal COMMAND --help` documents each command.

Exit codes of every command:

- **0** success
- **1** a request or an operation failed, or a check did not pass
- **2** wrong usage or a missing extra; nothing was done
- **3** and above: documented in the command's help
"""


@dataclass(frozen=True, slots=True)
class _Known:
    """Summary of a subcommand, and the extra that it requires; shown without importing it."""

    summary: str
    extra: str


_KNOWN = {
    "doctor": _Known("Check this machine and list what to install or change.", "serve"),
    "build": _Known("Compile, verify, profile and publish a model from its spec.", "build"),
    "serve": _Known("Serve a model repository with tritonserver.", "serve"),
    "models": _Known("List, load, unload and reload models of a running server.", "serve"),
    "tasks": _Known("List, add and remove the fine-tuned tasks of a model.", "serve"),
    "controller": _Known("Rebalance instances across input lengths.", "serve"),
    "cluster": _Known("Publish versions of models to a store that machines share, and fetch them.", "cluster"),
    "simulate": _Known("Simulate serving policies on GPU clusters of any size.", "serve"),
    "gateway": _Known("Serve the OpenAI API, with keys and TLS, in front of running servers.", "gateway"),
    "keys": _Known("List, add and revoke API keys of the gateway.", "gateway"),
    "infer": _Known("Send texts or images to a model and print the results.", "client"),
    "embed": _Known("Embed the texts of a file and write the vectors.", "client"),
    "generate": _Known("Generate text from a prompt and print it as it arrives.", "client"),
    "top": _Known("Show live figures of models in the terminal.", "client"),
    "load": _Known("Run a load test: send requests on a schedule, measure latency and throughput.", "client"),
}


def _entries() -> dict[str, EntryPoint]:
    """Return installed subcommands by name: Tidal's own in the order of use, then others in alphabetical order."""
    # Tidal's own entries first: an entry of another distribution with the same name replaces them.
    entries = sorted(entry_points(group=GROUP), key=lambda entry: entry.dist is None or entry.dist.name != "tidal")
    by_name = {entry.name: entry for entry in entries}
    order = [*_KNOWN, *sorted(by_name)]
    return {name: by_name[name] for name in dict.fromkeys(order) if name in by_name}


def _load(entry: EntryPoint) -> Any:
    """Import a subcommand, which is a function or a Typer with subcommands, and return it as a click command."""
    target = entry.load()
    app = target
    if not isinstance(target, typer.Typer):
        app = typer.Typer(add_completion=False, rich_markup_mode=_MARKUP)
        app.command(entry.name)(target)
    command = typer.main.get_command(app)
    command.name = entry.name
    return command


class LazyGroup(TyperGroup):
    """Lists subcommands by their summaries, and imports only the one that is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Import the called subcommand in place of its summary."""
        entry = _entries().get(args[0]) if args else None
        if entry is not None:
            ctx.invoked_subcommand = entry.name
            self.commands[entry.name] = _load(entry)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the subcommand; if it lacks a third-party module, print how to install it and exit with 2."""
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            missing = (error.name or "").partition(".")[0]
            if not missing or missing in _OWN_PACKAGES:
                raise
            name = str(ctx.invoked_subcommand)
            known = _KNOWN.get(name)
            remedy = install_command(known.extra) if known else f"pip install {missing}"
            typer.echo(
                f"tidal {name} requires the Python module '{missing}', which is not installed: {remedy}", err=True
            )
            raise typer.Exit(exit_codes.USAGE) from None


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"tidal {version('tidal')}")
        raise typer.Exit(exit_codes.OK)


def _root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Replaced by `HELP`."""


def _summary_only() -> None:
    """Placeholder for a subcommand that is not imported yet."""


def build_app() -> typer.Typer:
    """Return the root command with every installed subcommand, none of them imported."""
    app = typer.Typer(
        cls=LazyGroup,
        help=HELP,
        rich_markup_mode=_MARKUP,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_show_locals=False,
    )
    app.callback()(_root)
    for name, entry in _entries().items():
        known = _KNOWN.get(name)
        app.command(name, help=known.summary if known else f"Provided by {entry.module}.")(_summary_only)
    return app


def main() -> None:
    """Run the `tidal` command."""
    build_app()(prog_name="tidal")


if __name__ == "__main__":
    main()
