"""`python -m demo`: train, build, serve and query one model per backend; the built models stay in model_repository."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from rich.table import Table

from demo import checking, digits, entities, openai_api, reranking, search, text_tables, writing
from demo.console import CONSOLE
from demo.metrics import sample_of
from demo.tasks import copy_encoder, train_tasks
from demo.texts import ENTITIES, write_labelled
from demo.train import train_intent_classifier
from tidal.server.child import RunningServer, tidal_serve
from tidal_client import Client

REPOSITORY = Path("model_repository")
SOURCE = Path(".demo/intent-classifier")
SMALL = Path(".demo/intent-classifier-small")
LABELLED = Path(".demo/intents.tsv")
ENCODER = Path(".demo/encoder")
MARKER = Path(".demo/entities")
RERANKER = Path(".demo/reranker")
DIGITS = Path(".demo/digits")
SPECS = tuple(
    f"demo/{name}.yaml"
    for name in (
        *("intents", "padded", "partitioned", "cascade", "tasks", "embedder", "reranker", "entities", "digits"),
        "writer",
    )
)
# One or more per backend, and two ensembles; `tidal serve` adds the models of their steps.
MODELS = (
    *("intents", "intents_padded", "intents_partitioned", "intents_cascade", "encoder", "digits", "writer"),
    *(checking.MODEL, search.MODEL, reranking.MODEL, entities.MODEL),
)
NEXT_STEPS = f"""
The models are in model_repository. Serve them on ports 8000 to 8002 with `.venv/bin/tidal serve`, then send requests:
   .venv/bin/tidal infer intents --text "wake me up at seven"
   curl -s localhost:8000/v2/models/{checking.MODEL}/generate -d '{{"text_input": "how old is he", "task": "fits"}}'
Prometheus metrics of the server, and of the controller (`.venv/bin/tidal controller --metrics-port 8003`):
   curl -s http://127.0.0.1:8002/metrics | grep ^tidal_
   curl -s http://127.0.0.1:8003/metrics | grep ^tidal_"""


def main() -> int:
    """Run the demo in the project's root; return 0 if every request was answered."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    _step("training an intent classifier on all-MiniLM-L6-v2 (real weights, generated texts)")
    if not (SOURCE / "config.json").exists():
        accuracy = train_intent_classifier(SOURCE)
        CONSOLE.print(f"   accuracy on held-out texts: {accuracy:.3f}")
    if not (SMALL / "config.json").exists():
        accuracy = train_intent_classifier(SMALL, layers=2, epochs=300)
        CONSOLE.print(f"   the same with 2 of 6 layers, for the cascade: {accuracy:.3f}")
    write_labelled(LABELLED, 480, seed=5)
    copy_encoder(ENCODER)
    if not (MARKER / "config.json").exists():
        share = entities.train_entities(MARKER)
        CONSOLE.print(f"   a token classifier for {len(ENTITIES)} kinds of entities: {share:.3f} of held-out tokens")
    if not (RERANKER / "config.json").exists():
        share = reranking.train_reranker(RERANKER)
        CONSOLE.print(f"   a reranker of pairs of texts: {share:.3f} of held-out pairs")
    reranking.publish_passages(REPOSITORY)
    _step("training a small vision transformer on scikit-learn's digits")
    digits.write_digits(DIGITS)
    digits.train_transformer(DIGITS, DIGITS / "transformer")
    _step(f"tidal build {' '.join(SPECS)}")
    command = [sys.executable, "-m", "tidal_client.main", "build", *SPECS, "--repository", str(REPOSITORY)]
    subprocess.run(command, check=True)
    _step("training five tasks on the frozen encoder, one per kind of fine-tuning")
    train_tasks(REPOSITORY, "encoder", ENCODER, lambda line: CONSOLE.print(f"   {line}", highlight=False))
    _step("training a sixth task, which checks whether a label fits a text")
    checking.train_check(REPOSITORY, "encoder", ENCODER, lambda line: CONSOLE.print(f"   {line}", highlight=False))
    _step("training two tasks on the frozen vision transformer: heads, and prompts for γ > 0")
    digits.train_tasks(REPOSITORY, "digits", DIGITS, lambda line: CONSOLE.print(f"   {line}", highlight=False))
    _step("tidal serve model_repository (on free ports)")
    models = (part for model in MODELS for part in ("--model", model))
    with tidal_serve(REPOSITORY, *models, "--gateway-port", "0") as server:
        CONSOLE.print(f"   tritonserver {server.state.version}: {server.http}  {server.grpc}")
        text_tables.ask_table(server)
        text_tables.compare_table(server)
        text_tables.partitioned_table(server)
        text_tables.search_table(server)
        text_tables.reranking_table(server)
        text_tables.entities_table(server)
        text_tables.cascade_table(server)
        text_tables.tasks_table(server)
        _images(server)
        _texts(server)
        _checked(server)
        _gateway(server)
        _metrics(server)
    CONSOLE.print(NEXT_STEPS, highlight=False, markup=False, soft_wrap=True)
    return 0


def _step(text: str) -> None:
    CONSOLE.print(f"\n[bold]==[/bold] {text}", highlight=False)


def _images(server: RunningServer) -> None:
    """`otas`: the number of tokens of each batch (γ) follows the load and the expected utility."""
    table = Table(title="otas: held-out digit images of scikit-learn", title_justify="left")
    for column in ("true digit", "over", *digits.TASKS, "probability", "γ", "ms"):
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
    """`flover`: all running requests share decode steps, and each client receives a stream."""
    CONSOLE.print("flover: a streamed text over gRPC; │ marks the parts as they arrived", style="italic")
    table = Table(title="flover: texts generated at the same time", title_justify="left")
    for column in ("text", "over", "finish reason", "tokens", "first: ms", "all: ms"):
        table.add_column(column, justify="left" if column in ("text", "over", "finish reason") else "right")
    with Client(server.http) as http, Client(server.grpc) as grpc:
        sys.stdout.write(writing.PROMPTS[0])
        one = writing.write(grpc, writing.PROMPTS[0], _print_part)
        CONSOLE.print(f"\n{one.parts} parts; first after {one.first_ms:.0f} ms, last after {one.all_ms:.0f} ms\n")
        texts, steps = writing.fused(server.state.metrics, writing.stepped([one]))
        together = writing.write_together(http, grpc)
        for over, found in together:
            text = " ".join(f"{found.prompt}{found.text}".split())
            table.add_row(
                text if len(text) < 64 else f"{text[:60]} ...",
                over,
                found.finish_reason,
                str(found.tokens),
                f"{found.first_ms:.1f}",
                f"{found.all_ms:.1f}",
            )
    now = writing.fused(server.state.metrics, int(texts) + writing.stepped(found for _, found in together))
    CONSOLE.print(table)
    shared = (now[0] - texts) / (now[1] - steps)
    CONSOLE.print(f"mean batch size of a decode step: {shared:.1f} of {len(writing.PROMPTS)} texts", highlight=False)
    if shared <= 1:
        raise SystemExit("the texts were generated one after the other, although they were requested at once")


def _checked(server: RunningServer) -> None:
    """An ensemble: the cascade (`tabi`) predicts a label, and a task of the encoder (`pets`) checks it."""
    known, others = checking.unseen_texts(3)
    title = "ensemble: tabi predicts a label, a pets task checks whether it fits the text"
    table = Table(title=title, title_justify="left")
    for column in ("text", "over", "label", "level", "check", "probability", "ms"):
        table.add_column(column, justify="left" if column in ("text", "over", "label", "check") else "right")
    correct, off_topic = list[checking.Checked](), list[checking.Checked]()
    with Client(server.http) as http, Client(server.grpc) as grpc:
        for i, (text, truth) in enumerate([*known, *((other, "") for other in others)]):
            client, over = ((http, "HTTP"), (grpc, "gRPC"))[i % 2]
            start = time.perf_counter()
            found = checking.ask(client, text)
            took = (time.perf_counter() - start) * 1e3
            if not truth:
                off_topic.append(found)
            elif found.label == truth:
                correct.append(found)
            if i < 4 or len(known) <= i < len(known) + 4:
                cells = [found.label, str(found.level), found.check, f"{found.probability:.3f}", f"{took:.1f}"]
                table.add_row(text, over, *cells)
    CONSOLE.print(table)
    accepted = sum(found.check == checking.FITS for found in correct)
    rejected = sum(found.check == checking.DOES_NOT for found in off_topic)
    unsure = checking.stopped_by_confidence(correct, off_topic, accepted)
    CONSOLE.print(
        f"{len(known)} texts with an intent: the cascade labels {len(correct)} correctly, the check accepts {accepted} "
        f"of these\n{len(others)} texts without an intent: the check rejects {rejected}; a threshold on the cascade's "
        f"confidence that also accepts {accepted} rejects {unsure}",
        highlight=False,
    )


def _gateway(server: RunningServer) -> None:
    """The unmodified `openai` library through the gateway."""
    url = server.state.gateway or ""
    table = Table("path", "model", "answer", title=f"the openai library over {url}", title_justify="left")
    for column in ("tokens", "ms"):
        table.add_column(column, justify="right")
    for each in openai_api.ask(url):
        table.add_row(each.path, each.model, each.answer, str(each.tokens), f"{each.ms:.1f}")
    CONSOLE.print(table)


def _metrics(server: RunningServer) -> None:
    """Print one Prometheus metric of each backend, and the ensemble's request count."""
    address = f"http://{server.state.metrics}/metrics"
    CONSOLE.print(f"\nmetrics at {address}", style="italic", highlight=False)
    for line in sample_of(address):
        CONSOLE.print(line, highlight=False, markup=False, soft_wrap=True)


def _print_part(part: str) -> None:
    sys.stdout.write(f"│{part}".replace("\n", " "))
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
