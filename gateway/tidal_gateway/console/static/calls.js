// The calls that the playground can send: one entry of CALLS adds one.
//
// An entry has a `name`, the `use` of a model that it is for (or `applies`), its `fields`, `request(values)` with the
// path and the document of the gateway's API, `client(values)` with the lines of the same call by `tidal_client`, and
// `show`, the name of a function of results.js.

import { literal, python } from "./snippets.js";

const TEXT = { id: "text", label: "Text", kind: "area", value: "Wake me up at seven tomorrow." };
const PAIR = { id: "pair", label: "Second text (optional)", kind: "area", value: "", needs: "text_pair" };
const DEADLINE = { id: "latency_ms", label: "Deadline in ms (optional)", kind: "number", value: "" };
const LENGTH = { id: "max_tokens", label: "Maximum tokens", kind: "number", value: "64" };
const TEMPERATURE = { id: "temperature", label: "Temperature", kind: "number", value: "0", step: "0.1" };
const PROMPT = { id: "prompt", label: "Prompt", kind: "area", value: "Once upon a time" };

const has = (model, output) => model.outputs.includes(output);
const lines = (text) => text.split("\n").map((each) => each.trim()).filter(Boolean);

/** The options of a call as lines of JSON and of Python; those without a value are left out. */
function options(values, ...names) {
  const found = {};
  for (const name of names) if (values[name] !== "" && values[name] !== undefined) found[name] = Number(values[name]);
  return found;
}

function keywords(values, ...names) {
  const own = values.task ? { task: values.task } : {};
  return Object.entries({ ...own, ...options(values, ...names) }).map(([name, value]) => `, ${name}=${python(value)}`).join("");
}

function target(values) {
  return values.task ? `${values.model}/${values.task}` : values.model;
}

function tensors(values, inputs, outputs) {
  const parameters = { ...(values.task ? { task: values.task } : {}), ...options(values, "latency_ms", "top_k") };
  return {
    path: `/v2/models/${values.model}/infer`,
    document: {
      inputs: Object.entries(inputs).map(([name, value]) => ({ name, shape: [1, 1], datatype: "BYTES", data: [value] })),
      ...(outputs ? { outputs: outputs.map((name) => ({ name })) } : {}),
      ...(Object.keys(parameters).length ? { parameters } : {}),
    },
  };
}

export const CALLS = [
  {
    name: "Classify a text",
    applies: (model) => model.uses.includes("text classification"),
    fields: [TEXT, PAIR, DEADLINE],
    request: (values) => ({
      path: "/v1/classify",
      document: {
        model: target(values),
        input: values.pair ? { text: values.text, pair: values.pair } : values.text,
        ...options(values, "latency_ms"),
      },
    }),
    client: (values) => {
      const pair = values.pair ? `, pair=${literal(values.pair)}` : "";
      return [
        `answer = client.classify(${literal(values.model)}, ${literal(values.text)}${pair}${keywords(values, "latency_ms")})`,
        "print(answer.label, answer.probabilities)",
      ];
    },
    show: "classes",
  },
  {
    name: "Classify an image",
    applies: (model) => model.uses.includes("image classification"),
    fields: [{ id: "image", label: "Image (JPEG, PNG or WebP)", kind: "file" }, DEADLINE],
    request: (values) => ({
      path: "/v1/classify",
      form: { model: target(values), ...options(values, "latency_ms") },
      file: values.image,
    }),
    client: (values) => [
      `image = pathlib.Path(${literal(values.image?.name ?? "image.png")}).read_bytes()`,
      `answer = client.classify_image(${literal(values.model)}, image${keywords(values, "latency_ms")})`,
      "print(answer.label, answer.probabilities)",
    ],
    imports: ["import pathlib"],
    show: "classes",
  },
  {
    name: "Generate a text",
    applies: (model) => model.uses.includes("generation") && model.inputs.includes("text_input"),
    fields: [PROMPT, LENGTH, TEMPERATURE],
    request: (values) => ({
      path: "/v1/completions",
      document: {
        model: target(values), prompt: values.prompt, ...options(values, "max_tokens", "temperature"), stream: true,
      },
    }),
    client: (values) => [
      `for part in client.generate_stream(${literal(values.model)}, ${literal(values.prompt)}${keywords(values, "max_tokens", "temperature")}):`,
      '    print(part.text, end="", flush=True)',
    ],
    show: "stream",
  },
  {
    name: "Chat",
    applies: (model) => model.uses.includes("chat"),
    fields: [
      { id: "system", label: "System message (optional)", kind: "text", value: "" },
      { id: "message", label: "Message", kind: "area", value: "Write one sentence about the sea." },
      LENGTH, TEMPERATURE,
    ],
    request: (values) => ({
      path: "/v1/chat/completions",
      document: {
        model: target(values), messages: messages(values), ...options(values, "max_tokens", "temperature"), stream: true,
      },
    }),
    client: (values) => [
      `messages = ${python(messages(values))}`,
      `for part in client.chat_stream(${literal(values.model)}, messages${keywords(values, "max_tokens", "temperature")}):`,
      '    print(part.text, end="", flush=True)',
    ],
    show: "stream",
  },
  {
    name: "Embed texts",
    applies: (model) => model.uses.includes("embedding"),
    fields: [{
      id: "texts", label: "Texts, one per line", kind: "area",
      value: "Wake me up at seven.\nSet an alarm for the morning.\nHow is the weather in Lima?",
    }],
    request: (values) => ({ path: "/v1/embeddings", document: { model: target(values), input: lines(values.texts) } }),
    client: (values) => [
      `vectors = client.embed(${literal(values.model)}, ${python(lines(values.texts))}${keywords(values)})`,
      "print(vectors.array.shape, vectors.array)",
    ],
    show: "vectors",
  },
  {
    name: "Rerank documents",
    applies: (model) => model.uses.includes("reranking"),
    fields: [
      { id: "query", label: "Query", kind: "text", value: "How do I set an alarm?" },
      {
        id: "documents", label: "Documents, one per line", kind: "area",
        value: "Open the clock and set an alarm for the morning.\nLima is the capital of Peru.\nTo set a timer, press start.",
      },
    ],
    request: (values) => ({
      path: "/v1/rerank",
      document: { model: target(values), query: values.query, documents: lines(values.documents) },
    }),
    client: (values) => [
      `for each in client.rerank(${literal(values.model)}, ${literal(values.query)}, ${python(lines(values.documents))}${keywords(values)}):`,
      "    print(each.score, each.document)",
    ],
    show: "ranking",
  },
  {
    name: "Extract entities",
    applies: (model) => has(model, "entities"),
    fields: [{ ...TEXT, value: "Lena flies to Lima on Friday." }, DEADLINE],
    request: (values) => tensors(values, { text_input: values.text }, ["entities"]),
    client: (values) => [
      `for each in client.entities(${literal(values.model)}, ${literal(values.text)}${keywords(values, "latency_ms")}):`,
      "    print(each.label, each.score, each.text)",
    ],
    show: "entities",
  },
  {
    name: "Answer a question",
    applies: (model) => has(model, "answers"),
    fields: [
      { id: "question", label: "Question", kind: "text", value: "Where does Lena fly?" },
      { id: "context", label: "Context", kind: "area", value: "Lena flies to Lima on Friday." },
      { id: "top_k", label: "Answers", kind: "number", value: "3" },
    ],
    request: (values) => tensors(values, { text_input: values.question, text_pair: values.context }, ["answers"]),
    client: (values) => [
      `answer = client.answer(${literal(values.model)}, ${literal(values.question)}, ${literal(values.context)}${keywords(values, "top_k")})`,
      "print(answer.text, answer.score)",
    ],
    show: "spans",
  },
  {
    name: "Send a text",
    applies: (model) => model.inputs.includes("text_input") && !model.uses.length &&
      !has(model, "entities") && !has(model, "answers"),
    fields: [TEXT, PAIR],
    request: (values) => tensors(values, { text_input: values.text, ...(values.pair ? { text_pair: values.pair } : {}) }),
    client: (values) => {
      const pair = values.pair ? `, "text_pair": np.array([[${literal(values.pair)}]])` : "";
      return [
        `inputs = {"text_input": np.array([[${literal(values.text)}]])${pair}}`,
        `print(client.infer(${literal(values.model)}, inputs${keywords(values)}))`,
      ];
    },
    imports: ["import numpy as np"],
    show: "tensors",
  },
];

function messages(values) {
  const system = values.system ? [{ role: "system", content: values.system }] : [];
  return [...system, { role: "user", content: values.message }];
}
