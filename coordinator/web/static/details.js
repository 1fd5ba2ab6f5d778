// All facts of the node that is chosen or under the pointer; the legend if there is no such node.

import { bytes, clock, count, duration, element, number, perSample, words, write } from "./draw.js";

const LEGEND = [
  ["Teachers", "tile swatch", {
    serving: "serves a student", idle: "alive, and assigned to no student", waiting: "registered, and not probed yet", draining: "finishes its requests and leaves",
    lost: "its lease expired", refused: "not admitted: its details say why", left: "has left, mostly after draining",
  }],
  ["Students", "student swatch round", {
    steady: "trains at its pace", starved: "waits for labels, and none are deliverable",
    blocked: "its buffer is full: volume above ut", source_wait: "waits for its own source of batches",
  }],
];

export class Details {
  #drawn = "";

  /** `actions`: choose(node | null), drain(service, id) -> promise, mayDrain(), askToken(). */
  constructor(root, actions) {
    this.root = root;
    this.actions = actions;
  }

  draw(mesh, node) {
    const row = node && (node.kind === "teacher" ? mesh.teachers : mesh.students)[node.key];
    const peers = row ? mesh.peers(node.kind, node.key) : [];
    const facts = row ? (node.kind === "teacher" ? teacherFacts(row, mesh) : studentFacts(row, mesh)) : [];
    const known = facts.filter(([, value]) => value !== "");
    const drawn = JSON.stringify([node, row?.state, row?.reason, known.map(([name]) => name), peers, this.actions.mayDrain()]);
    if (drawn === this.#drawn) { // the same panel with other values: the focus stays where it is
      this.root.querySelectorAll("dd").forEach((value, index) => write(value, known[index][1]));
      return;
    }
    if (this.#awaitsSecondClick(node)) return;
    this.#drawn = drawn;
    if (!row) this.root.replaceChildren(...legend());
    else this.root.replaceChildren(...this.#panel(node, row, known, peers));
  }

  /** Whether the drain button waits for its second click; then the panel is not drawn again. */
  #awaitsSecondClick(node) {
    const sure = this.root.querySelector(".sure");
    return sure && node && sure.dataset.key === node.key;
  }

  #panel(node, row, facts, peers) {
    const other = node.kind === "teacher" ? "student" : "teacher";
    const close = element("button", { type: "button", class: "close", "aria-label": "Close", onclick: () => this.actions.choose(null) }, "×");
    const dl = element("dl", {}, ...facts.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
    const why = node.kind === "teacher" ? (row.state === "refused" ? row.admission : "") : row.reason;
    const links = peers.map((key) => element("button", { type: "button", onclick: () => this.actions.choose({ kind: other, key }) }, key.slice(key.indexOf(" ") + 1)));
    return [
      element("div", { class: "head" }, element("h2", {}, row.id), element("span", { class: "badge", "data-state": row.state || "steady" }, words(row.state || "steady")), close),
      element("span", { class: "soft" }, `${node.kind} of ${row.service}`),
      why && element("p", { class: "why" }, why),
      dl,
      links.length && element("div", { class: "peers" }, ...links),
      node.kind === "teacher" && ["serving", "idle", "waiting"].includes(row.state) && this.#drainRow(node, row),
    ].filter(Boolean);
  }

  #drainRow(node, row) {
    const message = element("span", { class: "soft" });
    const button = element("button", { type: "button", id: "drain", class: "danger", "data-key": node.key }, "Drain");
    button.addEventListener("click", async () => {
      if (!this.actions.mayDrain()) { this.actions.askToken(); return; }
      if (!button.classList.contains("sure")) {
        button.classList.add("sure");
        button.textContent = "Drain it now";
        message.textContent = "It finishes its requests and leaves.";
        setTimeout(() => { button.classList.remove("sure"); this.#drawn = ""; }, 5000);
        return;
      }
      button.disabled = true;
      try {
        await this.actions.drain(row.service, row.id);
        message.textContent = "It was asked to leave.";
      } catch (error) {
        message.textContent = error.message;
        button.disabled = false;
      }
      button.classList.remove("sure");
    });
    return element("div", { class: "act" }, button, message);
  }
}

function teacherFacts(row, mesh) {
  return [
    ["host", row.host], ["address", row.address], ["device", row.device], ["model", row.model],
    ["serves", count(mesh.peers("teacher", `${row.service} ${row.id}`).length, "student")],
    ["protocol", row.protocol], ["sidecar", row.voucher],
    ["rate", row.voucher ? "" : `${number(row.rate)} samples/s`], ["t_t", perSample(row.t_t)],
    ["in flight", row.voucher ? "" : row.slots ? `${row.in_flight} of ${row.slots}` : String(row.in_flight)],
    ["devices", row.lanes > 1 ? String(row.lanes) : ""],
    ["content", row.content + (row.verified ? ` (${row.verified})` : "")], ["numerics", row.numerics],
    ["started", row.since_ms > 1e12 ? clock(row.since_ms) : ""],
    ["lease", lease(row, mesh)],
  ];
}

function studentFacts(row, mesh) {
  return [
    ["host", row.host],
    ["teachers", `has ${row.teachers.length}, wants ${row.want}, min ${row.min}, n ${row.needed || "not known yet"}`],
    ["unreachable", row.unreachable ? count(row.unreachable, "teacher") : ""], ["priority", row.priority ? String(row.priority) : ""],
    ["rate", `${number(row.rate)} samples/s`],
    ["per sample", `t_s ${perSample(row.t_s)}, t_t ${perSample(row.t_t)}`],
    ["buffer", row.upper ? `${bytes(row.volume)} of ${bytes(row.upper)}, lt ${bytes(row.lower)}` : "not reported yet"],
    ["waited", `starved ${duration(row.starved)}, blocked ${duration(row.blocked)}, for its source ${duration(row.source_wait)}`],
    ["delivered", `${count(row.samples, "sample")} in epoch ${row.epoch}`],
    ["stragglers", row.slow.join(", ")],
    ["contradict each other", row.disputed.join(", ")],
    ["ejected", row.ejected.map(([teacher, cause]) => `${teacher} (${cause})`).join(", ")],
    ["hedges", row.hedges ? number(row.hedges) : ""],
    ["resends", row.resends ? number(row.resends) : ""], ["content", row.content], ["lease", lease(row, mesh)],
  ];
}

function lease(row, mesh) {
  if (row.state === "lost" || row.state === "left" || !mesh.nowMs) return "over";
  return `${Math.max(0, (row.until_ms - mesh.nowMs) / 1000).toFixed(0)} s left`;
}

function legend() {
  return [
    element("h2", {}, "Legend"),
    element("div", { class: "legend" }, ...LEGEND.flatMap(([title, cls, states]) => [
      element("h3", {}, title),
      ...Object.entries(states).map(([state, text]) => element("span", { title: text }, element("i", { class: cls, "data-state": state }), words(state))),
    ])),
    element("p", { class: "hint" }, "Point at a node to see its links, click to keep it. The arrow keys move from node to node, Esc deselects."),
  ];
}
