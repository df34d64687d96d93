"""One request as the code of an API sees it: the only way from there to a model, which checks the key's permissions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

from tidal.options import parse_traceparent
from tidal_client.codec import InferRequest
from tidal_client.options import Parameter
from tidal_client.results import Array
from tidal_client.transports.grpc_messages import infer_message, response_arrays
from tidal_gateway.api.options import B, parse_body
from tidal_gateway.edge.exchange import Exchange
from tidal_gateway.errors import Refusal, invalid
from tidal_gateway.keys.store import KeyEntry
from tidal_gateway.state import Gateway
from tidal_gateway.upstream.calls import Outgoing
from tidal_gateway.upstream.models import ModelFacts, Use

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ModelTarget:
    """A model that the request may use.

    Attributes:
        facts: The model.
        task: Task of the model; empty for none.
    """

    facts: ModelFacts
    task: str

    @property
    def name(self) -> str:
        """Name of the model."""
        return self.facts.name


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """One request.

    Attributes:
        gateway: State of the worker.
        exchange: Log and metric fields of the request.
        key: API key; None where none is needed.
        headers: Headers by lower-case name.
        body: Body.
        path: Parameters of the path by name.
    """

    gateway: Gateway
    exchange: Exchange
    key: KeyEntry | None
    headers: Mapping[str, str]
    body: bytes
    path: Mapping[str, str]

    def parse(self, kind: type[B]) -> B:
        """Return the checked body.

        Raises:
            Refusal: It is not JSON, or a field is not accepted.
        """
        return parse_body(kind, self.body)

    def allows(self, model: str, task: str = "") -> bool:
        """Whether the key may use a model or a task."""
        return self.key is None or self.key.allows(model, task)

    async def target(self, name: str, use: Use | None = None, task: object = None, *, call: bool = True) -> ModelTarget:
        """Return the model that a request names.

        Args:
            name: Name of the model, or ``model/task``.
            use: Use that the model has to support; None for any.
            task: Option `task` of the request; None for none.
            call: Whether the request calls the model, which is refused here if too many requests are outstanding.

        Raises:
            Refusal: The key may not use it, no server has it, it cannot do that, or its queue is full.
        """
        model, _, own_task = name.partition("/")
        if task is not None and own_task and task != own_task:
            named, sent = f"model '{name[:100]}' names the task '{own_task[:100]}'", str(task)[:100]
            raise invalid(f"{named}, and the option task is '{sent}'; send one of them", "task")
        wanted = own_task or ("" if task is None else str(task))
        if not self.allows(model, wanted):
            what = f"{model}/{wanted}" if wanted else model
            raise Refusal(
                403, f"this key may not use '{what[:100]}'; use another model or key", code="forbidden", param="model"
            )
        facts = await self.gateway.pool.model(model, self.allows)
        self.exchange.model, self.exchange.task = facts.name, wanted
        if use is not None and use not in facts.uses:
            able = [each.name for each in self.gateway.pool.models() if use in each.uses and self.allows(each.name)]
            raise invalid(f"model '{model}' is not for {use}; models that are: {', '.join(able) or 'none'}", "model")
        if call:
            self.gateway.pool.lanes.check(facts.name)
        return ModelTarget(facts, wanted)

    async def default_target(self, name: str | None, default: str | None, use: Use, task: object) -> ModelTarget:
        """Return the model of an API whose requests need not name one.

        Args:
            name: Model that the request names; None for none.
            default: Model of the settings; None for none.
            use: Use that the model has to support.
            task: Option `task` of the request; None for none.

        Raises:
            Refusal: See `target`; or no model is named and not exactly one fits.
        """
        chosen = name or default
        if chosen is None:
            able = [each.name for each in self.gateway.pool.models() if use in each.uses and self.allows(each.name)]
            if len(able) != 1:
                names = ", ".join(able) or "none"
                raise invalid(f"several or no models are for {use}: name one of them in 'model': {names}", "model")
            chosen = able[0]
        return await self.target(chosen, use, task)

    def check_count(self, name: str, count: int) -> None:
        """Check the number of inputs of a field.

        Raises:
            Refusal: There are none or too many.
        """
        most = self.gateway.settings.max_inputs
        if not 1 <= count <= most:
            raise invalid(f"field '{name}' has {count} inputs; accepted are 1 to max_inputs, {most}", name)

    async def infer(
        self, target: ModelTarget, inputs: Mapping[str, Array], outputs: Sequence[str], options: Mapping[str, Parameter]
    ) -> dict[str, Array]:
        """Send one request to a model that answers once, and return its arrays.

        Args:
            target: Model.
            inputs: Arrays by input name.
            outputs: Names of the outputs to compute.
            options: Parameters of the request.
        """
        message = self._message(target, inputs, outputs, options)
        return response_arrays(await self.infer_message(target, message, options))

    async def infer_message(self, target: ModelTarget, message: Any, options: Mapping[str, Any]) -> Any:
        """Send a `ModelInferRequest` to a model that answers once, and return its `ModelInferResponse`."""
        outgoing = self._outgoing(target, message, options)
        try:
            return await self.gateway.pool.infer(outgoing)
        finally:
            self.exchange.retries += outgoing.retries

    async def stream(
        self, target: ModelTarget, inputs: Mapping[str, Array], options: Mapping[str, Parameter], prefix: str = ""
    ) -> AsyncGenerator[dict[str, Array], None]:
        """Send one request to a model that answers in parts, and yield the arrays of each part.

        Args:
            target: Model.
            inputs: Arrays by input name.
            options: Parameters of the request.
            prefix: Beginning of the prompt, which a server may hold in memory.
        """
        message = self._message(target, inputs, None, options)
        async with aclosing(self.stream_message(target, message, options, prefix)) as parts:
            async for part in parts:
                if part.outputs:
                    yield response_arrays(part)

    async def stream_message(
        self, target: ModelTarget, message: Any, options: Mapping[str, Any], prefix: str = ""
    ) -> AsyncGenerator[Any, None]:
        """Send a `ModelInferRequest` to a model that answers in parts, and yield each `ModelInferResponse`."""
        outgoing = self._outgoing(target, message, options, prefix)
        try:
            async with aclosing(self.gateway.pool.stream(outgoing, self.gateway.settings.timeout_s)) as parts:
                async for part in parts:
                    yield part
        finally:
            self.exchange.retries += outgoing.retries

    def _message(
        self,
        target: ModelTarget,
        inputs: Mapping[str, Array],
        outputs: Sequence[str] | None,
        options: Mapping[str, Parameter],
    ) -> Any:
        parameters = {**options, "task": target.task} if target.task else options
        return infer_message(InferRequest(target.name, inputs, outputs, parameters, self.exchange.request_id))

    def _outgoing(self, target: ModelTarget, message: Any, options: Mapping[str, Any], prefix: str = "") -> Outgoing:
        limit_s = self.gateway.settings.timeout_s
        try:
            latency_s = float(options.get("latency_ms", "inf")) / 1e3
        except (TypeError, ValueError):  # the model's error says what is accepted
            latency_s = limit_s
        if latency_s > 0:
            limit_s = min(limit_s, latency_s)
        affinity = f"{target.name}/{target.task}/{prefix}" if target.task or prefix else ""
        # A gateway that traces passes its own span on.
        header = self.headers.get("traceparent") if self.exchange.trace is None else None
        if parse_traceparent(header) is not None:
            message.parameters["traceparent"].string_param = header
        return Outgoing(message, time.monotonic() + limit_s, affinity, trace=self.exchange.trace)


async def all_of(calls: Sequence[Awaitable[T]]) -> list[T]:
    """Await several calls at once; the first error cancels the others."""
    if len(calls) == 1:
        return [await calls[0]]
    tasks = [asyncio.ensure_future(each) for each in calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
