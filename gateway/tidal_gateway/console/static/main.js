// The console: reads the gateway's events and shows the models, the charts and the playground.

import { Charts } from "./charts.js";
import { counted, element, milliseconds, number } from "./dom.js";
import { Playground } from "./playground.js";
import { events, key, Refused, send } from "./stream.js";

const KEPT_S = 125;
const RETRY_MS = 2000;

const find = (id) => document.getElementById(id);
const state = { frame: null, charts: {}, history: [], selected: decodeURIComponent(location.hash.slice(1)), rows: new Map() };
const context = { keys: false, server: () => serverAddress() };
const charts = new Charts(find("charts"));
const playground = new Playground(find("playground-body"), context);

async function start() {
  context.keys = (await (await fetch("/console/api/access")).json()).keys;
  find("key-button").hidden = !context.keys;
  find("key-button").addEventListener("click", async () => {
    key.clear();
    await askForKey("");
    location.reload();
  });
  addEventListener("hashchange", () => select(decodeURIComponent(location.hash.slice(1)), false));
  for (;;) {
    if (context.keys && !key.get()) await askForKey("");
    try {
      for await (const data of events(await send("/console/api/events"))) receive(JSON.parse(data));
    } catch (error) {
      if (error instanceof Refused && error.status === 401) {
        key.clear();
        await askForKey("This key is not known. Enter another one.");
        continue;
      }
      status(error instanceof Refused ? error.message : "the gateway does not answer", true);
    }
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}

function askForKey(problem) {
  const dialog = find("key-dialog");
  const input = find("key");
  input.value = "";
  find("key-error").textContent = problem;
  status("waiting for a key", false);
  if (!dialog.open) dialog.showModal();
  return new Promise((resolve) => {
    find("key-form").onsubmit = () => {
      key.set(input.value.trim());
      input.value = "";
      resolve();
    };
    dialog.oncancel = (event) => event.preventDefault(); // there is nothing to see without a key
  });
}

function status(text, bad) {
  find("status").dataset.state = bad ? "bad" : "good";
  if (find("status").textContent !== text) find("status").textContent = text;
}

function receive(frame) {
  if (frame.charts) {
    state.charts = frame.charts;
    if (frame.history.length) state.history = frame.history;
  }
  state.frame = frame;
  state.history.push({ time: frame.time, models: frame.models });
  state.history = state.history.filter((each) => each.time > frame.time - KEPT_S && each.time <= frame.time);
  const ready = frame.models.filter((each) => each.state === "ready").length;
  const up = frame.servers.filter((each) => each.up).length;
  status(`${ready} of ${frame.models.length} models ready, ${up} of ${frame.servers.length} servers up`, up < frame.servers.length);
  const problems = frame.servers.filter((each) => !each.up || !each.metrics).map((each) =>
    `${each.name}: ${each.up ? "no metrics" : "down"}${each.reason ? `, ${each.reason}` : ""}`);
  find("servers").textContent = problems.join("; ");
  table(frame.models);
  const names = frame.models.map((each) => each.name);
  const named = decodeURIComponent(location.hash.slice(1)); // may have changed before the first frame
  if (!names.includes(state.selected)) state.selected = names.includes(named) ? named : names[0] ?? "";
  detail();
}

/** Update the table in place: a row that has the focus keeps it. */
function table(models) {
  const body = document.querySelector("#models tbody");
  const names = models.map((each) => each.name);
  for (const [name, row] of state.rows) if (!names.includes(name)) { row.remove(); state.rows.delete(name); }
  models.forEach((model, place) => {
    let row = state.rows.get(model.name);
    if (!row) {
      const open = () => select(model.name, true);
      row = element("tr", { onclick: (event) => { if (event.target.tagName !== "BUTTON") open(); } },
        element("td", {}, element("button", { type: "button", onclick: open }, model.name)),
        ...["", "wide", "wide", "wide", "number", "number", "number middle", "number middle", "number wide"].map(
          (kind) => element("td", { class: kind })));
      state.rows.set(model.name, row);
    }
    if (body.children[place] !== row) body.insertBefore(row, body.children[place] ?? null);
    const summary = model.summary;
    const values = [model.versions.join(", ") || "–", model.backend || "–", engine(model),
      number(summary.per_second), milliseconds(summary.p50_ms), milliseconds(summary.p99_ms), number(summary.queue), String(model.restarts)];
    const cells = [...row.children];
    cells[1].replaceChildren(element("span", { class: "state", "data-state": model.state }, model.state));
    values.forEach((value, index) => { cells[index + 2].textContent = value; });
    if (model.name === state.selected) row.setAttribute("aria-current", "true");
    else row.removeAttribute("aria-current");
  });
}

function engine(model) {
  return model.engine ? [model.engine, model.precision].filter(Boolean).join(" ") : "–";
}

function select(name, focus) {
  if (!state.frame?.models.some((each) => each.name === name)) return;
  state.selected = name;
  if (decodeURIComponent(location.hash.slice(1)) !== name) history.replaceState(null, "", `#${encodeURIComponent(name)}`);
  charts.reset();
  table(state.frame.models);
  detail();
  if (focus) find("model-title").scrollIntoView({ block: "nearest" });
}

function detail() {
  const model = state.frame.models.find((each) => each.name === state.selected);
  find("detail").hidden = !model;
  if (!model) return;
  find("model-title").textContent = model.name;
  const facts = [model.state, model.versions.length ? `version ${model.versions.join(", ")}` : "", model.backend, model.engine ? engine(model) : "",
    model.task_count ? counted(model.task_count, "task") : "", counted(model.restarts, "restart"), model.reason];
  find("facts").textContent = facts.filter(Boolean).join(" · ");
  const points = state.history.map((each) => ({
    time: each.time, values: each.models.find((other) => other.name === model.name)?.values ?? {},
  }));
  charts.show(state.charts[model.system] ?? [], points);
  playground.show(model);
}

function serverAddress() {
  const name = state.frame?.servers[0]?.name ?? "";
  return name.includes(":") ? name : "SERVER:8001";
}

start();
