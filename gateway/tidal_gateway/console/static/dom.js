// Elements and numbers.

/** Return a new element. Properties that begin with "on" are listeners, "class" and names with "-" are attributes. */
export function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined || value === null) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "class" || key.includes("-")) made.setAttribute(key, value);
    else made[key] = value;
  }
  made.append(...children.filter((each) => each !== null && each !== undefined));
  return made;
}

/** Return a new element of SVG. */
export function svg(name, attributes = {}) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

/** Return a number with three significant digits; a dash for none. */
export function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size >= 10000) return new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 }).format(value);
  if (size >= 100 || Number.isInteger(value)) return value.toFixed(0);
  if (size >= 10) return value.toFixed(1);
  return size >= 0.01 ? value.toFixed(2) : value.toPrecision(1);
}

/** Return a number with a noun. */
export function counted(count, noun) {
  return `${count} ${noun}${count === 1 ? "" : "s"}`;
}

/** Return a time in ms with its unit; a dash for none. */
export function milliseconds(value) {
  if (value === null || value === undefined) return "–";
  return value >= 1000 ? `${number(value / 1000)} s` : `${number(value)} ms`;
}
