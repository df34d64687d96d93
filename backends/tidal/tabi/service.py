"""The `tabi` service: sends each query to a small level first, and further where that is not sure enough."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from tidal.arlo.embedded import EmbeddedModels
from tidal.errors import Cancelled, Internal, TidalError, Unavailable
from tidal.requests import PendingRequest
from tidal.service import ServiceContext
from tidal.serving.endings import cancellation, failure, model_stops
from tidal.serving.threads import join_until, remaining_s
from tidal.tabi.asking import PatientModels
from tidal.tabi.calling import LevelModels
from tidal.tabi.choice import Choice
from tidal.tabi.jobs import Answers, Job, Visit
from tidal.tabi.manifest import TabiManifest
from tidal.tabi.metrics import TabiMetrics
from tidal.tabi.overload import Overload
from tidal.tabi.parameters import TabiParameters
from tidal.tabi.reading import Readers
from tidal.tabi.routing import ANSWER_S, Following, Routing
from tidal.tabi.stations import Station
from tidal.tabi.task_levels import SharedTasks
from tidal.tabi.watch import Watch

# Threads lost in calls that never end, over all levels, that others take the place of.
_SPARE_THREADS = 32


class TabiService:
    """One station a level, where queries wait for it and threads ask it, and a watch for what takes too long.

    A job is in one hand at a time: of the thread that works on its visit to a level, or of the watch that gave the
    visit up. Whoever ends the visit goes on with the job: to the next level, or to its answer.

    Args:
        context: what the service is started with.
        manifest: of the cascade.
        parameters: of its config.pbtxt.
        choice: its candidates that can serve.
        readers: its tokenizers.
        models: of its levels; the service's own from now on.

    Raises:
        InvalidArgument: config.pbtxt declares an output that the model does not give.
    """

    def __init__(
        self,
        context: ServiceContext,
        manifest: TabiManifest,
        parameters: TabiParameters,
        choice: Choice,
        readers: Readers,
        models: EmbeddedModels,
    ) -> None:
        self._context = context
        self._manifest = manifest
        self._timeout_s = parameters.level_timeout_ms / 1e3
        self._choice = choice
        self._answers = Answers(manifest, context.outputs)
        self._metrics = TabiMetrics(
            context.metrics,
            [index + 1 for index in choice.levels],
            [manifest.candidates[index].name for index in choice.usable],
        )
        self._routing = Routing(manifest, context.version, parameters, readers, self._metrics, context.log)
        self._lock = threading.Lock()
        self._overload = _overload(parameters, choice)
        self._serving = choice.default
        self._metrics.serves(manifest.candidates[self._serving].name)
        self._closing = False
        self._open = 0
        self._none_open = threading.Condition(self._lock)
        self._ending = threading.Event()
        self._own = models
        tasks = SharedTasks(context.model_dir.parent, manifest)
        self._models = PatientModels(LevelModels(models, manifest, tasks), self._ending)
        slots = max(1, parameters.max_in_flight // len(choice.levels))
        spare = _SPARE_THREADS // len(choice.levels)
        self._stations = {
            index: Station(
                context, f"level-{index + 1}", slots, spare, self._work, partial(self._metrics.lost_calls, index + 1)
            )
            for index in choice.levels
        }
        self._watch = Watch(context, self._late)

    def submit(self, requests: Sequence[PendingRequest]) -> None:
        """Check requests and queue them for their first level; one that cannot be accepted is answered here."""
        for request in requests:
            try:
                job = self._routing.open(request, self._manifest.candidates[self._candidate(request)])
            except Exception as error:  # one request must not cost the others their service
                request.fail(failure(error, "the request could not be read"))
            else:
                with self._lock:
                    refused = self._closing
                    self._open += not refused
                if refused:
                    request.fail(model_stops())
                else:
                    self._proceed(job, partial(_first_level, job))

    def close(self, timeout_s: float) -> None:
        """Finish what was taken over, then end the threads; what is left after `timeout_s` stays unanswered."""
        until = time.monotonic() + timeout_s
        with self._lock:
            self._closing = True
            self._none_open.wait_for(lambda: not self._open, timeout_s)
        self._ending.set()
        threads = [thread for station in self._stations.values() for thread in station.close()]
        self._watch.close(remaining_s(until))
        self._own.close(remaining_s(until))
        join_until(until, threads)

    def _candidate(self, request: PendingRequest) -> int:
        """Index of the candidate for a request."""
        with self._lock:
            serving = self._overload.candidate(time.monotonic())
            changed, self._serving = serving != self._serving, serving
        if changed:
            name = self._manifest.candidates[serving].name
            self._metrics.serves(name)
            self._context.log.warning(f"by the load, candidate '{name}' serves from now on")
        return self._choice.for_request(request.options.accuracy, request.options.max_level, serving)

    def _proceed(self, job: Job, follow: Callable[[], Following]) -> None:
        """Do what follows for a job, unless it has been answered; what goes wrong at it costs no other."""
        try:
            while not job.request.answered:
                following = follow()
                if isinstance(following, int):
                    visit = self._visit(job, following)
                    if self._stations[following].enter(visit):
                        self._watch.add(visit)
                        return
                    full = Unavailable("calls to it do not end; the cascade has to be reloaded")
                    follow = partial(self._routing.failed, visit, full)
                elif following is None:
                    self._reply(job)
                else:
                    job.request.fail(following)
        except Exception as error:
            self._context.log.exception("a request failed")
            job.request.fail(Internal(f"the request could not be routed: {type(error).__name__}: {error}"))
        with self._lock:
            self._open -= 1
            if not self._open:
                self._none_open.notify_all()

    def _visit(self, job: Job, level: int) -> Visit:
        ready = time.monotonic()
        until, deadline = ready + self._timeout_s, job.request.deadline
        if deadline is not None:
            latest = deadline - ANSWER_S if job.has_answers else deadline
            if latest < until:
                return Visit(job, level, ready, latest, hurried=True)
        return Visit(job, level, ready, until)

    def _work(self, visit: Visit) -> None:
        """Work on a visit; on its station's thread."""
        follow = self._ask(visit)
        if self._stations[visit.level].finish(visit):
            self._proceed(visit.job, follow)

    def _late(self, visit: Visit) -> None:
        """A visit's time has come: go on without the level, whose answer is of no use any more."""
        if self._stations[visit.level].give_up(visit):
            now = time.monotonic()
            self._observe(visit, now)
            error = Unavailable(f"no answer within {(now - visit.ready) * 1e3:.0f} ms")
            self._proceed(visit.job, partial(self._routing.failed, visit, error))

    def _ask(self, visit: Visit) -> Callable[[], Following]:
        """Ask a visit's level, and wait; what follows from it."""
        job = visit.job
        try:
            _check_wanted(job)
            self._routing.read(visit)
        except TidalError as error:
            return partial(_refused, error)
        except Exception as error:
            return partial(_refused, Internal(f"the request could not be read: {type(error).__name__}: {error}"))
        try:
            asked = self._models.ask(
                visit, attention=self._routing.wants_attention(visit), has_answer=self._routing.may_stop(job)
            )
        except TidalError as error:
            return partial(self._routing.failed, visit, error)
        except Exception as error:
            return partial(self._routing.failed, visit, Internal(f"{type(error).__name__}: {error}"))
        self._observe(visit, asked.ended)
        return partial(self._routing.answered, visit, asked)

    def _observe(self, visit: Visit, now: float) -> None:
        """Tell how much longer a level took until now, queues before it included, than its queries one by one."""
        alone_ms = self._manifest.levels[visit.level].latency.mean * len(visit.job.going)
        with self._lock:
            self._overload.observe(now, (now - visit.ready) * 1e3 - alone_ms)

    def _reply(self, job: Job) -> None:
        for answer, query in zip(self._answers.reply(job), job.queries, strict=True):
            self._metrics.answered(answer.level, early=not query.route.last and not answer.degraded)


def _overload(parameters: TabiParameters, choice: Choice) -> Overload:
    if parameters.overload_ms is None:
        return Overload((choice.default,), math.inf)
    floor = -math.inf if parameters.overload_accuracy is None else parameters.overload_accuracy
    return Overload(choice.ladder(floor), parameters.overload_ms)


def _first_level(job: Job) -> Following:
    return job.candidate.levels[0]


def _refused(error: TidalError) -> Following:
    return error


def _check_wanted(job: Job) -> None:
    if job.request.answered:
        raise Cancelled("the request was answered while it waited")
    cancelled = cancellation(job.request, time.monotonic())
    if cancelled is not None:
        raise cancelled
