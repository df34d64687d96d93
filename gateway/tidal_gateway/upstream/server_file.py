"""The file with the servers behind the gateway, read again when it changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from tidal.errors import InvalidArgument
from tidal_gateway.file_version import file_version
from tidal_gateway.settings import parse_server

_RECHECK_S: Final = 0.5

_log = logging.getLogger("tidal_gateway")


class ServerFile(BaseModel):
    """Content of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    servers: tuple[str, ...] = Field(min_length=1, description="servers, each in the form of `--server`")

    @field_validator("servers")
    @classmethod
    def _check_servers(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        addresses = [parse_server(each)[0] for each in value]
        for address in addresses:
            if addresses.count(address) > 1:
                raise ValueError(f"server {address} is listed twice")
        return value


def read_server_file(path: Path) -> tuple[str, ...]:
    """Return the servers of a file, each in the form of `--server`.

    Raises:
        InvalidArgument: The file cannot be read, or its content is not accepted.
    """
    try:
        return ServerFile.model_validate_json(path.read_bytes()).servers
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        problem = error.errors(include_input=False)[0]
        where = ".".join(map(str, problem["loc"])) or "content"
        message = str(problem["msg"]).removeprefix("Value error, ")
        raise InvalidArgument(
            f'{path} is not a file of servers such as {{"servers": ["10.0.0.1:8001"]}}: {where}: {message}'
        ) from None


async def follow(path: Path, use: Callable[[Sequence[tuple[str, str | None]]], Awaitable[None]]) -> None:
    """Pass the servers of a file on whenever it changes, until the task is cancelled.

    Servers that were passed on stay in use while the file is missing or not accepted; the log has the reason.

    Args:
        path: Path of the file.
        use: Receives the gRPC and the status endpoint of each server.
    """
    version = None
    while True:
        current = file_version(path)
        if current != version:
            version = current
            try:
                servers = read_server_file(path)
            except InvalidArgument as error:
                _log.error("the previous servers stay in use: %s", error)
            else:
                _log.info("%s was read: %s", path, ", ".join(servers))
                await use([parse_server(each) for each in servers])
        await asyncio.sleep(_RECHECK_S)
