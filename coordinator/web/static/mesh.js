// The mesh as this page knows it: four tables, updated by messages, and short histories.

/** Readings of a history: one minute, at two per second. */
const HISTORY = 120;
const EVENTS = 500;

/** A table whose keys others choose. It has no prototype, so "__proto__" and "constructor" are ordinary keys. */
function byName(rows = {}) {
  return Object.assign(Object.create(null), rows);
}

export class Mesh {
  constructor() {
    this.tables = { mesh: byName(), services: byName(), teachers: byName(), students: byName() };
    this.events = []; // newest first
    this.nowMs = 0;
    this.error = "";
    this.shape = 0; // grows when members, states or links change
    this.histories = new Map();
    this.serves = new Map(); // teacher key -> student keys
  }

  get managers() { return this.tables.mesh[""]?.managers ?? []; }
  get services() { return this.tables.services; }
  get teachers() { return this.tables.teachers; }
  get students() { return this.tables.students; }

  /** Apply a message of the feed: `whole` replaces all tables, `changes` updates their rows. */
  apply(message) {
    if (message.whole) {
      this.tables = Object.fromEntries(Object.entries(message.whole).map(([name, rows]) => [name, byName(rows)]));
      this.events = [];
      this.shape += 1;
    } else {
      for (const [table, rows] of Object.entries(message.changes)) this.#update(this.tables[table], rows);
    }
    this.error = message.error;
    if (message.now_ms) this.nowMs = message.now_ms;
    this.events.unshift(...message.events.toReversed());
    this.events.length = Math.min(this.events.length, EVENTS);
    this.#link();
    this.#remember();
  }

  #update(table, rows) {
    for (const [key, row] of Object.entries(rows)) {
      if (row === null || !(key in table) || "teachers" in row || "state" in row) this.shape += 1;
      if (row === null) delete table[key];
      else if (key in table) Object.assign(table[key], row);
      else table[key] = row;
    }
  }

  #link() {
    this.serves.clear();
    for (const [key, student] of Object.entries(this.students)) {
      for (const id of student.teachers) {
        const teacher = `${student.service} ${id}`;
        if (!this.serves.has(teacher)) this.serves.set(teacher, []);
        this.serves.get(teacher).push(key);
      }
    }
  }

  #remember() {
    const kept = new Map();
    for (const [table, rows] of [["service", this.services], ["student", this.students]]) {
      for (const [key, row] of Object.entries(rows)) {
        const history = this.histories.get(`${table} ${key}`) ?? [];
        history.push(row.rate);
        if (history.length > HISTORY) history.shift();
        kept.set(`${table} ${key}`, history);
      }
    }
    this.histories = kept;
  }

  /** Keys of the nodes that are linked with a node. */
  peers(kind, key) {
    if (kind === "teacher") return this.serves.get(key) ?? [];
    const student = this.students[key];
    return student ? student.teachers.map((id) => `${student.service} ${id}`) : [];
  }
}
