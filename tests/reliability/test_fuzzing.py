"""Malformed requests: the same ones for a seed, of every kind, none of them valid by accident."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from reliability.fuzzing.mutations import MUTATIONS, valid
from reliability.fuzzing.sending import grpc_requests, harmful, http_requests, mismatched_requests
from reliability.fuzzing.wire import to_grpc, to_http


def test_equal_seeds_give_equal_requests() -> None:
    once, again, other = (list(http_requests(seed, 200)) for seed in (1, 1, 2))
    assert once == again
    assert once != other
    assert list(grpc_requests(1, 200)) == list(grpc_requests(1, 200))
    assert list(mismatched_requests(1, 50)) == list(mismatched_requests(1, 50))


def test_every_kind_occurs_to_every_model() -> None:
    seen = Counter(what for what, _ in (*http_requests(3, 1500), *mismatched_requests(3, 200)))
    for model, mutations in MUTATIONS.items():
        for mutation in mutations:
            assert seen[f"{model} {mutation.__name__}"], (model, mutation.__name__)
    assert seen["generation"] > 40


@pytest.mark.parametrize("model", MUTATIONS)
def test_each_mutation_changes_the_request(model: str) -> None:
    draw = random.Random(4)
    untouched = to_http(valid(model, 5))
    assert untouched == to_http(valid(model, 5))
    for mutation in MUTATIONS[model]:
        for _ in range(20):
            wire = valid(model, 5)
            mutation(draw, wire)
            assert to_http(wire) != untouched, mutation.__name__


def test_only_texts_and_images_can_harm_their_batch() -> None:
    assert {model for model in MUTATIONS if not harmful(model)} == {"engine"}


def test_a_valid_request_is_one_message() -> None:
    message = to_grpc(valid("tasks", 1))
    assert message.parameters["task"].string_param == "bitfit_0"
    assert len(message.raw_input_contents) == len(message.inputs) == 1
