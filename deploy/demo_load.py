"""Send requests of all kinds at a low, steady rate, as data for a dashboard.

    python demo_load.py --url grpc://127.0.0.1:8001 text:intents text:encoder:city,polite \
        image:digits:digit,parity:.demo/digits generate:writer

To measure a server, use `tidal load`: this script reports failures only.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tidal_client import AsyncClient, RequestError

_WORDS = "please could you find show book play send me a flight table song message for tomorrow"
_PICTURES = (".png", ".jpg", ".jpeg", ".webp")
_REPORT_EVERY_S = 60.0


@dataclass(frozen=True)
class Target:
    """A model, its kind of input, and the tasks of its requests."""

    kind: str
    model: str
    tasks: tuple[str, ...] = ()
    pictures: tuple[bytes, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Target:
        """Parse KIND:MODEL[:TASK,TASK...[:FOLDER]], where KIND is text, image or generate."""
        kind, model, tasks, folder = [*text.split(":", 3), "", "", ""][:4]
        if kind not in ("text", "image", "generate") or not model:
            raise argparse.ArgumentTypeError(
                f"'{text}' is not valid: expected KIND:MODEL[:TASKS[:FOLDER]] with KIND text, image or generate"
            )
        files = [file for file in sorted(Path(folder).glob("*")) if file.suffix in _PICTURES] if folder else []
        if kind == "image" and not files:
            raise argparse.ArgumentTypeError(f"'{text}' is not valid: expected a folder with images at its end")
        return cls(kind, model, tuple(filter(None, tasks.split(","))), tuple(file.read_bytes() for file in files))


async def send(client: AsyncClient, target: Target, draw: random.Random) -> None:
    """Send one request."""
    words = " ".join(draw.choices(_WORDS.split(), k=min(60, 3 + int(draw.expovariate(1 / 12)))))
    options = {"task": draw.choice(target.tasks)} if target.tasks else {}
    if target.kind == "image":
        urgent = draw.choice((50, 600))
        await client.classify_image(target.model, draw.choice(target.pictures), latency_ms=urgent, **options)
    elif target.kind == "generate":
        async for _ in client.generate_stream(target.model, words, max_tokens=draw.randint(4, 24), **options):
            pass
    else:
        await client.classify(target.model, words, **options)


async def keep_asking(client: AsyncClient, target: Target, rate: float, until: float, failed: Counter[str]) -> None:
    """Send requests with Poisson arrivals, regardless of whether earlier ones are answered."""
    draw, running = random.Random(target.model), set[asyncio.Task[None]]()

    async def one() -> None:
        try:
            await send(client, target, draw)
        except RequestError as error:
            failed[f"{target.model}: {error.code}: {error}"] += 1

    while time.monotonic() < until:
        await asyncio.sleep(draw.expovariate(rate))
        task = asyncio.create_task(one())
        running.add(task)
        task.add_done_callback(running.discard)
    await asyncio.gather(*running)


async def main() -> None:
    """Send requests until the time is over, or a signal arrives."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="+", metavar="KIND:MODEL[:TASKS[:FOLDER]]")
    parser.add_argument("--url", default="grpc://127.0.0.1:8001", help="grpc://HOST:PORT or http://HOST:PORT")
    parser.add_argument("--rate", type=float, default=4.0, help="requests per second to each model")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="duration; without it, until a signal arrives"
    )
    arguments = parser.parse_args()
    try:
        targets = [Target.parse(text) for text in arguments.targets]
    except argparse.ArgumentTypeError as error:
        parser.error(str(error))
    until, failed = time.monotonic() + arguments.seconds, Counter[str]()
    async with AsyncClient(arguments.url) as client:

        async def report() -> None:
            while True:
                await asyncio.sleep(_REPORT_EVERY_S)
                for what, count in failed.items():
                    print(f"{count} times: {what}", flush=True)
                failed.clear()

        reporting = asyncio.create_task(report())
        await asyncio.gather(*(keep_asking(client, target, arguments.rate, until, failed) for target in targets))
        reporting.cancel()
    for what, count in failed.items():
        print(f"{count} times: {what}", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
