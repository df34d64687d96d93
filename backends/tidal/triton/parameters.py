"""Parameters of a model in config.pbtxt: typed, and checked at load."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tidal.errors import InvalidArgument, did_you_mean


class HostParameters(BaseModel):
    """Parameters of every Tidal backend."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_queue_size: int = Field(
        1024,
        ge=1,
        le=1_000_000,
        description="maximum number of queries that wait or run; further ones are refused with UNAVAILABLE",
    )
    # Less than the 30 s that clients wait and that tritonserver gives its models at shutdown, so that a model whose
    # engine hangs still answers its clients and can be unloaded.
    answer_timeout_s: float = Field(
        25.0, gt=0, le=86_400, description="seconds after which a query without an answer is failed"
    )


_System = TypeVar("_System", bound=BaseModel)


def parse_parameters(raw: Mapping[str, Any], system: type[_System]) -> tuple[HostParameters, _System]:
    """Check the `parameters` of a model config.

    Args:
        raw: Parameters as Triton passes them, name to `{"string_value": text}`. Names in capitals are Triton's own
            switches (EXECUTION_ENV_PATH, TRITON_BATCH_STRATEGY_PATH ...) and are ignored.
        system: Model of the backend's own parameters.

    Returns:
        The parameters of every backend, and the backend's own.

    Raises:
        InvalidArgument: A name is unknown or a value is not accepted; names parameter, value and what is accepted.
    """
    values = _check_names(raw, HostParameters, system)
    return _validated(HostParameters, values), _validated(system, values)


def parse_own_parameters(raw: Mapping[str, Any], system: type[_System]) -> _System:
    """Check the `parameters` of a backend that has only its own; see `parse_parameters`."""
    return _validated(system, _check_names(raw, system))


_Model = TypeVar("_Model", bound=BaseModel)


def _check_names(raw: Mapping[str, Any], *models: type[BaseModel]) -> dict[str, str]:
    values = {name: str(value.get("string_value", "")) for name, value in raw.items() if not name.isupper()}
    known = {name for model in models for name in model.model_fields}
    for name in values:
        if name not in known:
            raise InvalidArgument(f"unknown parameter '{name}' in config.pbtxt: {did_you_mean(name, known)}")
    return values


def _validated(model: type[_Model], values: Mapping[str, str]) -> _Model:
    own = {name: value for name, value in values.items() if name in model.model_fields}
    try:
        return model.model_validate(own)
    except ValidationError as error:
        problem = error.errors()[0]
        name = str(problem["loc"][0])
        message = problem["msg"][0].lower() + problem["msg"][1:]
        raise InvalidArgument(
            f"parameter '{name}' in config.pbtxt is '{own[name][:80]}': {message} "
            f"({model.model_fields[name].description})"
        ) from None
