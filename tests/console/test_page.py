"""The console in a headless Chromium, before real models: what it shows, sends, and keeps to itself."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest
from PIL import Image

from testing.gateways import RunningGateway, running_gateway
from testing.waiting import until
from tests.gateway.conftest import Backend
from tidal_client import Client

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.server

Locked = tuple[RunningGateway, dict[str, str]]

TEXT = "wake me up in lima"
PAIR = 'it\'s "late"\nin lima'
#: By model: the call in the playground and what is typed, by field.
CALLS: dict[str, tuple[str, dict[str, str]]] = {
    "intents": ("Classify a text", {"text": TEXT}),
    "intents_cascade": ("Classify a text", {"text": TEXT}),
    "encoder": ("Classify a text", {"text": TEXT}),
    "digits": ("Classify an image", {}),
    "embedder": ("Embed texts", {"texts": "a b\nb c\nx"}),
    "reranker": ("Rerank documents", {"query": "a b c", "documents": "x y\na b\na y"}),
    "ner": ("Extract entities", {"text": TEXT}),
    "qa": ("Answer a question", {"question": "who wakes", "context": TEXT}),
    "writer": ("Generate a text", {"prompt": 'it\'s a "text"\nof lines', "max_tokens": "12"}),
    "talker": ("Chat", {"system": "be brief", "message": "hello you"}),
}


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page whose problems fail the test; those of the network are the answers of the gateway."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    found = context.new_page()
    problems: list[str] = []
    found.on("pageerror", lambda error: problems.append(str(error)))
    found.on("console", lambda message: problems.append(message.text) if message.type in ("error", "warning") else None)
    found.set_default_timeout(60_000)
    yield found
    context.close()
    assert problems == []


def open_model(page: Page, gateway: RunningGateway, model: str) -> None:
    page.goto(f"{gateway.url}/#{model}")
    page.get_by_role("heading", name=model, exact=True).wait_for()


def fill(page: Page, model: str, tmp_path: Path) -> None:
    call, fields = CALLS[model]
    if page.get_by_label("Call", exact=True).count():
        page.get_by_label("Call", exact=True).select_option(call)
    for field, value in fields.items():
        page.locator(f"#{field}").fill(value)
    if model == "digits":
        page.locator("#image").set_input_files(image(tmp_path))


def image(folder: Path) -> Path:
    """A picture of random pixels."""
    file = folder / "pixels.png"
    Image.fromarray(np.random.default_rng(1).integers(0, 255, (8, 8), np.uint8)).save(file)
    return file


def send(page: Page) -> str:
    """Send the call and return the answer that is shown."""
    page.get_by_role("button", name="Send").click()
    page.locator("button.primary:not([disabled])", has_text="Send").wait_for()
    output = page.locator("output")
    assert output.locator(".error").count() == 0, output.inner_text()
    return str(output.inner_text())


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_the_page_is_legible(page: Page, gateway: RunningGateway, scheme: Any, width: int) -> None:
    axe: Any = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 800})
    open_model(page, gateway, "intents")
    page.locator("figure").first.wait_for()
    assert page.locator("#models tbody tr").count() >= len(CALLS)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == {"light": "rgb(255, 255, 255)", "dark": "rgb(13, 17, 23)"}[scheme]
    # Contrast, names and roles of everything, by the rules of axe-core.
    found = axe.Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


@pytest.mark.parametrize("model", CALLS)
def test_every_kind_of_call(page: Page, gateway: RunningGateway, backend: Backend, model: str, tmp_path: Path) -> None:
    """The page and its examples of code give the answer that the server gives to a client."""
    open_model(page, gateway, model)
    fill(page, model, tmp_path)
    answers = answers_of(page, tmp_path)
    with Client(f"grpc://{backend.served.report['grpc']}") as client:
        expected = answer_of(client, model, tmp_path)
    for form, answer in answers.items():
        for part in expected:
            assert part in answer if isinstance(part, str) else has_number(answer, part), (form, part, answer)


def test_a_second_text_is_sent_with_the_first(
    page: Page, gateway: RunningGateway, backend: Backend, tmp_path: Path
) -> None:
    """The page and its examples of code give the answer for both texts, which differs from that for the first."""
    open_model(page, gateway, "encoder")
    fill(page, "encoder", tmp_path)
    page.locator("#pair").fill(PAIR)
    answers = answers_of(page, tmp_path)
    with Client(f"grpc://{backend.served.report['grpc']}") as client:
        alone = client.classify("encoder", TEXT, task="city").probabilities
        expected = client.classify("encoder", TEXT, pair=PAIR, task="city").probabilities
    assert alone is not None
    assert expected is not None
    assert abs(expected[0] - alone[0]) > 0.05
    for form, answer in answers.items():
        assert has_number(answer, expected[0]), (form, answer)


def answers_of(page: Page, folder: Path) -> dict[str, str]:
    """Answers to the call of the page: the one that is shown, and what its examples of code print."""
    answers = {"page": send(page)}
    for language in ("curl", "openai", "tidal_client"):
        page.get_by_text(language, exact=True).click()
        answers[language] = run(language, page.locator("pre").inner_text(), folder)
    return answers


def answer_of(client: Client, model: str, folder: Path) -> list[str | float]:
    """Texts and numbers that a correct answer has in every form."""
    fields = CALLS[model][1]
    if model in ("intents", "intents_cascade"):
        return [str(client.classify(model, fields["text"]).label)]
    if model == "encoder":
        return [str(client.classify(model, fields["text"], task="city").label)]
    if model == "digits":
        return [str(client.classify_image(model, image(folder).read_bytes(), task="digit").label)]
    if model == "embedder":
        return client.embed(model, fields["texts"].split("\n")).array[0, :4].tolist()  # type: ignore[no-any-return]
    if model == "reranker":
        return [each.score for each in client.rerank(model, fields["query"], fields["documents"].split("\n"))]
    if model == "ner":
        found = client.entities(model, fields["text"])[:8]  # the page shows no more than some
        assert found
        return [*(each.text for each in found), *(each.score for each in found)]
    if model == "qa":
        best = client.answer(model, fields["question"], fields["context"], top_k=3)
        return [best.text, best.score]
    if model == "talker":
        return ["2 messages, 0 tools, hello you"]
    return [client.generate(model, fields["prompt"], max_tokens=12, temperature=0).text]


def has_number(answer: str, number: float) -> bool:
    """Whether a number is in a text, with at least two digits of it."""
    return any(abs(float(each) - number) < 0.006 for each in re.findall(r"-?\d+\.?\d*(?:e-?\d+)?", answer))


def run(language: str, code: str, folder: Path) -> str:
    """Run an example and return what it prints; of the events of a stream, the text."""
    with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()) as printed:
        if language != "curl":
            exec(compile(code, language, "exec"), {})
            return printed.getvalue()
        done = subprocess.run(["bash", "-c", code], check=False, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    if not done.stdout.startswith("data:"):
        return done.stdout
    events = [json.loads(line[6:]) for line in done.stdout.splitlines() if line and line != "data: [DONE]"]
    choices = [each["choices"][0] for each in events]
    return "".join(each.get("text") or each.get("delta", {}).get("content", "") for each in choices)


#: Charts that a load moves, by model.
MOVING = {
    "intents": ("throughput", "latency", "batch", "runtimes", "lengths"),
    "intents_cascade": ("throughput", "latency", "batch", "levels", "confidence"),
    "encoder": ("throughput", "latency", "batch", "tasks", "distinct"),
    "digits": ("throughput", "latency", "batch", "gamma", "utility"),
    "writer": ("throughput", "tokens", "batch", "first"),
}


def test_charts_move_under_load(page: Page, gateway: RunningGateway, tmp_path: Path) -> None:
    open_model(page, gateway, "intents")
    first = page.locator("figure[data-chart=throughput] path")
    page.wait_for_function("document.querySelectorAll('#models tbody tr').length > 3")
    ended = threading.Event()
    pixels = base64.b64encode(image(tmp_path).read_bytes()).decode()
    inputs: dict[str, Any] = {
        "intents": TEXT, "intents_cascade": TEXT, "encoder/city": TEXT, "digits/digit": {"image": pixels},
    }  # fmt: skip

    def load() -> None:
        with httpx.Client(base_url=gateway.url, timeout=30) as client:
            while not ended.is_set():
                for model, given in inputs.items():
                    found = client.post("/v1/classify", json={"model": model, "input": given})
                    assert found.status_code == 200, (model, found.text)
                client.post("/v1/completions", json={"model": "writer", "prompt": "once", "max_tokens": 8})

    thread = threading.Thread(target=load)
    thread.start()
    try:
        for model, charts in MOVING.items():
            page.get_by_role("button", name=model, exact=True).click()
            for chart in charts:
                shown = "[...document.querySelectorAll(`figure[data-chart=${chart}] b`)]"
                wait = f"chart => {shown}.some(each => parseFloat(each.textContent) > 0)"
                page.wait_for_function(wait, arg=chart)
        assert until(lambda: re.search(r"L[\d.]+ [\d.]+", first.first.get_attribute("d") or ""))
        row = page.get_by_role("row").filter(has=page.get_by_role("button", name="intents", exact=True))
        page.wait_for_function(
            "row => parseFloat(row.cells[5].textContent) > 0 && row.cells[6].textContent.endsWith('ms')",
            arg=row.element_handle(),
        )
    finally:
        ended.set()
        thread.join()


def test_keys_are_asked_for_and_kept_in_the_tab_only(browser: Browser, locked: Locked) -> None:
    gateway, keys = locked
    context = browser.new_context()
    page = context.new_page()
    page.goto(gateway.url)
    dialog = page.get_by_role("dialog")
    dialog.wait_for()
    assert page.evaluate("document.activeElement.id") == "key"
    page.keyboard.type("tidal-0000-wrong")
    page.keyboard.press("Enter")
    page.get_by_text("This key is not known").wait_for()
    page.keyboard.type(keys["all"])
    page.keyboard.press("Enter")
    open_model(page, gateway, "intents")
    assert not dialog.is_visible()
    assert page.locator("#models tbody tr").count() > 5
    assert page.evaluate("Object.values(sessionStorage)") == [keys["all"]]
    assert page.evaluate("[localStorage.length, document.cookie, location.search]") == [0, "", ""]
    page.locator("#text").fill(TEXT)
    assert "intents" in page.locator("pre").inner_text()
    assert send(page)
    secret = keys["all"].split("-", 2)[2]  # which may contain hyphens
    for language in ("openai", "tidal_client", "curl"):
        page.get_by_text(language, exact=True).click()
        assert secret not in page.content()
    assert "$TIDAL_API_KEY" in page.locator("pre").inner_text()
    other = context.new_page()  # another tab asks again
    other.goto(gateway.url)
    other.get_by_role("dialog").wait_for()
    context.close()


def test_a_key_sees_its_models_and_tasks(browser: Browser, locked: Locked) -> None:
    gateway, keys = locked
    context = browser.new_context()
    context.add_init_script(f"sessionStorage.setItem('tidal-console-key', '{keys['some']}')")
    page = context.new_page()
    open_model(page, gateway, "encoder")
    names = page.locator("#models tbody button").all_inner_texts()
    assert names == ["digits", "encoder"]
    assert page.get_by_label("Task").locator("option").all_inner_texts() == ["city"]
    page.locator("#text").fill(TEXT)
    assert send(page)
    page.get_by_text("tidal_client", exact=True).click()
    assert "grpc://SERVER:8001" in page.locator("pre").inner_text()
    context.close()


def test_by_keyboard(page: Page, gateway: RunningGateway) -> None:
    page.goto(gateway.url)
    page.locator("#models tbody tr").first.wait_for()

    def press_until(expression: str) -> None:
        for _ in range(40):
            page.keyboard.press("Tab")
            if page.evaluate(f"(() => {{ const at = document.activeElement; return {expression}; }})()"):
                return
        raise AssertionError(f"Tab never reached {expression}")

    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    press_until("at.textContent === 'intents'")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="intents", exact=True).wait_for()
    press_until("at.id === 'text'")
    page.keyboard.press("Control+A")
    page.keyboard.type(TEXT)
    press_until("at.textContent === 'Send'")
    page.keyboard.press("Enter")
    page.locator("output strong").wait_for()
    assert page.locator("output").get_attribute("aria-live") == "polite"
    press_until("at.name === 'language'")
    page.keyboard.press("ArrowRight")
    assert "from openai import OpenAI" in page.locator("pre").inner_text()


def test_an_error_is_shown_and_a_stream_can_be_stopped(browser: Browser, gateway: RunningGateway) -> None:
    context = browser.new_context()
    page = context.new_page()
    open_model(page, gateway, "intents")
    page.locator("#text").fill(" ")
    page.get_by_role("button", name="Send").click()
    page.locator("output .error").wait_for()
    assert "text_input" in page.locator("output").inner_text()
    open_model(page, gateway, "talker")
    page.locator("#message").fill("forever")
    page.get_by_role("button", name="Send").click()
    page.get_by_text("word word").first.wait_for()
    page.get_by_role("button", name="Stop").click()
    page.get_by_text("stopped").wait_for()
    assert page.locator("output").inner_text().count("word") < 2000
    context.close()


def test_viewers_are_limited_and_end_with_the_gateway(backend: Backend, tmp_path: Path) -> None:
    options = ("--server", backend.address, "--console-viewers", "2", "--exit-timeout-s", "60")
    with running_gateway(tmp_path, *options) as gateway, contextlib.ExitStack() as viewers:
        assert until(gateway.ready, 90)
        url = f"{gateway.url}/console/api/events"
        # An iterator that is dropped closes its connection.
        streams = [viewers.enter_context(httpx.stream("GET", url, timeout=30)).iter_lines() for _ in range(2)]
        frames = [json.loads(next(each)[6:]) for each in streams]
        assert {"charts", "history", "models", "servers"} <= frames[0].keys()
        refused = gateway.get("/console/api/events")
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "10")
        assert "console_viewers, 2" in refused.json()["error"]["message"]
        gateway.process.terminate()
        assert gateway.process.wait(30) == 0
