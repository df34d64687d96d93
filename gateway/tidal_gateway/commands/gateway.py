"""`tidal gateway`: serve the OpenAI API and more in front of running servers."""

from __future__ import annotations

import inspect
import json
import os
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from tidal.errors import InvalidArgument, TidalError
from tidal_client import exit_codes
from tidal_client.local_servers import LocalServer, running_servers
from tidal_gateway.settings import PREFIX, GatewaySettings, is_list, plain_type, read_settings
from tidal_gateway.upstream.server_file import read_server_file

_HELP = """Serve the OpenAI API, Cohere's and Jina's rerank, text-embeddings-inference's API and KServe's v2 protocol.

One port for any number of servers: it sends each request to the server with the fewest outstanding ones, and retries
it if a process died. With `--keys FILE` every request needs an API key, see `tidal keys`. Runs until SIGINT (Ctrl-C) or
SIGTERM; on a signal it answers requests in flight and exits.

Every option can also be an environment variable (`--max-body-bytes` is `TIDAL_GATEWAY_MAX_BODY_BYTES`; lists are
separated by spaces) or a line of a YAML file that `--config` names (`max_body_bytes: 1000000`). An option replaces the
variable, which replaces the line.

Examples:

```
tidal gateway
tidal gateway --server 10.0.0.1:8001 --server 10.0.0.2:8001,status=10.0.0.2:8004 --workers 4
tidal gateway --servers-file servers.json
tidal gateway --host 0.0.0.0 --keys keys.json --tls-cert cert.pem --tls-key key.pem
tidal gateway --config gateway.yaml --access-log -
```

Exit codes:

- **0** stopped by a signal
- **1** not started: a port is in use
- **2** wrong usage: a setting is not accepted, or a file that it names
"""


def gateway(**given: Any) -> None:
    """Replaced by `_HELP`."""
    as_json, file = given.pop("as_json"), given.pop("config")
    try:
        settings = _with_servers(read_settings(given, os.environ, file))
        from tidal_gateway.workers import Started, run_workers

        def started(found: Started) -> None:
            scheme = "http" if settings.tls_cert is None else "https"
            report = {"url": f"{scheme}://{found.address}", "metrics": f"http://{found.metrics}/metrics"}
            servers = ", ".join(settings.server)
            lines = f"gateway  {report['url']}\nmetrics  {report['metrics']}\nservers  {servers}"
            typer.echo(json.dumps({**report, "servers": settings.server}) if as_json else lines)

        run_workers(settings, started)
    except TidalError as error:
        typer.echo(f"error: {error}", err=True)
        code = exit_codes.USAGE if isinstance(error, InvalidArgument) else exit_codes.FAILED
        raise typer.Exit(code) from None


def _with_servers(settings: GatewaySettings) -> GatewaySettings:
    """Add the servers of the file, or those of this machine where none are named."""
    if settings.servers_file is not None:
        return settings.model_copy(update={"server": read_server_file(settings.servers_file)})
    if settings.server:
        return settings
    local = [each for each in running_servers() if not each.grpc_tls]
    if not local:
        raise InvalidArgument("no server is named and none runs on this machine: pass --server HOST:PORT")
    return settings.model_copy(update={"server": tuple(_address(each) for each in local)})


def _address(server: LocalServer) -> str:
    return server.grpc if server.status is None else f"{server.grpc},status={server.status}"


def _parameter(name: str) -> inspect.Parameter:
    """The option of a setting; None stands for one that was not given."""
    field = GatewaySettings.model_fields[name]
    kind: Any = plain_type(name)
    option = typer.Option(
        f"--{name.replace('_', '-')}",
        help=field.description,
        show_default=False if field.default in (None, (), False) else str(field.default),
        metavar={"server": "HOST:PORT", "tool_format": "MODEL=FORMAT"}.get(name),
    )
    several: Any = list[kind] if is_list(name) else kind
    annotation = Annotated[Optional[several], option]  # noqa: UP045 -- of a type that is known at run time only
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _signature() -> inspect.Signature:
    config = inspect.Parameter(
        "config",
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[Path | None, typer.Option(help="YAML file with settings.", envvar=f"{PREFIX}CONFIG")],
    )
    as_json = inspect.Parameter(
        "as_json",
        inspect.Parameter.KEYWORD_ONLY,
        default=False,
        annotation=Annotated[bool, typer.Option("--json", help="Print one line of JSON when the port is open.")],
    )
    return inspect.Signature([*map(_parameter, GatewaySettings.model_fields), config, as_json])


gateway.__doc__ = _HELP
gateway.__signature__ = _signature()  # type: ignore[attr-defined]
gateway.__annotations__ = {each.name: each.annotation for each in _signature().parameters.values()}
