"""A stand-in for encoders of every task on a real tritonserver: outputs are functions of each row's text.

`text_input` that contains `refuse` fails as Tidal's models refuse a row. `hold` is answered once the file `release`
exists beside `log_file`, after a minute at the latest. `rows` is logged to `log_file` (a parameter of
the model), one line per request.
"""

import json
import os
import time

import numpy as np
import triton_python_backend_utils as pb_utils

DIMENSIONS = 16


def vector(text, dimensions=DIMENSIONS):
    """A normalised vector that depends on the text only."""
    seed = int.from_bytes(text[:6].ljust(6, b"\0"), "big") + len(text)
    found = np.random.default_rng(seed).standard_normal(DIMENSIONS).astype(np.float32)[:dimensions]
    return found / np.linalg.norm(found)


def entities(text):
    """Capitalised words, with offsets in characters."""
    found, start = [], 0
    for word in text.split(" "):
        if word[:1].isupper():
            end = start + len(word)
            found.append({"label": "NAME", "score": 0.5, "start": start, "end": end, "text": word})
        start += len(word) + 1
    return found


def answers(question, context, top_k):
    """Words of the context that the question contains."""
    found, start = [], 0
    for word in context.split(" "):
        if word and word in question:
            found.append({"answer": word, "score": len(word) / 100, "start": start, "end": start + len(word)})
        start += len(word) + 1
    return sorted(found, key=lambda each: -each["score"])[:top_k]


def masks(text, top_k):
    """Tokens `0`, `1`, … for each mask."""
    predictions = [{"token": str(i), "token_id": i, "score": 1 / (i + 2)} for i in range(top_k)]
    return [predictions] * text.count("[MASK]")


def _column(values):
    return np.array([[json.dumps(value).encode()] for value in values], object)


def _outputs(texts, pairs, options):
    dimensions = int(options.get("dimensions", DIMENSIONS))
    prompt = str(options.get("prompt", "")).encode()
    vectors = np.stack([vector(prompt + text, dimensions) for text in texts])
    decoded = [text.decode() for text in texts]
    scores = np.array([[len(pair) - text.count(b"x")] for text, pair in zip(texts, pairs, strict=True)], np.float32)
    top_k = int(options.get("top_k", 2))
    longest = max(len(set(text)) for text in texts)
    terms = [sorted(set(text)) + [-1] * (longest - len(set(text))) for text in texts]
    found = [] if options.get("aggregation") == "empty" else [entities(text) for text in decoded]
    threshold = float(options.get("threshold", 0.5))
    return {
        "embedding": vectors,
        "embedding_fp16": vectors.astype(np.float16),
        "embedding_int8": np.round(vectors * 127).astype(np.int8),
        "embedding_binary": np.packbits(vectors > 0, axis=1),
        "score": scores,
        "entities": _column(found),
        "answers": _column(answers(t, p.decode(), top_k) for t, p in zip(decoded, pairs, strict=True)),
        "answer": np.array([[b"-"]] * len(texts), object),
        "predictions": _column(masks(text, top_k) for text in decoded),
        "indices": np.array(terms, np.int32),
        "weights": np.array([[0 if term < 0 else term / 2 for term in row] for row in terms], np.float32),
        "labels": _column([w for w in t.split() if len(w) / 10 >= threshold] for t in decoded),
        "label": np.array([[b"most"]] * len(texts), object),
        "probabilities": np.full((len(texts), 2), 0.5, np.float32),
    }


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.log_file = config["parameters"]["log_file"]["string_value"]
        self.release_file = os.path.join(os.path.dirname(self.log_file), "release")
        self.declared = {output["name"] for output in config["output"]}

    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        texts = [bytes(v) for v in pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy().reshape(-1)]
        given = pb_utils.get_input_tensor_by_name(request, "text_pair")
        pairs = [b""] * len(texts) if given is None else [bytes(v) for v in given.as_numpy().reshape(-1)]
        with open(self.log_file, "a") as log:
            log.write(f"{len(texts)}\n")
        for name, column in (("text_input", texts), ("text_pair", pairs)):
            for row, text in enumerate(column):
                if b"refuse" in text:
                    return _failure(f"{name} row {row} is empty; accepted: a text", pb_utils.TritonError.INVALID_ARG)
                if text == b"unavailable":
                    return _failure("the queue is full", pb_utils.TritonError.UNAVAILABLE)
        end = time.monotonic() + 60
        while b"hold" in texts and not os.path.exists(self.release_file) and time.monotonic() < end:
            time.sleep(0.02)
        time.sleep(sum(b"slow" in text for text in texts) * 0.05)
        outputs = _outputs(texts, pairs, json.loads(request.parameters()))
        wanted = self.declared.intersection(request.requested_output_names())
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, outputs[name]) for name in wanted])


def _failure(message, code):
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(message, code))
