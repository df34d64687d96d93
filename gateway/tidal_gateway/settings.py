"""Settings of the gateway: from flags, environment variables and one YAML file, checked before it starts."""

from __future__ import annotations

import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Union, get_args, get_origin
from urllib.parse import urlsplit

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from tidal.errors import InvalidArgument, did_you_mean
from tidal_gateway.tools.formats import TOOL_FORMATS

#: Prefix of environment variables: `TIDAL_GATEWAY_PORT` is `port`.
PREFIX: Final = "TIDAL_GATEWAY_"


class GatewaySettings(BaseModel):
    """Settings of the gateway; the descriptions are the help texts of the command."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    server: tuple[str, ...] = Field(
        (),
        description="gRPC endpoint of a server, HOST:PORT, or HOST:PORT,status=HOST:PORT with the status endpoint of "
        "its `tidal serve`; several are load-balanced. Default: the server that runs on this machine.",
    )
    servers_file: Path | None = Field(
        None,
        description='JSON file with the servers, {"servers": ["HOST:PORT", ...]}, instead of --server; read again when '
        "it changes. Each node of a cluster has one, see `tidal cluster join`.",
    )
    host: str = Field("127.0.0.1", description="IPv4 address to listen on, 0.0.0.0 for all networks.")
    port: int = Field(9000, ge=0, le=65535, description="Port to listen on, 0 for a free one.")
    metrics_host: str = Field("127.0.0.1", description="IPv4 address of the Prometheus endpoint.")
    metrics_port: int = Field(9001, ge=0, le=65535, description="Port of the Prometheus endpoint, 0 for a free one.")
    workers: int = Field(1, ge=1, le=64, description="Number of worker processes.")
    keys: Path | None = Field(None, description="File of API keys, see `tidal keys`; with it every request needs one.")
    open: bool = Field(False, description="Serve without API keys, on any address.")
    tls_cert: Path | None = Field(None, description="Certificate chain (PEM); read again when it changes.")
    tls_key: Path | None = Field(None, description="Private key of the certificate (PEM); read again when it changes.")
    tls_client_ca: Path | None = Field(
        None,
        description="Certificate authorities (PEM) for client certificates, which are then required, over TLS 1.3; "
        "read again when the file changes.",
    )
    access_log: str | None = Field(None, description="File for one line of JSON per request, or - for standard output.")
    otlp_endpoint: str | None = Field(
        None, description="URL of an OTLP receiver over HTTP, such as http://127.0.0.1:4318: traces requests."
    )
    trace_ratio: float = Field(
        1.0, ge=0, le=1, description="Share of the requests without a traceparent header that are traced."
    )
    cors_origin: tuple[str, ...] = Field((), description="Origin that browsers may call from, such as https://my.site.")
    timeout_s: float = Field(60.0, gt=0, le=3600, description="Longest time for an answer, or between two parts of it.")
    max_outstanding: int = Field(
        1024, ge=1, description="Maximum number of outstanding requests of one model, in all workers together."
    )
    retry_ratio: float = Field(
        0.1,
        ge=0,
        description="Maximum number of retries to a model, as a share of its requests in the last 10 s; the first "
        "retry of a request after each outage does not count.",
    )
    max_body_bytes: int = Field(64 << 20, ge=1 << 10, le=1 << 30, description="Largest body of a request.")
    max_inputs: int = Field(2048, ge=1, description="Maximum number of texts, documents or images of a request.")
    max_choices: int = Field(128, ge=1, description="Maximum number of generated texts of a request.")
    max_header_bytes: int = Field(32 << 10, ge=1 << 10, description="Largest total size of a request's headers.")
    max_connections: int = Field(2048, ge=1, description="Maximum number of connections of one worker.")
    header_timeout_s: float = Field(10.0, gt=0, description="Longest time for a client to send a request's headers.")
    body_timeout_s: float = Field(30.0, gt=0, description="Longest time for a client to send a request's body.")
    write_timeout_s: float = Field(30.0, gt=0, description="Longest time for a client to read a part of an answer.")
    keep_alive_s: int = Field(75, ge=1, description="Time after which idle connections are closed.")
    drain_s: float = Field(
        0.0, ge=0, description="Time after SIGTERM during which /health is 503 and requests are still accepted."
    )
    exit_timeout_s: int = Field(30, ge=0, description="Longest time for requests in flight at shutdown.")
    console_viewers: int = Field(
        16, ge=0, le=1000, description="Maximum number of viewers of the console in one worker; 0 turns it off."
    )
    tool_format: tuple[str, ...] = Field(
        (),
        description="Format in which a model writes calls of tools, MODEL=FORMAT; default: by its chat template. "
        f"Formats: {', '.join(TOOL_FORMATS)}.",
    )
    embedding_model: str | None = Field(None, description="Model of /embed where a request names none.")
    rerank_model: str | None = Field(None, description="Model of /rerank where a request names none.")
    classification_model: str | None = Field(None, description="Model of /predict where a request names none.")

    @field_validator("server", mode="after")
    @classmethod
    def _check_server(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for each in value:
            parse_server(each)
        return value

    @field_validator("tool_format", mode="after")
    @classmethod
    def _check_tool_format(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for each in value:
            parse_tool_format(each)
        return value

    @model_validator(mode="after")
    def _check_together(self) -> GatewaySettings:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key: expected both or none")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ValueError("tls_client_ca requires tls_cert and tls_key")
        if self.otlp_endpoint is not None and urlsplit(self.otlp_endpoint).scheme not in ("http", "https"):
            raise ValueError(f"otlp_endpoint: expected a URL with http:// or https://, got '{self.otlp_endpoint}'")
        if self.servers_file is not None and self.server:
            raise ValueError("server and servers_file: expected one of them")
        for name in ("servers_file", "keys", "tls_cert", "tls_key", "tls_client_ca"):
            path = getattr(self, name)
            if path is not None and not path.is_file():
                raise ValueError(f"{name}: '{path}' is not a file")
        if self.keys is None and not self.open and not self.host.startswith("127."):
            raise ValueError(
                f"host {self.host} is open to others and there are no keys: set keys, or open to serve everybody"
            )
        return self


def parse_server(text: str) -> tuple[str, str | None]:
    """Parse ``HOST:PORT`` or ``HOST:PORT,status=HOST:PORT`` into the gRPC and the status endpoint.

    Raises:
        ValueError: The text has another form.
    """
    grpc, _, rest = text.partition(",")
    name, _, status = rest.partition("=")
    if not _is_address(grpc) or (rest and (name != "status" or not _is_address(status))):
        raise ValueError(f"server '{text}': expected HOST:PORT or HOST:PORT,status=HOST:PORT")
    return grpc, status or None


def parse_tool_format(text: str) -> tuple[str, str]:
    """Parse ``MODEL=FORMAT`` into the model and the name of the format.

    Raises:
        ValueError: The text has another form, or no such format exists.
    """
    model, _, name = text.rpartition("=")
    if not model or name not in TOOL_FORMATS:
        raise ValueError(f"tool_format '{text}': expected MODEL=FORMAT with one of {', '.join(TOOL_FORMATS)}")
    return model, name


def _is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return bool(host) and "/" not in host and port.isascii() and port.isdigit() and 0 < int(port) < 65536


def read_settings(flags: Mapping[str, Any], environment: Mapping[str, str], file: Path | None) -> GatewaySettings:
    """Merge the settings: a flag replaces an environment variable, which replaces the file's value.

    Args:
        flags: Values by name; None or an empty list where the flag was not given.
        environment: Environment variables; those with `PREFIX` are settings, lists are separated by spaces.
        file: YAML file with a mapping of names to values; None for none.

    Raises:
        InvalidArgument: A name is unknown (the message has the nearest one), or a value is not accepted.
    """
    values: dict[str, Any] = {**_of_file(file), **_of_environment(environment)}
    values.update({name: value for name, value in flags.items() if value is not None and value != []})
    for name in values:
        if name not in GatewaySettings.model_fields:
            raise InvalidArgument(f"unknown setting '{name}': {did_you_mean(name, GatewaySettings.model_fields)}")
    try:
        return GatewaySettings.model_validate(values)
    except ValidationError as error:
        raise InvalidArgument("; ".join(map(_sentence, error.errors()))) from None


def is_list(name: str) -> bool:
    """Whether a setting has several values."""
    return _plain_type(name) is tuple


def plain_type(name: str) -> type:
    """Type of a setting's value, or of each of its values: str, int, float, bool or Path."""
    kind = _plain_type(name)
    return str if kind is tuple else kind


def _plain_type(name: str) -> type:
    annotation = GatewaySettings.model_fields[name].annotation
    if get_origin(annotation) in (Union, types.UnionType):
        (annotation,) = (each for each in get_args(annotation) if each is not type(None))
    kind = get_origin(annotation) or annotation
    assert isinstance(kind, type)
    return kind


def _of_file(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InvalidArgument(f"{file} cannot be read as YAML: {error}") from None
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise InvalidArgument(f"{file}: expected a mapping of settings, got {type(found).__name__}")
    return {str(name): value for name, value in found.items()}


def _of_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for variable, text in environment.items():
        if not variable.startswith(PREFIX):
            continue
        name = variable.removeprefix(PREFIX).lower()
        if name == "config":  # the file itself
            continue
        if name not in GatewaySettings.model_fields:
            known = [PREFIX + each.upper() for each in GatewaySettings.model_fields]
            raise InvalidArgument(f"unknown environment variable '{variable}': {did_you_mean(variable, known)}")
        values[name] = text.split() if is_list(name) else text
    return values


def _sentence(problem: Any) -> str:
    name = ".".join(str(part) for part in problem["loc"])
    message = str(problem["msg"]).removeprefix("Value error, ")
    if not name:
        return message
    return f"setting '{name}': {message[0].lower()}{message[1:]}, got {str(problem['input'])[:100]!r}"
