"""Configurations of the bare model, and the search for the fastest at each number of requests in flight."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

# Answers per second of a configuration at a number of requests in flight.
Speed = Callable[["BareConfig", int], float]


@dataclass(frozen=True, slots=True)
class BareConfig:
    """Configuration of the bare model.

    Attributes:
        engine: Name of the model whose engine it runs.
        instances: Number of instances.
        threads: Number of engine threads per instance.
        max_batch: Maximum batch size of Triton's dynamic batcher; 1: no batching.
        delay_us: Maximum queue delay of Triton's dynamic batcher in microseconds.
        answers: `list`, `senders` or `thread`; see `bare_model`.
    """

    engine: str
    instances: int
    threads: int
    max_batch: int
    delay_us: int = 0
    answers: str = "list"

    @property
    def model(self) -> str:
        """Name of the model in the repository."""
        delay = f"_delay{self.delay_us}" if self.delay_us else ""
        answers = "" if self.answers == "list" else f"_{self.answers}"
        return f"bare_{self.engine}_{self.instances}x{self.threads}_batch{self.max_batch}{delay}{answers}"

    @property
    def settings(self) -> str:
        """Settings in words, for tables."""
        batching = f"batches up to {self.max_batch}" if self.max_batch > 1 else "no batching"
        delay = f", delay {self.delay_us} us" if self.delay_us else ""
        return f"{self.instances} x {self.threads} threads, {batching}{delay}"

    def write(self, repository: Path, version_dir: Path) -> None:
        """Add the model to a repository unless it is there.

        Args:
            repository: Model repository.
            version_dir: Version folder of the model whose engine it runs.
        """
        folder = repository / self.model
        if folder.exists():
            return
        (folder / "1").mkdir(parents=True)
        source = Path(__file__).with_name("bare_model.py").read_text(encoding="utf-8")
        (folder / "1" / "model.py").write_text(source, encoding="utf-8")
        given = {"version_dir": version_dir, "threads": self.threads, "answers": self.answers}
        parameters = "".join(
            f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n' for key, value in given.items()
        )
        delay = f" max_queue_delay_microseconds: {self.delay_us} " if self.delay_us else ""
        batching = f"dynamic_batching {{{delay}}}\n" if self.max_batch > 1 else ""
        outputs = "".join(
            f'output {{ name: "{name}" data_type: TYPE_{kind} dims: [ {dims} ] }}\n'
            for name, kind, dims in (
                ("logits", "FP32", -1),
                ("probabilities", "FP32", -1),
                ("label", "STRING", 1),
                ("max_length", "INT32", 1),
                ("input_tokens", "INT32", 1),
            )
        )
        (folder / "config.pbtxt").write_text(
            f'backend: "python"\nmax_batch_size: {self.max_batch}\n'
            'input { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] }\n'
            f"{outputs}instance_group {{ kind: KIND_CPU count: {self.instances} }}\n{batching}{parameters}"
        )


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """Parameters of the bare model to try.

    Attributes:
        shapes: Numbers of instances and of threads per instance.
        sizes: Maximum batch sizes where several requests are in flight; a lone one is not batched.
        delays_us: Queue delays of the fastest with batching.
    """

    shapes: Sequence[tuple[int, int]]
    sizes: Sequence[int]
    delays_us: Sequence[int] = (0,)


def all_shapes(cores: int) -> list[tuple[int, int]]:
    """Return the shapes of a full search: one or two instances or one per core, with one thread or all cores."""
    return sorted({(count, threads) for count in {1, 2, cores} for threads in {1, max(1, cores // count)}})


def whole_shapes(cores: int) -> list[tuple[int, int]]:
    """Return the shapes that use all cores."""
    return [(count, threads) for count, threads in all_shapes(cores) if count * threads == cores]


def search(engine: str, concurrencies: Iterable[int], speed: Speed, space: SearchSpace) -> dict[int, BareConfig]:
    """Search for the fastest configuration, for each concurrency.

    Instances and threads are tried with every second batch size, then the fastest with all sizes, then with all delays.

    Args:
        engine: Name of the model whose engine is run.
        concurrencies: Numbers of requests in flight.
        speed: Measures a configuration.
        space: Parameters to try.
    """
    found = {}
    for concurrency in concurrencies:

        def fastest(candidates: Iterable[BareConfig], concurrency: int = concurrency) -> BareConfig:
            return max(dict.fromkeys(candidates), key=lambda each: speed(each, concurrency))

        sizes = space.sizes if concurrency > 1 else (1,)
        best = fastest(BareConfig(engine, *shape, size) for shape in space.shapes for size in sizes[::2])
        best = fastest(replace(best, max_batch=size) for size in sizes)
        if best.max_batch > 1:
            best = fastest(replace(best, delay_us=delay) for delay in space.delays_us)
        found[concurrency] = best
    return found


def floors(best: BareConfig) -> list[BareConfig]:
    """Return the same model with the other forms of answering: their speed bounds what response senders allow."""
    return [replace(best, answers=answers) for answers in ("senders", "thread")]
