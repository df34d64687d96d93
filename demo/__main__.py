"""`python -m demo`: build, serve, ask, compare. Ends by itself and leaves the built model in model_repository."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.console import Console
from rich.table import Table

from demo import checking, digits, writing
from demo.metrics import sample_of
from demo.tasks import TASKS, DemoTask, copy_encoder, train_tasks
from demo.texts import lengthen, make_examples, write_labelled
from demo.train import train_intent_classifier
from tidal.server.child import RunningServer, tidal_serve
from tidal_client import Client

REPOSITORY = Path("model_repository")
SOURCE = Path(".demo/intent-classifier")
SMALL = Path(".demo/intent-classifier-small")
LABELLED = Path(".demo/intents.tsv")
ENCODER = Path(".demo/encoder")
DIGITS = Path(".demo/digits")
SPECS = tuple(
    f"demo/{name}.yaml" for name in ("intents", "padded", "partitioned", "cascade", "tasks", "digits", "writer")
)
# Each backend's, and an ensemble of two of them.
MODELS = (
    *("intents", "intents_padded", "intents_partitioned", "intents_cascade", "encoder", "digits", "writer"),
    checking.MODEL,
)
LAST_WORDS = f"""
The models stay in model_repository: `.venv/bin/tidal serve` serves them on ports 8000 to 8002. While it runs, ask them
   .venv/bin/tidal infer intents --text "wake me up at seven"
   curl -s localhost:8000/v2/models/{checking.MODEL}/generate -d '{{"text_input": "how old is he", "task": "fits"}}'
and read Prometheus metrics, of the server and of `.venv/bin/tidal controller --metrics-port 8003` if it runs beside it:
   curl -s http://127.0.0.1:8002/metrics | grep ^tidal_
   curl -s http://127.0.0.1:8003/metrics | grep ^tidal_"""
CONSOLE = Console(width=None if sys.stdout.isatty() else 120)


def main() -> int:
    """Run the demo from the project's root; the exit code is 0 when every request was answered."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    _step("training a classification head on all-MiniLM-L6-v2 (real weights, texts that the demo makes)")
    if not (SOURCE / "config.json").exists():
        accuracy = train_intent_classifier(SOURCE)
        CONSOLE.print(f"   accuracy on unseen texts of the same templates: {accuracy:.3f}")
    if not (SMALL / "config.json").exists():
        accuracy = train_intent_classifier(SMALL, layers=2, epochs=300)
        CONSOLE.print(f"   and with its first 2 of 6 layers, for a cascade: {accuracy:.3f}")
    write_labelled(LABELLED, 480, seed=5)
    copy_encoder(ENCODER)
    _step("training a tiny vision transformer from nothing, on the digits of scikit-learn")
    digits.write_digits(DIGITS)
    digits.train_transformer(DIGITS, DIGITS / "transformer")
    _step(f"tidal build {' '.join(SPECS)}")
    command = [sys.executable, "-m", "tidal_client.main", "build", *SPECS, "--repository", str(REPOSITORY)]
    subprocess.run(command, check=True)
    _step("training five tasks on the frozen encoder, one of each kind of fine-tuning")
    train_tasks(REPOSITORY, "encoder", ENCODER, lambda line: CONSOLE.print(f"   {line}", highlight=False))
    _step("training a sixth that reads a text and a label, and says whether they fit")
    checking.train_check(REPOSITORY, "encoder", ENCODER, lambda line: CONSOLE.print(f"   {line}", highlight=False))
    _step("training two tasks on the frozen vision transformer: heads, and prompts for the γ above 0")
    digits.train_tasks(REPOSITORY, "digits", DIGITS, lambda line: CONSOLE.print(f"   {line}", highlight=False))
    _step("tidal serve model_repository (on free ports)")
    with tidal_serve(REPOSITORY, *(part for model in MODELS for part in ("--model", model))) as server:
        CONSOLE.print(f"   tritonserver {server.state.version}: {server.http}  {server.grpc}")
        _ask(server)
        _compare(server)
        _partitioned(server)
        _cascade(server)
        _tasks(server)
        _images(server)
        _texts(server)
        _checked(server)
        _metrics(server)
    CONSOLE.print(LAST_WORDS, highlight=False, markup=False, soft_wrap=True)
    return 0


def _step(text: str) -> None:
    CONSOLE.print(f"\n[bold]==[/bold] {text}", highlight=False)


def _ask(server: RunningServer) -> None:
    table = Table(title="intents, over HTTP and gRPC in turn", title_justify="left")
    for column in ("text", "over", "label", "probability", "runtime", "ms"):
        table.add_column(column, justify="left" if column in ("text", "over", "label") else "right")
    queries = [text for text, _ in make_examples(6, seed=42)]
    queries += [lengthen(queries[0], 60), lengthen(queries[1], 200)]
    with Client(server.http) as http, Client(server.grpc) as grpc:
        for i, text in enumerate(queries):
            client, over = ((http, "HTTP"), (grpc, "gRPC"))[i % 2]
            client.classify("intents", text)
            start = time.perf_counter()
            answer = client.classify("intents", text)
            took = (time.perf_counter() - start) * 1e3
            short = text if len(text) < 60 else f"... {text[-42:]} ({len(text.split())} words)"
            probability = f"{answer.top_probability or 0:.3f}"
            table.add_row(short, over, answer.label, probability, str(answer.max_length), f"{took:.1f}")
    CONSOLE.print(table)


def _compare(server: RunningServer) -> None:
    table = Table(title="latency by length, median of 15 queries each in turn, gRPC", title_justify="left")
    for column in ("words", "one runtime padded to 512: ms", "Tidal: ms", "runtime", "ratio"):
        table.add_column(column, justify="right")
    (text, _), *_ = make_examples(1, seed=7)
    with Client(server.grpc) as client:
        for words in (8, 30, 60, 120, 250):
            took: dict[str, list[float]] = {"intents": [], "intents_padded": []}
            runtime = 0
            for turn in range(17):
                for model, times in took.items():
                    query = lengthen(text, words + turn % 3)
                    start = time.perf_counter()
                    answer = client.classify(model, query)
                    times.append((time.perf_counter() - start) * 1e3)
                    runtime = answer.max_length or 0 if model == "intents" else runtime
            padded, tidal = (statistics.median(took[m][2:]) for m in ("intents_padded", "intents"))
            table.add_row(str(words), f"{padded:.1f}", f"{tidal:.1f}", str(runtime), f"{tidal / padded:.2f}")
    CONSOLE.print(table)


def _partitioned(server: RunningServer) -> None:
    """The `arlo` front places each query on an instance of the `engine` backend, one Triton model a length."""
    table = Table(title="intents_partitioned: one Triton model a length", title_justify="left")
    for column in ("words", "over", "label", "runtime", "ms"):
        table.add_column(column, justify="left" if column in ("over", "label") else "right")
    (text, _), *_ = make_examples(1, seed=9)
    with Client(server.http) as http, Client(server.grpc) as grpc:
        for i, words in enumerate((8, 30, 120, 250)):
            client, over = ((http, "HTTP"), (grpc, "gRPC"))[i % 2]
            query = lengthen(text, words)
            client.classify("intents_partitioned", query)
            start = time.perf_counter()
            answer = client.classify("intents_partitioned", query)
            took = (time.perf_counter() - start) * 1e3
            table.add_row(str(len(query.split())), over, answer.label, str(answer.max_length), f"{took:.1f}")
    CONSOLE.print(table)


def _cascade(server: RunningServer) -> None:
    """The `tabi` front asks a model of 2 layers, and one of 6 where that is not sure enough."""
    table = Table(title="intents_cascade: level 1 has 2 layers, level 2 has 6", title_justify="left")
    for column in ("text", "over", "label", "level", "confidence", "ms"):
        table.add_column(column, justify="left" if column in ("text", "over", "label") else "right")
    outputs = ("label", "level", "confidence")
    with Client(server.http) as http, Client(server.grpc) as grpc:
        for i, (text, _) in enumerate(make_examples(8, seed=11)):
            client, over = ((http, "HTTP"), (grpc, "gRPC"))[i % 2]
            client.classify("intents_cascade", text, outputs=outputs)
            start = time.perf_counter()
            answer = client.classify("intents_cascade", text, outputs=outputs)
            took = (time.perf_counter() - start) * 1e3
            level, confidence = (answer.other[name].item() for name in ("level", "confidence"))
            table.add_row(text, over, answer.label, str(level), f"{confidence:.3f}", f"{took:.1f}")
    CONSOLE.print(table)


def _tasks(server: RunningServer) -> None:
    """The `pets` backend runs queries of different tasks in one batch: here every text of all tasks at once."""
    table = Table(title="encoder: five tasks of five kinds share every pass", title_justify="left")
    for column in ("text", "over", *(f"{task.name}\n{task.kind}" for task in TASKS), "ms"):
        table.add_column(column, justify="right" if column == "ms" else "left")
    with Client(server.http) as http, Client(server.grpc) as grpc, ThreadPoolExecutor(len(TASKS)) as pool:
        for i, (text, _) in enumerate(make_examples(6, seed=13)):
            client, over = ((http, "HTTP"), (grpc, "gRPC"))[i % 2]

            def ask(task: DemoTask, client: Client = client, text: str = text) -> str:
                return client.classify("encoder", text, task=task.name).label

            list(pool.map(ask, TASKS))
            start = time.perf_counter()
            labels = list(pool.map(ask, TASKS))
            took = (time.perf_counter() - start) * 1e3
            table.add_row(text, over, *labels, f"{took:.1f}")
    CONSOLE.print(table)


def _images(server: RunningServer) -> None:
    """The `otas` backend runs each batch with more or fewer tokens, by the load and by what either earns."""
    table = Table(title="digits: images of scikit-learn that no training saw", title_justify="left")
    for column in ("shows", "over", *digits.TASKS, "probability", "γ", "ms"):
        table.add_column(column, justify="left" if column in ("over", *digits.TASKS) else "right")
    with Client(server.http) as http, Client(server.grpc) as grpc:
        for i, digit in enumerate(digits.unseen_digits(6)):
            client, over = ((http, "HTTP"), (grpc, "gRPC"))[i % 2]
            client.classify_image("digits", digit.png, task="digit")
            start = time.perf_counter()
            answers = [client.classify_image("digits", digit.png, task=task, latency_ms=600) for task in digits.TASKS]
            took = (time.perf_counter() - start) * 1e3 / len(answers)
            labels, gamma = [answer.label for answer in answers], answers[0].other["gamma"].item()
            probability = f"{answers[0].top_probability or 0:.3f}"
            table.add_row(str(digit.shows), over, *labels, probability, str(gamma), f"{took:.1f}")
    CONSOLE.print(table)


def _texts(server: RunningServer) -> None:
    """The `flover` backend writes all texts that run in the same steps, and each client reads along."""
    CONSOLE.print("writer: a text over gRPC, divided where its parts were as they came", style="italic")
    table = Table(title="writer: texts that are written at the same time", title_justify="left")
    for column in ("text", "over", "ended by", "tokens", "first: ms", "all: ms"):
        table.add_column(column, justify="left" if column in ("text", "over", "ended by") else "right")
    with Client(server.http) as http, Client(server.grpc) as grpc:
        sys.stdout.write(writing.PROMPTS[0])
        one = writing.write(grpc, writing.PROMPTS[0], _tell)
        CONSOLE.print(
            f"\n{one.parts} parts, the first after {one.first_ms:.0f} ms, the last after {one.all_ms:.0f} ms\n"
        )
        texts, steps = writing.fused(server.state.metrics, writing.stepped([one]))
        together = writing.write_together(http, grpc)
        for over, found in together:
            text = " ".join(f"{found.prompt}{found.text}".split())
            table.add_row(
                text if len(text) < 64 else f"{text[:60]} ...",
                over,
                found.ended_by,
                str(found.tokens),
                f"{found.first_ms:.1f}",
                f"{found.all_ms:.1f}",
            )
    now = writing.fused(server.state.metrics, int(texts) + writing.stepped(found for _, found in together))
    CONSOLE.print(table)
    shared = (now[0] - texts) / (now[1] - steps)
    CONSOLE.print(f"a step wrote on at {shared:.1f} of the {len(writing.PROMPTS)} texts, on average", highlight=False)
    if shared <= 1:
        raise SystemExit("the texts were written one after the other, although they were asked for at once")


def _checked(server: RunningServer) -> None:
    """An ensemble: the cascade (`tabi`) names a label, which a task of the encoder (`pets`) reads with the text."""
    known, others = checking.unseen_texts(3)
    title = f"{checking.MODEL}: the cascade names a label, a task of the encoder says whether it fits the text"
    table = Table(title=title, title_justify="left")
    for column in ("text", "over", "label", "level", "check", "probability", "ms"):
        table.add_column(column, justify="left" if column in ("text", "over", "label", "check") else "right")
    right, others_asked = list[checking.Checked](), list[checking.Checked]()
    with Client(server.http) as http, Client(server.grpc) as grpc:
        for i, (text, truth) in enumerate([*known, *((other, "") for other in others)]):
            client, over = ((http, "HTTP"), (grpc, "gRPC"))[i % 2]
            start = time.perf_counter()
            found = checking.ask(client, text)
            took = (time.perf_counter() - start) * 1e3
            if not truth:
                others_asked.append(found)
            elif found.label == truth:
                right.append(found)
            if i < 4 or len(known) <= i < len(known) + 4:
                cells = [found.label, str(found.level), found.check, f"{found.probability:.3f}", f"{took:.1f}"]
                table.add_row(text, over, *cells)
    CONSOLE.print(table)
    passed = sum(found.check == checking.FITS for found in right)
    stopped = sum(found.check == checking.DOES_NOT for found in others_asked)
    unsure = checking.stopped_by_confidence(right, others_asked, passed)
    CONSOLE.print(
        f"{len(known)} texts of intents: the cascade named {len(right)} rightly, of which the check let {passed} pass\n"
        f"{len(others)} texts of none: the check stopped {stopped}; a bound on the cascade's confidence, set to let "
        f"{passed} of the others pass, {unsure}",
        highlight=False,
    )


def _metrics(server: RunningServer) -> None:
    """Some of what Prometheus reads of this server: what each backend counted, and the ensemble's requests."""
    address = f"http://{server.state.metrics}/metrics"
    CONSOLE.print(f"\n{address}, while this server runs", style="italic", highlight=False)
    for line in sample_of(address):
        CONSOLE.print(line, highlight=False, markup=False, soft_wrap=True)


def _tell(part: str) -> None:
    sys.stdout.write(f"│{part}".replace("\n", " "))
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
