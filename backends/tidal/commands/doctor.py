"""`tidal doctor`: check this machine."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from tidal.commands.output import print_json, print_table
from tidal.server.diagnosis import diagnose, known_exposures
from tidal.server.image_checks import installed_image_checks


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON.")] = False,
    image: Annotated[
        bool, typer.Option("--image", help="Check the container image being built instead of the machine.")
    ] = False,
) -> None:
    """Check whether this machine can serve, and print how to install what is missing.

    Checks tritonserver (started for a moment without models), the Python stub and the libpython that it loads, engine
    libraries, the GPU, shared memory and leftovers of ended servers in it, the default ports, and Tidal's extras. Lists
    the known vulnerabilities of the server's release, and the protection of `tidal serve` against each.

    With `--image`: whether the server's release has no known vulnerability, and whether the environment's Python and
    TensorRT are those that the image's server loads. GPU, shared memory, ports and other servers are left out.

    Verdicts: `ok`; `note`, for information; `warning`, may disturb serving; `bad`, serving is impossible.

    ```
    tidal doctor
    tidal doctor --json
    tidal doctor --image
    ```

    Exit codes:

    - **0** this machine can serve
    - **1** it cannot: at least one verdict is `bad`
    """
    checks = [*diagnose(image=image), *(installed_image_checks() if image else ())]
    possible = not any(check.verdict == "bad" for check in checks)
    known = known_exposures()
    if as_json:
        vulnerabilities = [asdict(each) for each in known]
        print_json(
            {"can_serve": possible, "checks": [asdict(check) for check in checks], "vulnerabilities": vulnerabilities}
        )
    else:
        rows = [(check.name, check.verdict, check.found, check.advice) for check in checks]
        what = "image" if image else "machine"
        verdict = f"This {what} can serve." if possible else f"This {what} cannot serve: fix what is bad above."
        if known:
            listed = [(_short(each.names), each.fixed_in, each.what, each.protected_by or "nothing") for each in known]
            print_table(("KNOWN VULNERABILITY", "FIXED IN", "EFFECT", "PROTECTED BY"), listed, notes="")
        print_table(("WHAT", "VERDICT", "FOUND", "WHAT TO DO"), rows, notes=verdict)
    raise typer.Exit(0 if possible else 1)


def _short(names: tuple[str, ...]) -> str:
    """CVE numbers of one year, with the year written once."""
    return ", ".join([names[0], *(name.rpartition("-")[2] for name in names[1:])])
