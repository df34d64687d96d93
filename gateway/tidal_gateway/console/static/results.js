// Answers of the calls as elements.

import { element, number } from "./dom.js";

const MOST = 10;

/** Names of the functions are the values of `show` in calls.js. */
export const RESULTS = { classes, vectors, ranking, entities, spans, tensors };

function classes(answer) {
  const row = answer.data[0];
  const shares = (row.probs ?? []).map((share, index) => ({ share, index })).sort((a, b) => b.share - a.share);
  const bars = shares.slice(0, MOST).map(({ share, index }, place) =>
    bar(place === 0 ? row.label : `class ${index}`, share, share));
  return [element("p", {}, element("strong", {}, row.label)), element("div", { class: "bars" }, ...bars)];
}

function vectors(answer, values) {
  const rows = answer.data.map((each) => each.embedding);
  const texts = values.texts.split("\n").map((each) => each.trim()).filter(Boolean);
  const found = [element("p", {}, `${rows.length} × ${rows[0].length} values: `, rows[0].slice(0, 4).map(number).join(", "), " …")];
  if (rows.length > 1) {
    const shown = rows.slice(0, 8);
    const head = element("tr", {}, element("td"), ...shown.map((_, place) => element("th", { scope: "col" }, `${place + 1}`)));
    const body = shown.map((row, place) => element("tr", {},
      element("th", { scope: "row", title: texts[place] }, `${place + 1}`),
      ...shown.map((other) => element("td", {}, cosine(row, other).toFixed(3)))));
    found.push(element("p", { class: "meta" }, "Cosine similarity of the lines"),
      element("table", { class: "matrix" }, element("tbody", {}, head, ...body)));
  }
  return found;
}

function ranking(answer, values) {
  const documents = values.documents.split("\n").map((each) => each.trim()).filter(Boolean);
  const scores = answer.results.map((each) => each.relevance_score);
  const low = Math.min(0, ...scores);
  const high = Math.max(1, ...scores);
  return [element("div", { class: "bars" }, ...answer.results.map((each) =>
    bar(documents[each.index], (each.relevance_score - low) / (high - low), each.relevance_score, "documents")))];
}

function entities(answer, values) {
  const found = JSON.parse(answer.outputs.find((each) => each.name === "entities").data[0]);
  if (!found.length) return [element("p", {}, "no entities")];
  return [marked(values.text, found), rows(found.map((each) => [each.text, each.label, each.score]))];
}

function spans(answer, values) {
  const found = JSON.parse(answer.outputs.find((each) => each.name === "answers").data[0]);
  const best = found[0];
  if (!best?.answer) return [element("p", {}, "the context has no answer")];
  return [element("p", {}, element("strong", {}, best.answer)), marked(values.context, [best]),
    rows(found.map((each) => [each.answer || "no answer", "", each.score]))];
}

function tensors(answer) {
  return [element("div", { class: "answer" }, answer.outputs.map((each) =>
    `${each.name} [${each.shape}]: ${shortened(each.data)}`).join("\n"))];
}

/** A text with marked parts; positions are Unicode code points. */
function marked(text, parts) {
  const characters = [...text];
  const made = element("p", { class: "answer" });
  let end = 0;
  for (const each of [...parts].sort((a, b) => a.start - b.start)) {
    if (each.start < end) continue;
    made.append(characters.slice(end, each.start).join(""), element("mark", {},
      characters.slice(each.start, each.end).join(""), each.label ? element("small", {}, each.label) : null));
    end = each.end;
  }
  made.append(characters.slice(end).join(""));
  return made;
}

function rows(found) {
  return element("div", { class: "bars" }, ...found.slice(0, MOST).map(([text, label, score]) =>
    bar(label ? `${label}: ${text}` : text, score, score)));
}

function bar(name, share, value, kind = "") {
  return element("div", { class: `bar ${kind}` }, element("span", {}, name),
    element("progress", { max: 1, value: Math.max(0, share), "aria-label": name }), element("span", {}, number(value)));
}

function cosine(a, b) {
  const dot = (left, right) => left.reduce((sum, value, place) => sum + value * right[place], 0);
  return dot(a, b) / Math.sqrt(dot(a, a) * dot(b, b));
}

function shortened(data) {
  const shown = data.slice(0, 12).map((each) => (typeof each === "number" ? number(each) : each)).join(", ");
  return data.length > 12 ? `${shown}, …` : shown;
}
