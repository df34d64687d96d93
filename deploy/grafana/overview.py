"""The row that the dashboard opens with: all models of all systems at a glance."""

from __future__ import annotations

from deploy.grafana.queries import RANGE, SELECTED, Panel

#: Codes that are not failures of the server: invalid and cancelled requests.
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
            "Loaded models and versions, and on how many servers. `tidal models status` shows why a model is not "
            "loaded.",
            kind="table",
        ),
        Panel(
            "Requests",
            "reqps",
            ((_rate(""), "requests"),),
            "Requests of the selected models and instances answered per second, with any result.",
            kind="stat",
        ),
        Panel(
            "Errors",
            "percentunit",
            ((_errors(), "errors"),),
            "Share of requests that failed (INTERNAL) or were refused (UNAVAILABLE). Invalid and cancelled requests "
            "are not counted. See the chart below for each model.",
            limits=(0.01, 0.05),
            kind="stat",
        ),
        Panel(
            "Slowest p99",
            "s",
            ((f"max({_quantile(0.99)})", "p99"),),
            "99th percentile of the time from acceptance to answer, of the slowest model. Set the thresholds to your "
            "objective; the time of a generation depends on its number of tokens.",
            limits=(1.0, 5.0),
            kind="stat",
        ),
        Panel(
            "Queue depth",
            "short",
            ((f"sum({{{_WAITING}, {SELECTED}}})", "waiting"),),
            "Queries and generations that wait for an engine or a slot. A value that keeps growing means overload: add "
            "instances or pods, or set deadlines on requests (`latency_ms`).",
            limits=(64, 512),
            kind="stat",
        ),
        Panel(
            "Restarts in an hour",
            "short",
            ((f"sum(increase({restarts}))", "restarts"),),
            "Services restarted after a failure within a model's process; the model's log has the cause. `tidal models "
            "status` counts processes that died.",
            limits=(1, 3),
            kind="stat",
        ),
        Panel(
            "Requests by model and code",
            "reqps",
            ((_rate(" by (model, code)"), "{{model}} {{code}}"),),
            "Requests answered per second. INVALID_ARG: the request is invalid; UNAVAILABLE: overload or a missed "
            "deadline; INTERNAL: a failure of the server.",
            stacked=True,
        ),
        Panel(
            "Errors by model",
            "percentunit",
            ((_errors(" by (model)"), "{{model}}"),),
            "Share of the requests of each model that were answered with INTERNAL or UNAVAILABLE.",
            limits=(0.01, 0.05),
        ),
        Panel(
            "Latency by model",
            "s",
            ((_quantile(0.5), "{{model}} p50"), (_quantile(0.99), "{{model}} p99")),
            "Time from acceptance to answer, including failed requests.",
        ),
        Panel(
            "Queue depth by model",
            "short",
            ((f"sum by (model) ({{{_WAITING}, {SELECTED}}})", "{{model}}"),),
            "Waiting queries and generations by model. The autoscaler of Kubernetes scales on their sum per pod.",
            limits=(64, 512),
        ),
    ]
