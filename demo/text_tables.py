"""Requests to the demo's encoders and cascades, and the tables of their answers."""

from __future__ import annotations

import statistics
import time
from concurrent.futures import ThreadPoolExecutor

from rich.table import Table

from demo import entities, reranking, search
from demo.console import CONSOLE
from demo.tasks import TASKS, DemoTask
from demo.texts import lengthen, make_examples
from tidal.server.child import RunningServer
from tidal_client import Client


def ask_table(server: RunningServer) -> None:
    """`arlo`: intent classification."""
    table = Table(title="arlo: intent classification over HTTP and gRPC", title_justify="left")
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


def compare_table(server: RunningServer) -> None:
    """`arlo`: latency by input length, against a model that pads to 512 tokens."""
    table = Table(title="arlo: latency by input length over gRPC, median of 15 queries", title_justify="left")
    for column in ("words", "padded to 512: ms", "Tidal: ms", "runtime", "ratio"):
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


def partitioned_table(server: RunningServer) -> None:
    """`arlo` with partitioned placement: the front dispatches each query to one Triton model per length."""
    table = Table(title="arlo, partitioned placement: one Triton model per length", title_justify="left")
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


def search_table(server: RunningServer) -> None:
    """`arlo` with embeddings of real weights."""
    texts = search.documents(400)
    with Client(server.http) as client:
        client.embed(search.MODEL, texts)
        start = time.perf_counter()
        client.embed(search.MODEL, texts)
        rate = len(texts) / (time.perf_counter() - start)
        title = f"arlo: nearest of {len(texts)} texts by embeddings of all-MiniLM-L6-v2 ({rate:.0f} texts/s)"
        table = Table("query", "text", title=title, title_justify="left")
        table.add_column("cosine", justify="right")
        for query in search.QUERIES:
            for number, (text, similarity) in enumerate(search.nearest(client, query, texts, 3)):
                table.add_row("" if number else query, text, f"{similarity:.3f}")
    CONSOLE.print(table)


def reranking_table(server: RunningServer) -> None:
    """An ensemble: `arlo` embeds a query, `nearest` finds texts, and a reranker on `arlo` scores them."""
    table = Table(title="ensemble: retrieve 20 texts by their embeddings, and rerank them", title_justify="left")
    for column in ("query", "text", "score", "similarity", "place by similarity"):
        table.add_column(column, justify="left" if column in ("query", "text") else "right")
    with Client(server.http) as http, Client(server.grpc) as grpc:
        for i, query in enumerate(search.QUERIES):
            found = reranking.ask((http, grpc)[i % 2], query, 20)
            nearest = sorted(found, key=lambda each: each.similarity, reverse=True)
            for number, each in enumerate(found[:3]):
                place = str(nearest.index(each) + 1)
                shown = "" if number else query
                table.add_row(shown, each.text, f"{each.score:.3f}", f"{each.similarity:.3f}", place)
    CONSOLE.print(table)


def entities_table(server: RunningServer) -> None:
    """`arlo` with labels of tokens, joined to entities with offsets in characters."""
    table = Table("text", "entity", "kind", title="arlo: entities in texts", title_justify="left")
    for column in ("characters", "score"):
        table.add_column(column, justify="right")
    with Client(server.http) as http, Client(server.grpc) as grpc:
        for i, text in enumerate(entities.TEXTS):
            for number, each in enumerate((http, grpc)[i % 2].entities(entities.MODEL, text, aggregation="first")):
                if text[each.start : each.end] != each.text:
                    raise SystemExit(f"the offsets of {each} are not those of the text")
                place = f"{each.start} to {each.end}"
                table.add_row("" if number else text, each.text, each.label, place, f"{each.score:.3f}")
    CONSOLE.print(table)


def cascade_table(server: RunningServer) -> None:
    """`tabi`: a model of 2 layers answers; where its confidence is too low, a model of 6 layers does."""
    table = Table(
        title="tabi: a cascade of a 2-layer model (level 1) and a 6-layer model (level 2)", title_justify="left"
    )
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


def tasks_table(server: RunningServer) -> None:
    """`pets`: queries of different tasks run in one batch; each text is sent to all tasks at once."""
    table = Table(title="pets: five tasks with five kinds of fine-tuning share one encoder", title_justify="left")
    for column in ("text", "over", *(f"{task.name}\n{task.kind}" for task in TASKS), "ms"):
        table.add_column(column, justify="right" if column == "ms" else "left")
    with Client(server.http) as http, Client(server.grpc) as grpc, ThreadPoolExecutor(len(TASKS)) as pool:
        for i, (text, _) in enumerate(make_examples(6, seed=13)):
            client, over = ((http, "HTTP"), (grpc, "gRPC"))[i % 2]

            def ask(task: DemoTask, client: Client = client, text: str = text) -> str:
                return client.classify("encoder", text, task=task.name).label or ""

            list(pool.map(ask, TASKS))
            start = time.perf_counter()
            labels = list(pool.map(ask, TASKS))
            took = (time.perf_counter() - start) * 1e3
            table.add_row(text, over, *labels, f"{took:.1f}")
    CONSOLE.print(table)
