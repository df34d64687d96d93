// Requests to the gateway, and server-sent events by fetch: EventSource sends no key.

const STORED = "tidal-console-key";

/** The key of this tab; empty for none. */
export const key = {
  get: () => sessionStorage.getItem(STORED) ?? "",
  set: (value) => sessionStorage.setItem(STORED, value),
  clear: () => sessionStorage.removeItem(STORED),
};

/** An answer of the gateway that is an error. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Send a request with the key, and return the response. */
export async function send(path, options = {}) {
  const headers = { ...options.headers };
  if (key.get()) headers.authorization = `Bearer ${key.get()}`;
  const response = await fetch(path, { ...options, headers });
  if (!response.ok) throw new Refused(response.status, await message(response));
  return response;
}

/** Yield the data of each event of a response. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      text += value;
      const parts = text.split("\n\n");
      text = parts.pop();
      for (const part of parts) if (part.startsWith("data: ")) yield part.slice(6);
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}

async function message(response) {
  const text = await response.text();
  try {
    const found = JSON.parse(text);
    return found.error?.message ?? found.error ?? found.message ?? text;
  } catch {
    return text || `the gateway answered ${response.status}`;
  }
}
