"""A model for tests of the gateway on a real tritonserver; the parameter `stands_for` says which of Tidal's models.

`embedding`, `rerank`, `classification` and `image` answer once, with functions of each row, so that exchanged rows are
detected. `chat` streams. A text `sleep SECONDS` answers late and logs arrival, cancellation and end to `log_file`;
`error CODE MESSAGE` fails. Parameters of the request are returned where there is a text to return them in.
"""

import json
import os
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils

DIMENSIONS = 8


def embedding(text, dimensions=DIMENSIONS):
    """What the double answers for a text, which tests compute too."""
    rng = np.random.default_rng(list(text.encode()) or [0])
    vector = rng.standard_normal(DIMENSIONS).astype(np.float32)[:dimensions]
    return vector / np.linalg.norm(vector)


def score(query, document):
    """Share of the document's words that the query has."""
    words = document.split()
    return sum(word in query.split() for word in words) / max(1, len(words))


def texts_of(request, name):
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return None if tensor is None else [bytes(each).decode() for each in tensor.as_numpy().reshape(-1)]


def error_of(code, message):
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(message, getattr(pb_utils.TritonError, code)))


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self.kind = parameters["stands_for"]["string_value"]
        self.log_file = parameters["log_file"]["string_value"]

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            text = (texts_of(request, "text_input") or texts_of(request, "messages") or [""])[0]
            command, _, rest = text.partition(" ")
            if command == "error":
                code, _, message = rest.partition(" ")
                self._send(sender, error_of(code, message))
            elif command == "die":
                os._exit(1)
            elif self.kind == "chat":
                threading.Thread(target=self._chat, args=(sender, request)).start()
            elif command == "sleep":
                seconds, identifier = float(rest.split()[0]), request.request_id()
                answer = self._answer(request)
                threading.Thread(target=self._late, args=(sender, answer, identifier, seconds)).start()
            else:
                self._send(sender, self._answer(request))

    def _answer(self, request):
        options = json.loads(request.parameters() or "{}")
        found = getattr(self, f"_{self.kind}")(request, options)
        wanted = request.requested_output_names()
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor(name, value) for name, value in found.items() if name in wanted]
        )

    def _embedding(self, request, options):
        texts = texts_of(request, "text_input")
        if texts is None:
            ids = pb_utils.get_input_tensor_by_name(request, "input_ids").as_numpy()
            mask = pb_utils.get_input_tensor_by_name(request, "attention_mask")
            mask = np.ones_like(ids) if mask is None else mask.as_numpy()
            texts = [" ".join(str(each) for each in row[own > 0]) for row, own in zip(ids, mask, strict=True)]
        dimensions = int(options.get("dimensions", DIMENSIONS))
        return {
            "embedding": np.stack([embedding(text, dimensions) for text in texts]),
            "input_tokens": np.array([[len(text.split())] for text in texts], np.int32),
        }

    def _rerank(self, request, options):
        pairs = list(zip(texts_of(request, "text_input"), texts_of(request, "text_pair"), strict=True))
        scores = np.array([[score(*pair)] for pair in pairs], np.float32)
        tokens = np.array([[len(query.split()) + len(text.split())] for query, text in pairs], np.int32)
        return {"score": scores, "logits": scores * 10 - 5, "input_tokens": tokens}

    def _classification(self, request, options):
        texts, pairs = texts_of(request, "text_input"), texts_of(request, "text_pair")
        lengths = np.array([len(text) + len(pairs[row] if pairs else "") for row, text in enumerate(texts)])
        return self._classes(lengths, options)

    def _image(self, request, options):
        images = pb_utils.get_input_tensor_by_name(request, "image").as_numpy().reshape(-1)
        return self._classes(np.array([len(bytes(each)) for each in images]), options)

    def _classes(self, lengths, options):
        logits = np.stack([10.0 - lengths, lengths - 10.0], axis=1).astype(np.float32)
        exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
        # The task and the options are part of the label, so that a client sees them.
        own = {name: value for name, value in options.items() if name != "tidal_coded_errors"}
        suffix = f" {json.dumps(own, sort_keys=True)}" if own else ""
        labels = [("short" if length <= 10 else "long") + suffix for length in lengths]
        return {
            "logits": logits,
            "probabilities": exponentials / exponentials.sum(axis=1, keepdims=True),
            "label": np.array([[label.encode()] for label in labels], object),
            "input_tokens": np.ones((len(lengths), 1), np.int32),
        }

    def _chat(self, sender, request):
        options = json.loads(request.parameters() or "{}")
        messages = json.loads(texts_of(request, "messages")[0])
        tools = texts_of(request, "tools")
        stream = bool(pb_utils.get_input_tensor_by_name(request, "stream").as_numpy()[0])
        last = messages[-1]["content"]
        own = {name: value for name, value in options.items() if name not in ("n", "tidal_coded_errors")}
        words = f"{len(messages)} messages, {len(json.loads(tools[0])) if tools else 0} tools, {last}".split(" ")
        words += [json.dumps(own, sort_keys=True)] if own else []
        if last.startswith("die after"):
            words = ["a"] * int(last.split()[2]) + ["die"]
        if last.startswith("forever"):
            words = ["word" * (25_000 if last == "forever large" else 1)] * 2000
        identifier = request.request_id()
        self._log(f"received {identifier}")
        parts = [word if number == 0 else f" {word}" for number, word in enumerate(words)]
        for number, part in enumerate(parts):
            if sender.is_cancelled():
                self._log(f"cancelled {identifier}")
                error = pb_utils.TritonError(
                    "[CANCELLED] the client cancelled the request", pb_utils.TritonError.CANCELLED
                )
                return self._send(sender, pb_utils.InferenceResponse(error=error))
            if part.strip() == "die":
                os._exit(1)
            last_one = number == len(parts) - 1
            if stream or last_one:
                text = part if stream else "".join(parts)
                count, texts = len(parts), int(options.get("n", 1))
                rows = [[index] for index in range(texts)] if stream else [list(range(texts))]
                ended = len(messages) if last_one else None
                for own in rows:
                    outputs = self._part(own, text, 1 if stream else count, ended, count)
                    if last_one and own == rows[-1]:
                        self._log(f"ended {identifier}")
                        return self._send(sender, pb_utils.InferenceResponse(outputs))
                    sender.send(pb_utils.InferenceResponse(outputs))
            time.sleep(0.01)

    def _part(self, rows, text, tokens, prompt_tokens, count):
        found = {
            "index": np.array(rows, np.int32),
            "text_output": np.array([text.encode()] * len(rows), object),
            "token_ids": np.arange(tokens * len(rows), dtype=np.int64),
        }
        if prompt_tokens is not None:
            found["finish_reason"] = np.array([b"eos"] * len(rows), object)
            found["prompt_tokens"] = np.array([prompt_tokens] * len(rows), np.int32)
            found["generated_tokens"] = np.array([count] * len(rows), np.int32)
        return [pb_utils.Tensor(name, value) for name, value in found.items()]

    def _late(self, sender, answer, identifier, seconds):
        self._log(f"received {identifier}")
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if sender.is_cancelled():
                self._log(f"cancelled {identifier}")
                answer = error_of("CANCELLED", "the request was cancelled")
                break
            time.sleep(0.01)
        self._send(sender, answer)

    def _log(self, line):
        with open(self.log_file, "a") as log:
            log.write(f"{line} {time.time()}\n")

    def _send(self, sender, response):
        sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
