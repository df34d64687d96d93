"""The row that the dashboard opens with: all models of all systems at a glance."""

from __future__ import annotations

from deploy.grafana.queries import RANGE, SELECTED, Panel

#: Answers that are no failure of the server: what clients got wrong or withdrew.
_NOT_OURS = "OK|INVALID_ARG|NOT_FOUND|UNSUPPORTED|CANCELLED"
_REQUESTS = '__name__=~"tidal_[a-z]+_requests_total"'
_WAITING = '__name__=~"tidal_(arlo|tabi_runtime|pets|otas)_waiting_queries|tidal_flover_waiting_generations"'


def _rate(by: str, where: str = "") -> str:
    return f"sum{by} (rate({{{_REQUESTS}, {SELECTED}{where}}}{RANGE}))"


def _errors(by: str = "") -> str:
    ours = f', code=~"{_NOT_OURS}"'
    return f"1 - {_rate(by, ours)} / {_rate(by)}"


def _quantile(share: float) -> str:
    buckets = f'{{__name__=~"tidal_[a-z]+_request_seconds_bucket", {SELECTED}}}{RANGE}'
    return f"histogram_quantile({share}, sum by (model, le) (rate({buckets})))"


def overview() -> list[Panel]:
    """Tiles with the latest values, then charts by model."""
    restarts = f'{{__name__=~"tidal_[a-z]+_service_restarts_total", {SELECTED}}}[1h]'
    served = f'{{__name__=~"tidal_[a-z]+_in_flight_queries", {SELECTED}}}'
    return [
        Panel(
            "Served models",
            "short",
            ((f"count by (model, version) ({served})", "Servers"),),
            "Models and versions that answer clients, and by how many servers. A model that is missing here is not "
            "loaded: `tidal models status` says why.",
            kind="table",
        ),
        Panel(
            "Requests",
            "reqps",
            ((_rate(""), "requests"),),
            "Requests answered per second, whatever the answer was, of the selected models and instances.",
            kind="stat",
        ),
        Panel(
            "Errors",
            "percentunit",
            ((_errors(), "errors"),),
            "Share of requests that the server failed or refused: INTERNAL and UNAVAILABLE. What clients got wrong or "
            "cancelled is not counted. The chart below says which model.",
            limits=(0.01, 0.05),
            kind="stat",
        ),
        Panel(
            "Slowest p99",
            "s",
            ((f"max({_quantile(0.99)})", "p99"),),
            "99th percentile of the time from acceptance to answer, of the model that is slowest by it. Set the "
            "thresholds to your objective; generations take as long as they have tokens.",
            limits=(1.0, 5.0),
            kind="stat",
        ),
        Panel(
            "Queue depth",
            "short",
            ((f"sum({{{_WAITING}, {SELECTED}}})", "waiting"),),
            "Queries and generations that wait for an engine or a slot. A number that keeps growing is overload: more "
            "instances or pods, or deadlines on requests (`latency_ms`).",
            limits=(64, 512),
            kind="stat",
        ),
        Panel(
            "Restarts in an hour",
            "short",
            ((f"sum(increase({restarts}))", "restarts"),),
            "Services started again after a failure inside a model's process. The model's log has the cause. Processes "
            "that died are counted by `tidal models status`.",
            limits=(1, 3),
            kind="stat",
        ),
        Panel(
            "Requests by model and code",
            "reqps",
            ((_rate(" by (model, code)"), "{{model}} {{code}}"),),
            "Requests answered per second. INVALID_ARG is a client's mistake, UNAVAILABLE is overload or a missed "
            "deadline, INTERNAL is a failure of the server.",
            stacked=True,
        ),
        Panel(
            "Errors by model",
            "percentunit",
            ((_errors(" by (model)"), "{{model}}"),),
            "Share of each model's requests that were answered INTERNAL or UNAVAILABLE.",
            limits=(0.01, 0.05),
        ),
        Panel(
            "Latency by model",
            "s",
            ((_quantile(0.5), "{{model}} p50"), (_quantile(0.99), "{{model}} p99")),
            "Time from acceptance to answer, also of requests that failed.",
        ),
        Panel(
            "Waiting by model",
            "short",
            ((f"sum by (model) ({{{_WAITING}, {SELECTED}}})", "{{model}}"),),
            "Queries and generations that wait, by model: Kubernetes' autoscaler goes by their sum per pod.",
            limits=(64, 512),
        ),
    ]
