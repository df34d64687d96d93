"""`tidal doctor`: what was found, and what to do about what is missing."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from tidal.commands.output import print_json, print_table
from tidal.server.diagnosis import diagnose, known_exposures


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON.")] = False) -> None:
    """Say what this machine has for serving, and what to do about what is missing.

    Looks at tritonserver (started for a moment without models), the Python stub and the libpython that it loads,
    engine libraries, GPU, shared memory and what ended servers left in it, the default ports, and Tidal's extras. Of
    the server's release it lists the known vulnerabilities and what protects from each under `tidal serve`.

    Verdicts: `ok`; `note`, for information; `warning`, may trouble you; `bad`, serving is impossible.

    ```
    tidal doctor
    tidal doctor --json
    ```

    Exit codes:

    - **0** this machine can serve
    - **1** it cannot: at least one verdict is `bad`
    """
    checks = diagnose()
    possible = not any(check.verdict == "bad" for check in checks)
    known = known_exposures()
    if as_json:
        vulnerabilities = [asdict(each) for each in known]
        print_json(
            {"can_serve": possible, "checks": [asdict(check) for check in checks], "vulnerabilities": vulnerabilities}
        )
    else:
        rows = [(check.name, check.verdict, check.found, check.advice) for check in checks]
        verdict = "This machine can serve." if possible else "This machine cannot serve: see what is bad above."
        if known:
            listed = [(_short(each.names), each.fixed_in, each.what, each.protected_by or "nothing") for each in known]
            print_table(("KNOWN VULNERABILITY", "FIXED IN", "EFFECT", "PROTECTED BY"), listed, notes="")
        print_table(("WHAT", "VERDICT", "FOUND", "WHAT TO DO"), rows, notes=verdict)
    raise typer.Exit(0 if possible else 1)


def _short(names: tuple[str, ...]) -> str:
    """CVE numbers of one year with the year written once."""
    return ", ".join([names[0], *(name.rpartition("-")[2] for name in names[1:])])
