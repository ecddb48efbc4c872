// The rows of a run's steps, read page by page as they come into sight.

import { useEffect, useRef, useState } from "preact/hooks";
import { get } from "./api.js";

const PAGE = 200;
const MOST = 2000; // rows of one answer, where all are needed

export class Steps {
  constructor(thread, run, changed) {
    this.thread = thread;
    this.run = run;
    this.changed = changed;
    this.count = 0;
    this.rows = [];
    this.byId = new Map();
    this.busy = new Map();
    this.error = null;
    this.asked = [0, -1];
    this.closed = new AbortController();
  }

  at(index) {
    return this.rows[index];
  }

  // The index of a commit that was read before.
  indexOf(id) {
    return this.byId.get(id) ?? -1;
  }

  setCount(count) {
    if (count === this.count) return;
    this.count = count;
    this.changed();
  }

  retry() {
    this.error = null;
    this.want(...this.asked);
    this.changed();
  }

  // Reads what is missing between two indices, in whole pages. After a failure nothing is read until `retry`.
  want(from, to) {
    this.asked = [from, to];
    if (this.error) return;
    const last = Math.min(to, this.count - 1);
    for (let page = Math.floor(Math.max(0, from) / PAGE); page * PAGE <= last; page += 1) {
      const start = page * PAGE;
      const end = Math.min(start + PAGE, this.count);
      let missing = start;
      while (missing < end && this.rows[missing]) missing += 1;
      if (missing < end && !this.busy.has(page)) this.read(missing, end - missing, page);
    }
  }

  async read(first, count, key) {
    this.busy.set(key, true);
    try {
      const { items } = await get("commits", { thread: this.thread, run: this.run, first, count }, this.closed.signal);
      this.put(first, items);
      this.error = null;
    } catch (error) {
      if (error.name === "AbortError") return;
      this.error = error;
    } finally {
      this.busy.delete(key);
    }
    this.changed();
  }

  put(first, items) {
    items.forEach((row, i) => {
      this.rows[first + i] = row;
      this.byId.set(row.id, first + i);
    });
    if (first + items.length > this.count) this.count = first + items.length;
  }

  async all() {
    for (let first = 0; first < this.count; ) {
      while (first < this.count && this.rows[first]) first += 1;
      if (first >= this.count) return;
      const before = first;
      await this.read(first, Math.min(MOST, this.count - first), `all${first}`);
      if (this.error || this.closed.signal.aborted || !this.rows[before]) return;
    }
  }

  get complete() {
    let known = 0;
    while (known < this.count && this.rows[known]) known += 1;
    return known === this.count;
  }

  // Forks give versions when they join: what was read of an open fork is read again.
  forgetOpen() {
    for (let i = this.rows.length - 1; i >= 0 && this.rows[i]?.version == null; i -= 1) delete this.rows[i];
  }
}

export function useSteps(thread, run) {
  const [, bump] = useState(0);
  const ref = useRef(null);
  ref.current ??= new Steps(thread, run, () => bump((n) => n + 1));
  useEffect(() => () => ref.current.closed.abort(), []);
  return ref.current;
}
