// The same call as curl, with the openai library, and with tidal_client.

/** A text as a literal of Python. */
export function literal(text) {
  // JSON's escapes are Python's, but for surrogates in pairs, which JSON.stringify leaves as characters.
  return JSON.stringify(text);
}

/** A value of JSON as Python. */
export function python(value) {
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value === "object") {
    return `{${Object.entries(value).map(([name, each]) => `${literal(name)}: ${python(each)}`).join(", ")}}`;
  }
  return typeof value === "string" ? literal(value) : String(value);
}

/** The call as a command of curl. */
export function curl(call, keys) {
  const parts = [`curl${call.document?.stream ? " -N" : ""} ${quoted(location.origin + call.path)}`];
  if (keys) parts.push('-H "Authorization: Bearer $TIDAL_API_KEY"');
  if (call.form) {
    for (const [name, value] of Object.entries(call.form)) parts.push(`-F ${quoted(`${name}=${value}`)}`);
    parts.push(`-F ${quoted(`image=@${call.file?.name ?? "image.png"}`)}`);
  } else {
    parts.push("-H 'Content-Type: application/json'", `-d ${quoted(JSON.stringify(call.document))}`);
  }
  return parts.join(" \\\n  ");
}

/** The call with the openai library. */
export function openai(call, keys) {
  const head = [
    ...(keys ? ["import os"] : []),
    ...(call.form ? ["import pathlib"] : []),
    ...(keys || call.form ? [""] : []),
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${literal(`${location.origin}/v1`)}, api_key=${keys ? 'os.environ["TIDAL_API_KEY"]' : '"none"'})`,
  ];
  return [...head, ...body(call)].join("\n");
}

/** The call with tidal_client, which connects to the server itself. */
export function tidalClient(call, lines, imports, server) {
  const head = [...(imports ?? []), ...(imports ? [""] : []), "from tidal_client import Client", ""];
  return [...head, `with Client(${literal(`grpc://${server}`)}) as client:`, ...lines.map((each) => `    ${each}`)].join("\n");
}

function body(call) {
  const own = call.document;
  if (call.path === "/v1/chat/completions") {
    return [
      `stream = client.chat.completions.create(${keywords(own)})`,
      "for part in stream:",
      '    print(part.choices[0].delta.content or "", end="", flush=True)',
    ];
  }
  if (call.path === "/v1/completions") {
    return [
      `stream = client.completions.create(${keywords(own)})`,
      "for part in stream:",
      '    print(part.choices[0].text, end="", flush=True)',
    ];
  }
  if (call.path === "/v1/embeddings") {
    return [`answer = client.embeddings.create(${keywords(own)})`, "print([each.embedding for each in answer.data])"];
  }
  if (call.form) {
    const file = literal(call.file?.name ?? "image.png");
    return [
      `files = {"image": pathlib.Path(${file}).read_bytes()}`,
      'headers = {"Content-Type": "multipart/form-data"}',
      `print(client.post("/classify", cast_to=object, body=${python(call.form)}, files=files, options={"headers": headers}))`,
    ];
  }
  const path = call.path.startsWith("/v1/") ? call.path.slice(3) : location.origin + call.path;
  return [`print(client.post(${literal(path)}, cast_to=object, body=${python(own)}))`];
}

function keywords(document) {
  return Object.entries(document).map(([name, value]) => `${name}=${python(value)}`).join(", ");
}

function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}
