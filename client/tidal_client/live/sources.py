"""What a terminal shows: states and figures of all models, from servers directly or from a gateway."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from tidal_client.errors import ConnectionFailed, RequestError
from tidal_client.live.reading import read_metrics, read_report
from tidal_client.live.recorder import Recorder
from tidal_client.live.scrape import parse
from tidal_client.live.states import states_of

Frame = dict[str, Any]
_EVENTS: Final = "/console/api/events"
_ANSWER_S: Final = 30.0
# Proxies of the environment are for other addresses.
_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


@dataclass(frozen=True, slots=True)
class MetricsTarget:
    """A server to read.

    Attributes:
        metrics: ``host:port`` of its Prometheus endpoint.
        status: ``host:port`` of the status endpoint of its `tidal serve`; None if unknown.
    """

    metrics: str
    status: str | None = None


def frames_of_servers(targets: Sequence[MetricsTarget], interval_s: float) -> Iterator[Frame]:
    """Read servers again and again.

    Args:
        targets: Servers to read.
        interval_s: Seconds between two readings.

    Yields:
        Frames of the form of the gateway's events. A server that does not answer later has a `reason`.

    Raises:
        RequestError: A server does not answer the first time.
    """
    recorder = Recorder()
    first = True
    while True:
        began = time.monotonic()
        servers, reports, catalogs = [], [], []
        for target in targets:
            reason = ""
            try:
                recorder.add(target.metrics, parse(read_metrics(target.metrics), time.monotonic()))
            except ValueError as error:
                raise ConnectionFailed(
                    f"http://{target.metrics}/metrics answered no metrics of Prometheus: {error}"
                ) from None
            except ConnectionFailed as error:
                if first:
                    raise
                recorder.drop(target.metrics)
                reason = str(error)
            servers.append({"name": target.metrics, "up": not reason, "reason": reason})
            if target.status is not None:
                reports += [each for each in [read_report(target.status, "/ready")] if each is not None]
                catalogs += [each for each in [read_report(target.status, "/models")] if each is not None]
        first = False
        states = states_of(reports, catalogs)
        models = [
            {**each.as_json(), **(states[each.name].as_json() if each.name in states else {})}
            for each in recorder.models()
        ]
        measured = {each["name"] for each in models}
        models += [
            {"name": name, "system": "", "summary": {}, "values": {}, **state.as_json()}
            for name, state in states.items()
            if name not in measured
        ]
        models.sort(key=lambda each: str(each["name"]))
        yield {"time": round(time.time(), 3), "servers": servers, "models": models}
        time.sleep(max(0.0, interval_s - (time.monotonic() - began)))


def frames_of_gateway(url: str, key: str | None, interval_s: float) -> Iterator[Frame]:
    """Follow the events of a gateway's console; a stream that ends by itself is opened again.

    Args:
        url: URL of the gateway.
        key: API key; None for none.
        interval_s: Shortest time between two frames, in seconds.

    Raises:
        RequestError: The gateway does not answer, or refuses.
    """
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    next_s = 0.0
    while True:
        request = urllib.request.Request(f"{url.rstrip('/')}{_EVENTS}", headers=headers)
        try:
            with closing(_open(request, timeout=_ANSWER_S)) as response:
                for line in response:
                    # Half a period of the gateway, so that an interval of 1 s keeps every frame.
                    if line.startswith(b"data: ") and time.monotonic() >= next_s - 0.5:
                        next_s = time.monotonic() + interval_s
                        found: Frame = json.loads(line[6:])
                        yield {name: found[name] for name in ("time", "servers", "models")}
        except urllib.error.HTTPError as error:
            raise _refused(url, error) from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise ConnectionFailed(f"{url} does not answer: {getattr(error, 'reason', error)}") from None


def _refused(url: str, error: urllib.error.HTTPError) -> RequestError:
    try:
        reason = str(json.loads(error.read(1 << 16))["error"]["message"])
    except (OSError, ValueError, KeyError, TypeError):
        reason = "no gateway of Tidal with a console answers there"
    hint = "; set the environment variable TIDAL_API_KEY" if error.code == 401 else ""
    return RequestError(f"{url} answered {error.code}: {reason}{hint}")
