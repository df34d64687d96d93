"""Open-loop load generator: schedules of arrivals, and the result of each request. Imports only the client.

from tidal_client.load import Schedule, poisson, run_load, summarise, text_inputs

schedule = Schedule(poisson(100, seconds=30), text_inputs(["play some jazz", "wake me up"]))
print(summarise(run_load("http://127.0.0.1:8000", "intents", schedule), slo_ms=50))
"""

from __future__ import annotations

from tidal_client.load.arrivals import Times, bursty, mean_rate, poisson, rescaled
from tidal_client.load.inputs import id_inputs, image_files, made_images, prompt_inputs, text_inputs
from tidal_client.load.mix import RequestVariant, parse_mix, read_mix
from tidal_client.load.result import Generations, LoadResult
from tidal_client.load.run import Schedule, run_generations, run_load
from tidal_client.load.summary import LoadSummary, summarise
from tidal_client.load.traces import read_trace

__all__ = [
    "Generations",
    "LoadResult",
    "LoadSummary",
    "RequestVariant",
    "Schedule",
    "Times",
    "bursty",
    "id_inputs",
    "image_files",
    "made_images",
    "mean_rate",
    "parse_mix",
    "poisson",
    "prompt_inputs",
    "read_mix",
    "read_trace",
    "rescaled",
    "run_generations",
    "run_load",
    "summarise",
    "text_inputs",
]
