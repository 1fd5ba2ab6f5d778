// One card for each service: its rate, teachers, waiting times, content and leader.

import { count, duration, element, mark, number, plot, sparkline, words, write } from "./draw.js";

const ORDER = ["serving", "idle", "waiting", "draining", "refused", "lost", "left"];

export class Services {
  #cards = new Map();

  constructor(root, onChosen) {
    this.root = root;
    this.onChosen = onChosen;
  }

  draw(mesh, chosen) {
    const states = countStates(mesh);
    for (const [name, service] of Object.entries(mesh.services)) {
      const card = this.#cards.get(name) ?? this.#add(name);
      mark(card.button, "aria-pressed", chosen === name);
      fill(card, service, states.get(name) ?? new Map(), mesh.histories.get(`service ${name}`) ?? []);
    }
    for (const [name, card] of this.#cards) {
      if (name in mesh.services) continue;
      card.button.remove();
      this.#cards.delete(name);
    }
  }

  #add(name) {
    const part = (cls = "soft") => element("span", { class: cls });
    const card = {
      rate: element("div", { class: "big" }), wants: part(), waits: part(), spark: sparkline(),
      teachers: part(), stack: element("div", { class: "stack" }), students: part(), content: part(), leader: part(),
    };
    card.button = element("button", { type: "button", class: "service", title: "Show this service only", onclick: () => this.onChosen(name) },
      element("div", {}, element("div", { class: "name" }, name), card.content, card.leader),
      element("div", {}, card.rate, card.spark),
      element("div", {}, card.teachers, card.stack, card.wants, card.waits));
    this.#cards.set(name, card);
    this.root.append(card.button);
    return card;
  }
}

function countStates(mesh) {
  const states = new Map();
  for (const teacher of Object.values(mesh.teachers)) {
    if (!states.has(teacher.service)) states.set(teacher.service, new Map());
    const counts = states.get(teacher.service);
    counts.set(teacher.state, (counts.get(teacher.state) ?? 0) + 1);
  }
  return states;
}

function fill(card, service, states, history) {
  const rate = `${number(service.rate)} samples/s`;
  if (card.rate.dataset.text !== rate) {
    card.rate.dataset.text = rate;
    card.rate.replaceChildren(number(service.rate), element("small", {}, " samples/s"));
  }
  plot(card.spark, history);
  const present = ORDER.filter((state) => states.get(state));
  const others = present.filter((state) => state !== "serving").map((state) => `${states.get(state)} ${words(state)}`);
  const hidden = service.teachers - service.shown;
  if (hidden > 0) others.push(`${number(hidden)} not drawn`);
  write(card.teachers, count(service.teachers, "teacher") + (others.length ? `: ${others.join(", ")}` : ""));
  const bar = present.map((state) => `${state}${states.get(state)}`).join();
  if (card.stack.dataset.bar !== bar) {
    card.stack.dataset.bar = bar;
    card.stack.replaceChildren(...present.map((state) => {
      const part = element("i", { "data-state": state });
      part.style.flexGrow = states.get(state);
      return part;
    }));
  }
  write(card.wants, `${count(service.students, "student")}, ${number(service.assigned)} of ${number(service.wanted)} wanted`);
  write(card.waits, `starved ${duration(service.starved)} · blocked ${duration(service.blocked)} · source ${duration(service.source_wait)}`);
  card.waits.title = "Seconds, over all students: waited for labels; paused by a full buffer; waited for their source";
  write(card.leader, service.leader ? `leader ${service.leader}` : "no leader now");
  card.leader.classList.toggle("alarm", !service.leader);
  card.leader.title = `term ${service.term}, counter ${service.counter}`;
  write(card.content, content(service));
  card.content.classList.toggle("upgrade", service.next_content !== "");
}

function content(service) {
  if (!service.next_content) return service.content ? `content ${service.content}` : "content not declared";
  const moved = service.content_students[service.next_content] ?? 0;
  return `${service.content} → ${service.next_content} at ${service.upgrade_at}: ${moved} of ${service.students} moved`;
}
