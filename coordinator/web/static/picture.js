// The mesh as a picture: a card for each student, a tile for each teacher, tiles by host.

import { bytes, duration, element, mark, naturally, number, plot, sparkline, words, write } from "./draw.js";
import { drawLinks } from "./links.js";

const TEACHERS = [[24, "large"], [150, "medium"], [Infinity, "small"]];
const STUDENTS = [[7, "large"], [24, "medium"], [Infinity, "small"]];
const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

export class Picture {
  #cards = new Map();
  #tiles = new Map();
  #hosts = new Map();
  #drawn = "";

  /** `onFocus(node | null)` when the pointer is over a node, `onChosen(node)` when it is clicked. */
  constructor(stage, onFocus, onChosen) {
    this.stage = stage;
    [this.svg, this.students, this.hosts] = ["#links", "#students", "#hosts"].map((id) => stage.querySelector(id));
    this.onFocus = onFocus;
    this.onChosen = onChosen;
    for (const side of [this.students, this.hosts]) side.addEventListener("keydown", (event) => step(side, event));
    new ResizeObserver(() => { this.#drawn = ""; this.onFocus(undefined); }).observe(stage);
  }

  student(key) { return this.#cards.get(key)?.node; }
  teacher(key) { return this.#tiles.get(key)?.node; }
  node({ kind, key }) { return kind === "student" ? this.student(key) : this.teacher(key); }

  /** Draw the mesh, or only `service` if it is not empty; highlight `focus` and its peers. */
  draw(mesh, service, chosen, focus) {
    const shown = (rows) => Object.entries(rows).filter(([, row]) => !service || row.service === service);
    const students = shown(mesh.students);
    const teachers = shown(mesh.teachers);
    mark(this.stage, "data-students", size(STUDENTS, students.length));
    mark(this.stage, "data-teachers", size(TEACHERS, teachers.length));
    this.#drawStudents(mesh, students);
    this.#drawTeachers(teachers);
    this.#light(mesh, chosen, focus);
    const drawn = JSON.stringify([mesh.shape, service, focus, this.stage.scrollWidth]);
    if (drawn !== this.#drawn) drawLinks(this.svg, this.stage, mesh, this, focus);
    this.#drawn = drawn;
  }

  #drawStudents(mesh, rows) {
    removeMissing(this.#cards, rows);
    let added = false;
    for (const [key, row] of rows) {
      if (!this.#cards.has(key)) {
        const card = studentCard();
        this.#listen(card.node, { kind: "student", key });
        this.#cards.set(key, card);
        added = true;
      }
      fillStudent(this.#cards.get(key), row, mesh.histories.get(`student ${key}`) ?? []);
    }
    if (added) this.#arrangeStudents(mesh);
    ensureTabStop(this.students);
  }

  /** Order the cards by service and name; each service has a heading if there are several. */
  #arrangeStudents(mesh) {
    for (const heading of this.students.querySelectorAll("h3")) heading.remove();
    const several = new Set([...this.#cards.keys()].map((key) => mesh.students[key].service)).size > 1;
    let former = "";
    for (const node of inOrder(this.#cards)) {
      const { service } = mesh.students[node.dataset.key];
      if (several && service !== former) this.students.append(element("h3", {}, (former = service)));
      this.students.append(node);
    }
  }

  #drawTeachers(rows) {
    removeMissing(this.#tiles, rows);
    const changed = new Set();
    for (const [key, row] of rows) {
      let tile = this.#tiles.get(key);
      if (!tile) {
        tile = teacherTile();
        this.#listen(tile.node, { kind: "teacher", key });
        this.#tiles.set(key, tile);
      }
      if (tile.host !== row.host) changed.add((tile.host = row.host));
      fillTeacher(tile, row);
    }
    for (const host of changed) this.#arrange(host);
    for (const [host, box] of this.#hosts) {
      if (box.tiles.children.length) continue;
      box.node.remove();
      this.#hosts.delete(host);
    }
    ensureTabStop(this.hosts);
  }

  #arrange(host) {
    if (!this.#hosts.has(host)) {
      const tiles = element("div", { class: "tiles" });
      const node = element("div", { class: "host", "data-key": host }, element("h3", { title: host }, host || "unknown host"), tiles);
      this.#hosts.set(host, { node, tiles });
      this.hosts.append(...inOrder(this.#hosts));
    }
    const onHost = new Map([...this.#tiles].filter(([, tile]) => tile.host === host));
    this.#hosts.get(host).tiles.append(...inOrder(onHost));
  }

  #listen(node, target) {
    mark(node, "data-key", target.key);
    node.addEventListener("click", () => this.onChosen(target));
    node.addEventListener("pointerenter", () => this.onFocus(target));
    node.addEventListener("pointerleave", () => this.onFocus(null));
  }

  #light(mesh, chosen, focus) {
    const near = new Set(focus ? mesh.peers(focus.kind, focus.key) : []);
    this.stage.classList.toggle("focused", focus !== null);
    for (const [kind, nodes] of [["student", this.#cards], ["teacher", this.#tiles]]) {
      for (const [key, { node }] of nodes) {
        node.classList.toggle("near", (focus && focus.kind !== kind && near.has(key)) || (focus?.kind === kind && focus.key === key));
        mark(node, "aria-pressed", chosen?.kind === kind && chosen.key === key);
      }
    }
  }
}

function size(steps, amount) { return steps.find(([limit]) => amount <= limit)[1]; }

function removeMissing(nodes, rows) {
  const present = new Set(rows.map(([key]) => key));
  for (const [key, { node }] of nodes) {
    if (present.has(key)) continue;
    node.remove();
    nodes.delete(key);
  }
}

function inOrder(nodes) {
  return [...nodes].sort(([a], [b]) => naturally(a, b)).map(([, { node }]) => node);
}

function studentCard() {
  const part = (cls) => element("span", { class: cls });
  const card = {
    name: part("name"), state: part("state"), fill: element("i"), tick: element("b"), volume: part("soft"),
    rate: part("rate"), has: part("soft has"), spark: sparkline(), host: part("soft host-of"),
    waits: ["starved", "blocked", "source_wait"].map((state) => element("span", { "data-state": state })),
  };
  card.node = element("button", { type: "button", class: "student", tabindex: -1 },
    element("span", { class: "line" }, card.name, card.state, card.has),
    card.gauge = element("div", { class: "gauge" }, card.fill, card.tick),
    element("span", { class: "line second" }, card.volume, card.rate),
    element("span", { class: "line second" }, card.host, card.spark),
    element("span", { class: "waits" }, ...card.waits));
  return card;
}

function fillStudent(card, row, history) {
  const state = row.state || "steady";
  mark(card.node, "data-state", state);
  write(card.name, row.id);
  write(card.state, words(state));
  const has = row.teachers.length;
  write(card.has, `${has}/${row.want}`);
  card.has.title = `has ${has} of ${row.want} wanted; n = ${row.needed || "not known yet"}`;
  card.has.classList.toggle("short", has < Math.max(row.min, 1));
  const part = row.upper ? Math.min(1, row.volume / row.upper) : 0;
  card.fill.style.width = `${(100 * part).toFixed(1)}%`;
  card.tick.style.left = `${row.upper ? (100 * row.lower) / row.upper : 0}%`;
  card.gauge.title = `buffer ${bytes(row.volume)}; lt ${bytes(row.lower)} (the mark), ut ${bytes(row.upper)} (full)`;
  write(card.volume, row.upper ? `${bytes(row.volume)} of ${bytes(row.upper)}` : "no buffer reported yet");
  write(card.rate, `${number(row.rate)} /s`);
  write(card.host, `on ${row.host || "unknown host"} · n ${row.needed || "?"}`);
  card.waits.forEach((node) => {
    write(node, `${words(node.dataset.state).replace(" wait", "")} ${duration(row[node.dataset.state])}`);
    node.classList.toggle("on", node.dataset.state === state);
  });
  plot(card.spark, history);
  mark(card.node, "aria-label", `student ${row.id}, ${words(state)}, ${has} of ${row.want} teachers, buffer ${Math.round(100 * part)} percent, ${number(row.rate)} samples per second`);
}

function teacherTile() {
  const tile = { name: element("span", { class: "name" }), word: element("span", { class: "word" }), rate: element("span"), host: null };
  tile.node = element("button", { type: "button", class: "tile", tabindex: -1 }, tile.name, element("span", { class: "soft" }, tile.word, tile.rate));
  return tile;
}

function fillTeacher(tile, row) {
  mark(tile.node, "data-state", row.state);
  write(tile.name, row.id);
  write(tile.word, words(row.state));
  write(tile.rate, row.rate ? `${number(row.rate)} /s` : "");
  mark(tile.node, "title", `${row.id}: ${words(row.state)}`);
  mark(tile.node, "aria-label", `teacher ${row.id} on ${row.host}, ${words(row.state)}`);
}

/** Give each side one stop of the Tab key; the arrow keys move from there. */
function ensureTabStop(side) {
  if (side.querySelector("button[tabindex='0']")) return;
  side.querySelector("button")?.setAttribute("tabindex", "0");
}

function step(side, event) {
  const direction = STEPS[event.key];
  if (!direction || !(event.target instanceof HTMLButtonElement)) return;
  event.preventDefault();
  const middle = (node) => { const box = node.getBoundingClientRect(); return [box.left + box.width / 2, box.top + box.height / 2]; };
  const from = middle(event.target);
  let best = null;
  let least = Infinity;
  for (const node of side.querySelectorAll("button")) {
    const [x, y] = middle(node).map((value, axis) => value - from[axis]);
    const ahead = x * direction[0] + y * direction[1];
    const aside = Math.abs(x * direction[1]) + Math.abs(y * direction[0]);
    if (ahead > 1 && ahead + 3 * aside < least) [best, least] = [node, ahead + 3 * aside];
  }
  if (!best) return;
  event.target.setAttribute("tabindex", "-1");
  best.setAttribute("tabindex", "0");
  best.focus();
}
