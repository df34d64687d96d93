// The playground: a form for each call, its answer, and the same call as code.

import { CALLS } from "./calls.js";
import { element, milliseconds } from "./dom.js";
import { RESULTS } from "./results.js";
import { curl, openai, tidalClient } from "./snippets.js";
import { events, send } from "./stream.js";

const LANGUAGES = [["curl", "curl"], ["openai", "openai"], ["tidal", "tidal_client"]];

export class Playground {
  constructor(container, context) {
    this.container = container;
    this.context = context; // {keys, server}
    this.language = "curl";
  }

  /** Show the forms for a model; what was typed stays if it is the same model. */
  show(model) {
    const calls = CALLS.filter((each) => each.applies(model));
    const same = JSON.stringify([model.name, model.tasks, calls.map((each) => each.name)]);
    if (same === this.shown) return;
    this.shown = same;
    this.stop();
    this.model = model;
    this.calls = calls;
    if (!calls.length) {
      this.container.replaceChildren(element("p", { class: "note" }, reason(model)));
      return;
    }
    this.use(calls[0]);
  }

  use(call) {
    this.stop();
    this.call = call;
    this.inputs = {};
    this.file = null;
    this.preview = element("img", { class: "preview", alt: "the chosen image", hidden: true });
    this.run = element("button", { type: "submit", class: "primary" }, "Send");
    this.end = element("button", { type: "button", disabled: true, onclick: () => this.stop() }, "Stop");
    this.output = element("output", { "aria-live": "polite", "aria-label": "Answer" });
    this.code = element("pre", { tabIndex: 0, "aria-label": "The same call as code" });
    const fields = [this.chooser(), this.tasks(), ...this.fields()];
    const form = element("form", { class: "fields", onsubmit: (event) => this.submit(event), oninput: () => this.write() },
      ...fields, element("div", { class: "row" }, this.run, this.end), this.output);
    const code = element("div", {}, this.languages(), this.code);
    this.container.replaceChildren(element("div", { class: "columns" }, form, code));
    this.write();
  }

  chooser() {
    if (this.calls.length < 2) return null;
    const choices = this.calls.map((each) => element("option", { selected: each === this.call }, each.name));
    const select = element("select", { id: "call", onchange: () => this.use(this.calls[select.selectedIndex]) }, ...choices);
    return field("call", "Call", select);
  }

  tasks() {
    const tasks = this.model.tasks ?? [];
    if (!tasks.length && this.model.system !== "pets" && this.model.system !== "otas") return null;
    const optional = this.model.system === "flover" ? [element("option", { value: "" }, "none")] : [];
    const choices = [...optional, ...tasks.map((each) => element("option", { value: each }, each))];
    // A server that does not report its tasks, or has more than it reports: any name can be typed.
    const few = tasks.length && tasks.length === this.model.task_count;
    const input = few
      ? element("select", { id: "task" }, ...choices)
      : element("input", { id: "task", value: tasks[0] ?? "", autocomplete: "off", spellcheck: false, "list": "task-names" });
    this.inputs.task = input;
    const names = few ? null : element("datalist", { id: "task-names" }, ...choices);
    const made = field("task", "Task", input);
    if (names) {
      made.append(names);
      input.setAttribute("list", "task-names");
    }
    return made;
  }

  fields() {
    const short = [];
    const made = [];
    for (const each of this.call.fields) {
      if (each.needs && !this.model.inputs.includes(each.needs)) continue;
      const input = this.input(each);
      this.inputs[each.id] = input;
      (each.kind === "number" ? short : made).push(field(each.id, each.label, input));
      if (each.kind === "file") made.push(this.preview);
    }
    if (short.length) made.push(element("div", { class: "row" }, ...short));
    return made;
  }

  input(each) {
    const id = each.id;
    if (each.kind === "area") return element("textarea", { id, value: each.value, rows: Math.max(2, each.value.split("\n").length) });
    if (each.kind === "file") {
      return element("input", { id, type: "file", accept: "image/png,image/jpeg,image/webp", required: true, onchange: (event) => this.choose(event) });
    }
    return element("input", { id, type: each.kind, value: each.value, min: each.kind === "number" ? "0" : null, step: each.step ?? null, autocomplete: "off" });
  }

  choose(event) {
    this.file = event.target.files[0] ?? null;
    URL.revokeObjectURL(this.preview.src);
    this.preview.hidden = !this.file;
    if (this.file) this.preview.src = URL.createObjectURL(this.file);
    this.write();
  }

  languages() {
    const choices = LANGUAGES.map(([id, name]) => element("label", {},
      element("input", {
        type: "radio", name: "language", value: id, checked: id === this.language,
        onchange: () => { this.language = id; this.write(); },
      }), name));
    const copy = element("button", { type: "button", onclick: () => this.copy(copy) }, "Copy");
    return element("fieldset", { "aria-label": "Language of the code" }, ...choices, copy);
  }

  async copy(button) {
    try {
      await navigator.clipboard.writeText(this.code.textContent);
      button.textContent = "Copied";
    } catch { // only pages of https and of this machine may write to the clipboard
      getSelection().selectAllChildren(this.code);
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  }

  values() {
    const found = { model: this.model.name, task: "" };
    for (const [id, input] of Object.entries(this.inputs)) found[id] = input.type === "file" ? this.file : input.value;
    return found;
  }

  write() {
    const values = this.values();
    const call = this.call.request(values);
    const { keys, server } = this.context;
    this.code.textContent = {
      curl: () => curl(call, keys),
      openai: () => openai(call, keys),
      tidal: () => tidalClient(call, this.call.client(values), this.call.imports, server()),
    }[this.language]();
  }

  async submit(event) {
    event.preventDefault();
    this.stop();
    const values = this.values();
    const call = this.call.request(values);
    const abort = new AbortController();
    this.abort = abort;
    this.run.disabled = true;
    this.end.disabled = false;
    this.output.replaceChildren(element("p", { class: "meta" }, "waiting for the answer"));
    const began = performance.now();
    try {
      const response = await send(call.path, { method: "POST", signal: abort.signal, ...content(call) });
      if (this.call.show === "stream") await this.stream(response, began);
      else {
        const answer = await response.json();
        const took = element("p", { class: "meta" }, `${milliseconds(performance.now() - began)} in the browser`);
        this.output.replaceChildren(...RESULTS[this.call.show](answer, values), took);
      }
    } catch (error) {
      if (this.abort === abort) {
        const stopped = error.name === "AbortError";
        this.output.append(element("p", { class: stopped ? "meta" : "error" }, stopped ? "stopped" : error.message));
        if (!stopped) this.output.replaceChildren(this.output.lastChild);
      }
    } finally {
      if (this.abort === abort) this.finished();
    }
  }

  async stream(response, began) {
    const text = element("div", { class: "answer" });
    const meta = element("p", { class: "meta" });
    // Every token would be read aloud by itself: the whole text is announced at its end.
    this.output.setAttribute("aria-busy", "true");
    this.output.replaceChildren(text, meta);
    let first = null;
    let parts = 0;
    let reason = "";
    for await (const data of events(response)) {
      if (data === "[DONE]") break;
      const part = JSON.parse(data);
      if (part.error) throw new Error(part.error.message);
      const choice = part.choices[0];
      first ??= performance.now() - began;
      parts += 1;
      reason = choice.finish_reason ?? reason;
      text.append(choice.delta?.content ?? choice.text ?? "");
      const seconds = (performance.now() - began - first) / 1000;
      const pace = parts > 2 && seconds > 0 ? `, ${((parts - 1) / seconds).toFixed(0)} parts/s` : "";
      meta.textContent = `first part after ${milliseconds(first)}${pace}${reason ? `, ended by ${reason}` : ""}`;
    }
  }

  stop() {
    const abort = this.abort;
    abort?.abort();
  }

  finished() {
    this.run.disabled = false;
    this.end.disabled = true;
    this.output.removeAttribute("aria-busy");
  }
}

function content(call) {
  if (!call.form) return { headers: { "content-type": "application/json" }, body: JSON.stringify(call.document) };
  const form = new FormData();
  for (const [name, value] of Object.entries(call.form)) form.append(name, value);
  form.append("image", call.file);
  return { body: form };
}

function field(id, label, input) {
  return element("div", { class: "field" }, element("label", { htmlFor: id }, label), input);
}

function reason(model) {
  return model.state === "ready"
    ? "The playground has no form for the inputs of this model; use /v2/models."
    : "The model is not ready.";
}
