"""All routes of the gateway: one entry adds one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tidal_gateway.api import (
    chat,
    classification,
    completions,
    console,
    embeddings,
    kserve,
    kserve_tensors,
    listing,
    reranking,
    shapes,
    tei,
)
from tidal_gateway.api.answers import EventStream, HttpAnswer
from tidal_gateway.api.options import Body
from tidal_gateway.api.request import ApiRequest


@dataclass(frozen=True, slots=True)
class RouteEntry:
    """One route.

    Attributes:
        name: Name in metrics; several paths may share one.
        method: HTTP method.
        path: Path; parts in braces are parameters.
        answer: Answers a request.
        shape: Shape of its errors.
        body: Declared fields of its JSON body, for the description of the API; None for none.
        open: Whether it needs no key.
        form: Fields of a multipart form that it accepts too, as JSON schemas; None for no forms.
    """

    name: str
    method: str
    path: str
    answer: Callable[[ApiRequest], Awaitable[HttpAnswer | EventStream]]
    shape: shapes.Shape = shapes.openai
    body: type[Body] | None = None
    open: bool = False
    form: Mapping[str, Any] | None = None


def _kserve(
    name: str,
    method: str,
    path: str,
    answer: Callable[[ApiRequest], Awaitable[HttpAnswer | EventStream]],
    body: type[Body] | None = None,
) -> list[RouteEntry]:
    """A route below a model, for any version and for a given one."""
    model, version = f"/v2/models/{{model}}{path}", f"/v2/models/{{model}}/versions/{{version}}{path}"
    return [RouteEntry(name, method, each, answer, shapes.kserve, body) for each in (model, version)]


ROUTES: Final[tuple[RouteEntry, ...]] = (
    RouteEntry("embeddings", "POST", "/v1/embeddings", embeddings.embeddings, body=embeddings.EmbeddingsBody),
    RouteEntry("chat", "POST", "/v1/chat/completions", chat.chat, body=chat.ChatBody),
    RouteEntry("completions", "POST", "/v1/completions", completions.completions, body=completions.CompletionBody),
    RouteEntry(
        "classify",
        "POST",
        "/v1/classify",
        classification.classify,
        body=classification.ClassifyBody,
        form=classification.FORM,
    ),
    RouteEntry("rerank", "POST", "/v1/rerank", reranking.rerank, shapes.rerank, reranking.RerankBody),
    RouteEntry("rerank", "POST", "/v2/rerank", reranking.rerank, shapes.rerank, reranking.RerankBody),
    RouteEntry("tei_embed", "POST", "/embed", tei.tei_embed, shapes.tei, tei.EmbedBody),
    RouteEntry("tei_rerank", "POST", "/rerank", tei.tei_rerank, shapes.tei, tei.TeiRerankBody),
    RouteEntry("tei_predict", "POST", "/predict", tei.tei_predict, shapes.tei, tei.PredictBody),
    *_kserve("infer", "POST", "/infer", kserve.infer, kserve_tensors.InferBody),
    *_kserve("generate", "POST", "/generate", kserve.generate),
    *_kserve("generate_stream", "POST", "/generate_stream", kserve.generate_stream),
    *_kserve("model_ready", "GET", "/ready", kserve.model_ready),
    *_kserve("model_config", "GET", "/config", kserve.model_config),
    *_kserve("model_statistics", "GET", "/stats", kserve.model_statistics),
    *_kserve("model_metadata", "GET", "", kserve.model_metadata),
    RouteEntry("v2", "GET", "/v2", kserve.server, shapes.kserve),
    RouteEntry("v2_live", "GET", "/v2/health/live", kserve.live, shapes.kserve, open=True),
    RouteEntry("v2_ready", "GET", "/v2/health/ready", kserve.ready, shapes.kserve, open=True),
    RouteEntry("models", "GET", "/v1/models", listing.models),
    RouteEntry("model", "GET", "/v1/models/{model:path}", listing.model),
    RouteEntry("health", "GET", "/health", listing.health, open=True),
)

#: The console: for people, so no part of the API's description.
CONSOLE_ROUTES: Final[tuple[RouteEntry, ...]] = (
    RouteEntry("console", "GET", "/", console.page, open=True),
    RouteEntry("console", "GET", "/console/{file}", console.file, open=True),
    RouteEntry("console_access", "GET", "/console/api/access", console.access, open=True),
    RouteEntry("console_events", "GET", "/console/api/events", console.events),
)
