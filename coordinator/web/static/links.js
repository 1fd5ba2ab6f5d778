// Curves from students: to each of their teachers in a small mesh, to the teachers' hosts in a large one.

import { shape } from "./draw.js";

const SINGLE = 120; // links drawn one by one
const BUNDLES = 160; // more curves would hide the nodes

/** Draw all links; `picture` finds the nodes, `focus` is the node whose links are highlighted. */
export function drawLinks(svg, stage, mesh, picture, focus) {
  svg.setAttribute("width", 0); // else its former size would keep the stage from shrinking
  svg.setAttribute("height", 0);
  const frame = stage.getBoundingClientRect();
  const at = (node) => {
    const box = node.getBoundingClientRect();
    const x = box.left - frame.left + stage.scrollLeft - stage.clientLeft;
    return { left: x, right: x + box.width, middle: box.top + box.height / 2 - frame.top + stage.scrollTop - stage.clientTop };
  };
  svg.setAttribute("width", stage.scrollWidth);
  svg.setAttribute("height", stage.scrollHeight);
  svg.replaceChildren(...background(mesh, picture, at), ...lit(mesh, picture, at, focus));
}

function background(mesh, picture, at) {
  const bundles = new Map();
  let total = 0;
  for (const [key, student] of Object.entries(mesh.students)) {
    const from = picture.student(key);
    if (!from) continue;
    for (const id of student.teachers) {
      const tile = picture.teacher(`${student.service} ${id}`);
      if (!tile) continue;
      total += 1;
      const host = tile.closest(".host");
      if (!bundles.has(from)) bundles.set(from, { student, hosts: new Map() });
      const hosts = bundles.get(from).hosts;
      if (!hosts.has(host)) hosts.set(host, []);
      hosts.get(host).push(tile);
    }
  }
  const single = total <= SINGLE;
  const paths = [];
  const boxes = new Map();
  const boxOf = (node) => boxes.get(node) ?? (boxes.set(node, at(node)), boxes.get(node));
  for (const [from, { student, hosts }] of bundles) {
    for (const [host, tiles] of hosts) {
      if (!single && paths.length >= BUNDLES) return [];
      for (const end of single ? tiles : [host]) {
        const width = single ? 1.5 : 0.6 + Math.min(4, tiles.length) * 0.35;
        const path = shape("path", { d: curve(boxOf(from), boxOf(end)), "stroke-width": width });
        const state = end.dataset.state === "draining" ? "draining" : student.state;
        path.setAttribute("data-state", state);
        paths.push(path);
      }
    }
  }
  return paths;
}

function lit(mesh, picture, at, focus) {
  if (!focus) return [];
  const pairs = mesh.peers(focus.kind, focus.key).map((peer) =>
    focus.kind === "student" ? [picture.student(focus.key), picture.teacher(peer)] : [picture.student(peer), picture.teacher(focus.key)]);
  return pairs.filter(([from, to]) => from && to).map(([from, to]) =>
    shape("path", { class: "lit", d: curve(at(from), at(to)), "stroke-width": pairs.length > 40 ? 1 : 1.8 }));
}

function curve(from, to) {
  const bend = Math.max(30, (to.left - from.right) * 0.5);
  return `M${from.right} ${from.middle}C${from.right + bend} ${from.middle} ${to.left - bend} ${to.middle} ${to.left} ${to.middle}`;
}
