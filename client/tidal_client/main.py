"""The root of the `tidal` command. Subcommands come from the entry-point group `tidal.commands`, imported on call."""

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
_OWN_PACKAGES = frozenset({"tidal", "tidal_builders", "tidal_client"})

HELP = """Elastic transformer serving on NVIDIA Triton: build models, serve them, ask them.

A first tour:

```
tidal doctor                            what this machine has, and lacks
tidal build SPEC.yaml                   compile, verify and publish a model
tidal serve model_repository            serve it with a real tritonserver
tidal infer MODEL --text "a question"   ask it
```

`tidal COMMAND --help` is each command's manual.

Exit codes of every command:

- **0** done, and what was asked for is so
- **1** it is not so, or a request failed
- **2** nothing was tried: wrong arguments, or an extra that is not installed
- **3** and above: explained in the command's own help
"""


@dataclass(frozen=True, slots=True)
class _Known:
    """What the root says of a subcommand without importing it."""

    summary: str
    extra: str


_KNOWN = {
    "doctor": _Known("Say what this machine has for Tidal, and what to do about what is missing.", "serve"),
    "build": _Known("Compile, verify, profile and publish a model from its spec.", "build"),
    "serve": _Known("Serve a model repository with a real tritonserver.", "serve"),
    "models": _Known("List, load, unload and reload the models of a running server.", "serve"),
    "tasks": _Known("List, add and remove the fine-tuned tasks of a model.", "serve"),
    "controller": _Known("Fit instances to the lengths of the queries, beside a running server.", "serve"),
    "simulate": _Known("Say what the serving policies would do on GPUs that are not at hand.", "serve"),
    "infer": _Known("Send texts to a model and print its answers.", "client"),
    "generate": _Known("Let a model write on behind a text, and print it as it comes.", "client"),
    "load": _Known("Send requests on a schedule and say how the server did.", "client"),
}


def _entries() -> dict[str, EntryPoint]:
    """Installed subcommands by name: the known ones in the order of use, then others by name."""
    # Tidal's own first, wherever they lie on the path, so that another distribution's command replaces one of them.
    entries = sorted(entry_points(group=GROUP), key=lambda entry: entry.dist is None or entry.dist.name != "tidal")
    found = {entry.name: entry for entry in entries}
    order = [*_KNOWN, *sorted(found)]
    return {name: found[name] for name in dict.fromkeys(order) if name in found}


def _load(entry: EntryPoint) -> Any:
    """The subcommand as a command of this tree: a plain function, or a Typer with subcommands of its own."""
    target = entry.load()
    app = target
    if not isinstance(target, typer.Typer):
        app = typer.Typer(add_completion=False, rich_markup_mode=_MARKUP)
        app.command(entry.name)(target)
    command = typer.main.get_command(app)
    command.name = entry.name
    return command


class LazyGroup(TyperGroup):
    """Shows all subcommands by their summaries, and imports the one that is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Put the real command in the place of its summary."""
        entry = _entries().get(args[0]) if args else None
        if entry is not None:
            ctx.invoked_subcommand = entry.name
            self.commands[entry.name] = _load(entry)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the subcommand; one that lacks a third-party module says how to install it."""
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            missing = (error.name or "").partition(".")[0]
            if not missing or missing in _OWN_PACKAGES:
                raise
            name = str(ctx.invoked_subcommand)
            known = _KNOWN.get(name)
            remedy = install_command(known.extra) if known else f"pip install {missing}"
            typer.echo(f"tidal {name} needs the Python module '{missing}', which is missing: {remedy}", err=True)
            raise typer.Exit(exit_codes.USAGE) from None


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"tidal {version('tidal')}")
        raise typer.Exit(exit_codes.OK)


def _root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Replaced by `HELP`."""


def _summary_only() -> None:
    """Stands for a subcommand in the root's help."""


def build_app() -> typer.Typer:
    """The root command with every installed subcommand, none of them imported."""
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
