// Connects the parts of the page: draws each message once, and reacts to clicks.

import { count, element, write } from "./draw.js";
import { Details } from "./details.js";
import { Feed, drain } from "./feed.js";
import { Keybox } from "./keybox.js";
import { Log } from "./log.js";
import { Mesh } from "./mesh.js";
import { Picture } from "./picture.js";
import { Services } from "./services.js";

const $ = (id) => document.getElementById(id);
const mesh = new Mesh();
let service = ""; // the only service that is shown; empty: all
let chosen = null; // the node that was clicked
let hovered = null; // the node under the pointer
let redrawScheduled = false;
let known = false; // whether a message has arrived

const feed = new Feed((message) => { known = true; mesh.apply(message); redraw(); }, showLink);
const keybox = new Keybox(() => { feed.restart(); redraw(); });
const services = new Services($("services"), (name) => { service = service === name ? "" : name; redraw(); });
const picture = new Picture($("stage"), (node) => { if (node !== undefined) hovered = node; redraw(); }, choose);
const details = new Details($("details"), {
  choose, drain, mayDrain: () => keybox.may.drain, askToken: () => keybox.open(),
});
const log = new Log($("events"), $("kind"), $("filter"), (key) => {
  if (key in mesh.teachers) choose({ kind: "teacher", key });
  else if (key in mesh.students) choose({ kind: "student", key });
});

document.addEventListener("keydown", (event) => { if (event.key === "Escape" && !$("keybox").open) choose(null); });

function choose(node) {
  chosen = node && chosen?.kind === node.kind && chosen.key === node.key ? null : node;
  if (!node) hovered = null;
  redraw();
  if (chosen) picture.node(chosen)?.scrollIntoView({ block: "nearest" });
}

function redraw() {
  if (redrawScheduled) return;
  redrawScheduled = true;
  requestAnimationFrame(() => { redrawScheduled = false; draw(); });
}

function draw() {
  if (!known) return;
  const exists = (node) => node && node.key in (node.kind === "teacher" ? mesh.teachers : mesh.students);
  if (!exists(chosen)) chosen = null;
  if (!exists(hovered)) hovered = null;
  if (service && !(service in mesh.services)) service = "";
  services.draw(mesh, service);
  picture.draw(mesh, service, chosen, hovered ?? chosen);
  details.draw(mesh, chosen ?? hovered); // the clicked node stays, so that its buttons can be used
  log.draw(mesh, service);
  const leading = new Set(Object.values(mesh.services).map((row) => row.leader).filter(Boolean));
  const named = mesh.managers.map((address) => (leading.has(address) ? `${address} (leads)` : address));
  write($("managers"), `${count(mesh.managers.length, "manager")}: ${named.join(", ") || "none"}`);
  notice(mesh.error);
  empty(!Object.keys(mesh.teachers).length && !Object.keys(mesh.students).length);
}

function notice(text) {
  $("notice").hidden = text === "";
  write($("notice"), text && `${text}. The picture shows the last known state.`);
}

function showLink(state, text) {
  write($("link"), text);
  for (const [node, name] of [[$("link"), "state"], [document.body, "link"]]) {
    if (node.dataset[name] !== state) node.dataset[name] = state;
  }
  if (state === "token" && !$("keybox").open) keybox.refresh().then(() => keybox.open());
}

function empty(is) {
  $("empty").hidden = !is;
  for (const id of ["links", "students", "hosts"]) $(id).toggleAttribute("hidden", is);
  if (!is || $("empty").children.length) return;
  const command = (text) => element("pre", {}, text);
  $("empty").append(
    element("h2", {}, "The mesh is empty, and ready"),
    element("p", {}, "No teacher and no student has registered. Start a teacher on any machine that reaches the coordinator's Redis:"),
    command("edl-teacher serve --model MODEL --service NAME --redis redis://HEAD:6379"),
    element("p", {}, "Then let a student read through it:"),
    command('loader = DistilReader(data_loader, service="NAME", coordinator="redis://HEAD:6379")'),
    element("p", {}, "Both appear here within a second after they register."));
}

redraw();
keybox.refresh();
feed.run();
