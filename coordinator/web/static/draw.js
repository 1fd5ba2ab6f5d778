// Creates elements and sparklines, and formats numbers for people.

/** An element with attributes and children; `on*` are listeners, false and null are left out. */
export function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value == null) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child != null && child !== false));
  return node;
}

/** An SVG element with attributes. */
export function shape(tag, attributes = {}) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

/** Set text, only if it differs: a node that is not written is not laid out again. */
export function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Set an attribute, only if it differs. */
export function mark(node, name, value) {
  if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

const ROOM = 20; // readings that fill a sparkline; more are drawn closer

/** A sparkline that `plot` fills. */
export function sparkline() {
  const svg = shape("svg", { class: "spark", viewBox: "0 0 100 20", preserveAspectRatio: "none", "aria-hidden": "true" });
  svg.append(shape("path", { class: "area" }), shape("path"));
  return svg;
}

/** Draw values into a sparkline, the newest at its right edge, from zero up. */
export function plot(svg, values) {
  const [area, line] = svg.children;
  if (values.length < 2) return;
  const room = Math.max(values.length, ROOM);
  const top = Math.max(...values, 1e-9) * 1.08;
  const step = 100 / (room - 1);
  const left = 100 - (values.length - 1) * step;
  const points = values.map((value, i) => `${(left + i * step).toFixed(1)} ${(20 - (20 * value) / top).toFixed(1)}`);
  line.setAttribute("d", `M${points.join("L")}`);
  area.setAttribute("d", `M${left.toFixed(1)} 20L${points.join("L")}L100 20Z`);
}

/** 1234567 -> "1,234,567"; small numbers keep three digits. */
export function number(value) {
  if (value >= 100 || Number.isInteger(value)) return Math.round(value).toLocaleString("en-US");
  return String(Number(value.toPrecision(3)));
}

export function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (count >= 1024 && unit < units.length - 1) { count /= 1024; unit += 1; }
  return `${number(count >= 100 ? Math.round(count) : count)} ${units[unit]}`;
}

/** Seconds: "0.4 s", "12 s", "3 min 5 s", "2 h 10 min". */
export function duration(seconds) {
  if (seconds < 10) return `${Math.round(seconds * 10) / 10} s`;
  const whole = Math.round(seconds);
  if (whole < 120) return `${whole} s`;
  if (whole < 7200) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
}

/** A time per sample: "2.13 ms". */
export function perSample(seconds) {
  return seconds ? `${number(seconds * 1000)} ms` : "not known yet";
}

export function clock(ms) {
  return new Date(ms).toLocaleTimeString("en-GB");
}

/** "source_wait" -> "source wait". */
export function words(state) {
  return (state || "unknown").replaceAll("_", " ");
}

export function count(amount, what) {
  return `${number(amount)} ${what}${amount === 1 ? "" : "s"}`;
}

const collator = new Intl.Collator("en", { numeric: true });

/** Order names as people do: p4-2 before p4-10. */
export function naturally(a, b) {
  return collator.compare(a, b);
}
