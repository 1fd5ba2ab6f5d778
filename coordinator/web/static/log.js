// The log of the mesh, newest first, with a filter; a click on a name chooses its node.

import { clock, element } from "./draw.js";

const ROWS = 200;
const COLOURS = {
  lost: "lost", refused: "refused", draining: "draining", left: "left", starved: "starved",
  registered: "serving", steady: "steady", subscribed: "blocked", upgrade: "refused", leader: "draining", recovery: "draining",
};

export class Log {
  #drawn = "";
  #kinds = new Set();

  constructor(list, kind, filter, onChosen) {
    [this.list, this.kind, this.filter, this.onChosen] = [list, kind, filter, onChosen];
    for (const control of [kind, filter]) control.addEventListener("input", () => this.draw(this.mesh, this.service));
  }

  draw(mesh, service) {
    [this.mesh, this.service] = [mesh, service];
    const wanted = this.filter.value.trim().toLowerCase();
    const newest = mesh.events[0];
    const drawn = JSON.stringify([newest?.service, newest?.id, mesh.events.length, service, wanted, this.kind.value]);
    if (drawn === this.#drawn) return;
    this.#drawn = drawn;
    this.#offer(mesh.events);
    const found = mesh.events.filter((event) =>
      (!service || event.service === service) && (!this.kind.value || event.kind === this.kind.value) &&
      (!wanted || `${event.subject} ${event.kind} ${event.text}`.toLowerCase().includes(wanted)));
    this.list.replaceChildren(...found.slice(0, ROWS).map((event) => this.#row(event)));
    if (!found.length) this.list.append(element("li", { class: "none" }, mesh.events.length ? "Nothing matches." : "Nothing has happened yet."));
  }

  #offer(events) {
    for (const { kind } of events) {
      if (this.#kinds.has(kind)) continue;
      this.#kinds.add(kind);
      this.kind.append(element("option", { value: kind }, kind));
    }
  }

  #row(event) {
    return element("li", { "data-kind": event.kind },
      element("time", { title: new Date(event.time_ms).toISOString() }, clock(event.time_ms)),
      element("span", {},
        element("b", { "data-state": COLOURS[event.kind] }, event.kind), " ",
        element("button", { type: "button", onclick: () => this.onChosen(`${event.service} ${event.subject}`) }, event.subject)),
      event.text && element("p", {}, event.text),
      sets(event));
  }
}

/** What a set of teachers gained and lost: "+ a, b  − c". */
function sets({ gained, lost }) {
  const part = (sign, ids) => (ids.length ? `${sign} ${ids.slice(0, 6).join(", ")}${ids.length > 6 ? ` and ${ids.length - 6} more` : ""}` : "");
  const parts = [part("+", gained), part("−", lost)].filter(Boolean).join("   ");
  return parts ? element("p", { class: "sets" }, parts) : null;
}
