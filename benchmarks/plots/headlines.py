"""One picture for each system, for README and docs: what Tidal gains or loses, from the committed results.

Each is written as SVG for light and for dark pages. `python -m benchmarks.redraw` draws them.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.plots import style
from benchmarks.report import RESULTS

_THEMES = {"light": ("#24292f", "#57606a"), "dark": ("#f0f6fc", "#9198a1")}


@dataclass(frozen=True, slots=True)
class Headline:
    """Bars of a picture.

    Attributes:
        title: Title of the picture.
        unit: Unit of the values, and which direction is better.
        groups: Name of each case, from top to bottom, with the rounds of each system.
        tidal: Name of the system that is Tidal.
        variants: Names of those that are Tidal with a part changed.
    """

    title: str
    unit: str
    groups: Mapping[str, Mapping[str, Sequence[float]]]
    tidal: str
    variants: Sequence[str] = ()


def write(folder: Path) -> list[Path]:
    """Draw all pictures into a folder; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, (benchmark, make) in HEADLINES.items():
        document = json.loads((RESULTS / f"{benchmark}.json").read_text(encoding="utf-8"))
        headline = make(document["measured"])
        for theme in _THEMES:
            written.append(folder / f"{name}-{theme}.svg")
            _draw(headline, document["machine"], theme, written[-1])
    return written


@style.styled
def _draw(headline: Headline, machine: Mapping[str, Any], theme: str, file: Path) -> None:
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.patches import Patch

    text, quiet = _THEMES[theme]
    names = list(dict.fromkeys(name for systems in headline.groups.values() for name in systems))
    colours = style.colours(names, [headline.tidal], headline.variants)
    bars = sum(len(systems) for systems in headline.groups.values())
    inked: dict[Any, Any] = {"text.color": text, "axes.labelcolor": quiet, "xtick.color": quiet, "ytick.color": text}
    inked |= {"axes.edgecolor": quiet, "axes.grid": False, "font.size": 9.0}
    with rc_context(inked):
        figure = Figure(figsize=(7.6, 1.25 + 0.2 * bars + 0.12 * len(headline.groups)), layout="constrained")
        axes = figure.subplots()
        at, ticks = 0.0, {}
        for group, systems in headline.groups.items():
            first = at
            for name in (each for each in colours if each in systems):
                _bar(axes, at, systems[name], colours[name], text)
                at += 1
            ticks[group] = (first + at - 1) / 2
            at += 0.7
        axes.set_yticks(list(ticks.values()), list(ticks))
        axes.invert_yaxis()
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0)
        axes.margins(x=0.1)
        axes.set(xlabel=headline.unit, xlim=(0, None))
        height = figure.get_size_inches()[1]
        figure.text(0.01, 1 - 0.04 / height, headline.title, fontsize=11, fontweight="bold", va="top")
        handles = [Patch(color=colour, label=name) for name, colour in colours.items()]
        at_top = (0, 1 - 0.26 / height)
        figure.legend(handles=handles, ncols=len(handles), labelcolor=text, loc="upper left", bbox_to_anchor=at_top)
        figure.text(0.01, 0.02 / height, _below(machine), fontsize=6, color=quiet)
        engine = figure.get_layout_engine()
        assert isinstance(engine, ConstrainedLayoutEngine)
        engine.set(rect=(0, 0.16 / height, 1, 1 - 0.66 / height))
        figure.savefig(file, transparent=True, metadata={"Date": None})


def _bar(axes: Any, at: float, rounds: Sequence[float], colour: str, text: str) -> None:
    """The median over rounds with its figure, and a whisker over their range."""
    middle = statistics.median(rounds)
    axes.barh(at, middle, 0.82, color=colour)
    if len(rounds) > 1:
        spread = ([middle - min(rounds)], [max(rounds) - middle])
        axes.errorbar([middle], [at], xerr=spread, fmt="none", ecolor=text, elinewidth=0.8, capsize=2)
    axes.annotate(style.written(middle), (max(rounds), at), (5, 0), textcoords="offset points", va="center", fontsize=8)


def _below(machine: Mapping[str, Any]) -> str:
    packages = machine["packages"]
    versions = ", ".join(f"{name} {packages[name]}" for name in ("openvino", "torch") if name in packages)
    return (
        f"Medians and ranges of the rounds. {machine['date']}, {machine['cores']} cores of {machine['cpu']}, {versions}"
    )


def _serving(measured: Mapping[str, Any]) -> Headline:
    names = {"tidal": "Tidal, backend arlo", "bare": "the best bare Python model"}
    groups = {
        f"{count} in flight": {label: [each["per_second"] for each in cell[key]] for key, label in names.items()}
        for count, cell in measured["throughput"].items()
    }
    return Headline(
        "Answers per second of one encoder", "answers per second (higher is better)", groups, names["tidal"]
    )


def _arlo(measured: Mapping[str, Any]) -> Headline:
    names = {"Tidal polymorphic": "Tidal", "ST": "padded to 512 tokens", "DT": "one engine for all lengths"}
    groups = {}
    for case in ("40 % of ST", "70 % of ST", "40 % of DT", "70 % of DT", "90 % of DT"):
        cell = measured["cells"][f"{case}, poisson"]
        load, base = case.replace(" %", "%").split(" of ")
        against = "padding" if base == "ST" else "one engine"
        groups[f"{load} of what\n{against} answers"] = {
            label: [each["mean_ms"] for each in cell[name]["rounds"]] for name, label in names.items() if name in cell
        }
    title = "Encoder, inputs of varying length: mean latency by load"
    return Headline(title, "mean latency, ms (lower is better)", groups, "Tidal")


def _tabi(measured: Mapping[str, Any]) -> Headline:
    groups = {}
    for task, found in measured["tasks"].items():
        large, ours = (found["systems"][name]["accuracy"] for name in ("large", "Tabi"))
        ratios = found["mean_vs_large"]["Tabi"]
        mean = found["systems"]["large"]["mean_ms"]
        groups[f"{task}\naccuracy {ours:.1%}, large {large:.1%}"] = {
            "Tidal: small model first": [ratio * mean for ratio in ratios],
            "large model for every query": [mean],
        }
    title = "Cascades of classifiers: mean latency of a query"
    return Headline(title, "mean latency, ms (lower is better)", groups, "Tidal: small model first")


def _pets(measured: Mapping[str, Any]) -> Headline:
    names = {"PetS": "Tidal: tasks share one encoder", "SeqS": "a full model for each task"}
    cases = {
        "32 tasks, 16 tokens": "all,16 (32 x 1, 16 tokens)",
        "32 tasks, 32 tokens": "all,32 (32 x 1, 32 tokens)",
        "1 task, 32 tokens": "tasks (1 x 1, 32 tokens)",
    }
    groups = {
        title: {label: measured["throughput"][case][name]["per_second"] for name, label in names.items()}
        for title, case in cases.items()
    }
    return Headline(
        "Fine-tuned tasks: queries per second", "queries per second (higher is better)", groups, names["PetS"]
    )


def _otas(measured: Mapping[str, Any]) -> Headline:
    names = {
        "OTAS (pareto)": "Tidal",
        "OTAS (paper)": "published policy",
        "PetS (0)": "γ 0 always",
        "INFaaS, all resident": "three sizes of the model",
    }
    rounds = measured["live"]["rounds"]
    groups = {
        f"load {scale}": {
            label: [100 * (found := each["outcomes"][scale][name])["utility"] / found["offered"] for each in rounds]
            for name, label in names.items()
        }
        for scale in sorted(rounds[0]["outcomes"], key=float)
    }
    title = "Vision transformer under varying load: utility earned"
    return Headline(title, "% of the utility offered (higher is better)", groups, "Tidal", ["published policy"])


def _flover(measured: Mapping[str, Any]) -> Headline:
    names = {"tidal": "Tidal", "genai": "OpenVINO GenAI", "instances": "a thread for each request"}
    cases = {
        "8 texts of 512 tokens,\nall at once": "8 at once",
        "32 texts of 512 tokens,\nall at once": "32 at once",
        "32 texts of 192 tokens,\n20 ms apart": "λ 20 ms",
    }
    groups = {
        title: {
            label: [each["total_s"] for each in measured["outcomes"][case][name]]
            for name, label in names.items()
            if name in measured["outcomes"][case]
        }
        for title, case in cases.items()
    }
    title = "Text generation, a decoder of GPT-2 small's size: time for all texts"
    return Headline(title, "total time, s (lower is better)", groups, "Tidal")


#: Name of each picture, the benchmark whose results it shows, and what it takes from them.
HEADLINES: dict[str, tuple[str, Callable[[Mapping[str, Any]], Headline]]] = {
    "serving": ("intel-xeon-amx/serving_path", _serving),
    "arlo": ("arlo", _arlo),
    "tabi": ("tabi", _tabi),
    "pets": ("pets", _pets),
    "otas": ("otas", _otas),
    "flover": ("flover", _flover),
}
