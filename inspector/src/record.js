// The record of a run, as the page reads it: its steps in canonical order, and what follows from them. It is renewed
// (a new object) when steps have changed; values are asked for by their ids, when something shows them.

import { useEffect, useMemo, useReducer, useRef, useState } from "preact/hooks";
import { embedded, follow, get } from "./api.js";

const AT_ONCE = 50; // values of one request
const KEPT = 64; // steps of which the state is kept
const OPEN = new Set(["running", "interrupted", "failed", "stopped", "crashed"]); // such a run may go on

export const rulesOf = (hidden) => hidden.map((one) => [one].flat().join(".")).join(", ");

const within = (path, name) => (path ? `${path}/${name}` : name);

export class Record {
  #states = new Map();
  #known = null;

  constructor(source, run, graphs, steps, { position = null, complete = true } = {}) {
    Object.assign(this, { source, run, graphs, steps, position, complete });
  }

  // What follows from the list of steps, made when it is first asked for.
  get #index() {
    if (this.#known) return this.#known;
    const [places, children, sums] = [new Map(), new Map([[null, []]]), new Map()];
    this.steps.forEach((step, i) => {
      places.set(step.id, i);
      const around = step.parent !== null && places.has(step.parent) ? step.parent : null;
      if (!children.has(around)) children.set(around, []);
      children.get(around).push(step);
    });
    // From the last one on, so that what is inside of a step is summed up before it.
    for (let i = this.steps.length - 1; i >= 0; i -= 1) {
      const step = this.steps[i];
      const sum = { calls: step.lm.length, tokens: [0, 0], cost: 0, from: step.started ?? Infinity, till: -Infinity, running: step.status === "running" };
      if (step.started != null) sum.till = step.started + (step.seconds ?? 0);
      if (step.asked?.at != null) sum.from = Math.min(sum.from, step.asked.at);
      for (const call of step.lm) add(sum, call.tokens, call.cost);
      for (const inner of children.get(step.id) ?? []) {
        const one = sums.get(inner.id);
        add(sum, one.tokens, one.calls ? one.cost : 0);
        sum.calls += one.calls;
        sum.running ||= one.running;
        sum.from = Math.min(sum.from, one.from);
        sum.till = Math.max(sum.till, one.till);
      }
      sums.set(step.id, sum);
    }
    this.#known = { places, children, sums };
    return this.#known;
  }

  step(id) {
    return this.steps[this.#index.places.get(id)];
  }

  // The steps right inside of one, or of the run (null), in order.
  inside(id) {
    return this.#index.children.get(id) ?? [];
  }

  // Of a step and those inside of it: {calls, tokens, cost, from, till, running}; `cost` is null if a price is not known.
  sums(id) {
    return this.#index.sums.get(id);
  }

  around(id) {
    const step = this.step(this.step(id)?.parent);
    return step ? [...this.around(step.id), step] : [];
  }

  // The path of the graph that a step is a step of: "" for that of the run.
  path(id) {
    const { parent } = this.step(id) ?? {};
    return parent == null ? "" : this.inner(parent);
  }

  // The path of the graph inside of a step. An item runs the graph of its map.
  inner(id) {
    const step = this.step(id);
    if (!step) return "";
    if (step.kind === "item" || step.kind === "trial") return this.path(id);
    const path = this.path(id);
    if (within(path, step.node) in this.graphs) return within(path, step.node);
    const key = /\/([^/:[\]]+)[^/]*$/.exec(id)?.[1]; // of a program that a node calls
    return key && within(path, key) in this.graphs ? within(path, key) : within(path, step.node);
  }

  graph(path = "") {
    return this.graphs[path] ?? null;
  }

  // By field after a step, {value: VID, by: the id of the step that wrote it}: a walk along the first of `after`.
  state(id) {
    const passed = [];
    let [at, known] = [this.step(id), undefined];
    while (at && !(known = this.#states.get(at.id))) {
      passed.push(at);
      at = this.step(at.after[0]);
    }
    const found = new Map(known);
    for (const step of passed.reverse()) {
      for (const [name, { value, by }] of Object.entries(step.wrote)) value === null ? found.delete(name) : found.set(name, { value, by: by ?? step.id });
    }
    this.#states.set(id, found);
    if (this.#states.size > KEPT) this.#states.delete(this.#states.keys().next().value);
    return found;
  }

  // The state before a step: after those that it follows, or of which the graph around it began.
  before(id) {
    const [before] = this.step(id)?.after ?? [];
    return before === undefined ? new Map() : this.state(before);
  }

  // Whether what a step wrote of a field is what it added to it: so the messages inside of an agent's step.
  added(step, name) {
    return name === "messages" && step.parent !== null;
  }

  // A step and all inside of it.
  all(id) {
    const found = [this.step(id)].filter(Boolean);
    for (const step of found) found.push(...this.inside(step.id));
    return found;
  }

  get waiting() {
    return this.steps.filter((step) => step.status === "waiting" && step.asked && !step.asked.answer);
  }

  // This record after an answer of `record?after=POSITION`.
  changed({ run, graphs, items, removed, position }) {
    const gone = new Set([...removed, ...items.map(({ id }) => id)]);
    const behind = new Map(items.map(({ previous, ...step }) => [previous, step]));
    const steps = [];
    const put = (step) => {
      for (let next = step; next; next = behind.get(next.id)) steps.push(next);
    };
    put(behind.get(null));
    for (const step of this.steps) if (!gone.has(step.id)) put(step);
    return new Record(this.source, run, graphs ?? this.graphs, steps, { position });
  }
}

function add(sum, [into, out] = [0, 0], cost = null) {
  sum.tokens[0] += into ?? 0;
  sum.tokens[1] += out ?? 0;
  sum.cost = sum.cost === null || cost === null ? null : sum.cost + cost;
}

class Values {
  known = new Map();
  problems = new Map();
  #asked = new Set();
  #queue = [];
  #listeners = new Set();

  constructor(params) {
    this.params = params;
  }

  listen(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  want(ids) {
    const fresh = ids.filter((id) => id != null && !this.known.has(id) && !this.#asked.has(id));
    if (!fresh.length) return;
    if (!this.#queue.length) queueMicrotask(() => this.#ask());
    this.#queue.push(...fresh);
    for (const id of fresh) this.#asked.add(id);
  }

  async #ask() {
    const all = [...new Set(this.#queue.splice(0))];
    const parts = Array.from({ length: Math.ceil(all.length / AT_ONCE) }, (_, i) => all.slice(i * AT_ONCE, (i + 1) * AT_ONCE));
    await Promise.all(parts.map(async (id) => {
      const give = (map, of) => id.forEach((one) => map.set(one, of(one)));
      await get("values", { ...this.params, id }).then(({ values }) => give(this.known, (one) => values[one]), (error) => give(this.problems, () => error));
      for (const one of id) this.#asked.delete(one);
      for (const listener of this.#listeners) listener();
    }));
  }
}

// The values of ids, as a Map; of one that is not there yet, undefined. What cannot be read is thrown to the `Boundary`.
export function useValues(record, ids) {
  const values = record.source;
  const [version, renew] = useReducer((n) => n + 1, 0);
  const key = ids.join();
  useEffect(() => {
    for (const id of ids) values.problems.delete(id);
    const stop = values.listen(renew);
    values.want(ids);
    return stop;
  }, [values, key]);
  const asked = useRef(null);
  if (asked.current === key) for (const id of ids) if (values.problems.has(id)) throw values.problems.get(id);
  asked.current = key;
  return useMemo(() => new Map(ids.filter((id) => values.known.has(id)).map((id) => [id, values.known.get(id)])), [values, key, version]);
}

const PAUSE = 400; // milliseconds between two pages that are shown

async function whole(params, page, signal, show) {
  const [source, { graphs, position }] = [new Values({ ...params, run: page.run.id || params.run }), page];
  let [steps, shown] = [[], -Infinity];
  for (let next = page; next && !signal.aborted; ) {
    steps = steps.concat(next.items);
    const complete = next.next == null;
    if (complete || performance.now() - shown > PAUSE) {
      show(new Record(source, next.run, graphs, steps, { position, complete }));
      shown = performance.now();
    }
    next = complete ? null : await get("record", { ...params, first: next.next, position }, signal);
  }
}

// The record of a run, without `run` the last one of the thread, kept up to date: {record, error, busy, again}. `error` beside a record: it is an old one.
export function useRecord({ thread, run }) {
  const [state, setState] = useState({ record: null, error: null });
  const [tries, again] = useReducer((n) => n + 1, 0);
  useEffect(() => {
    const stop = new AbortController();
    const { signal } = stop;
    const params = { thread, run };
    let latest = null;
    const show = (record) => {
      latest = record;
      if (!signal.aborted) setState({ record, error: null });
    };
    const failed = (error) => signal.aborted || setState((old) => ({ record: old.record, error }));
    const renew = async () => {
      const answer = await get("record", { ...params, after: latest.position }, signal);
      if (signal.aborted || answer.position === latest.position) return;
      if (answer.first === undefined) show(latest.changed(answer));
      else await whole(params, answer, signal, show); // of another run, or the server has forgotten the position
    };
    (async () => {
      await get("record", params, signal).then((page) => whole(params, page, signal, show)).catch(failed);
      if (signal.aborted || !latest?.complete || embedded || (run && !OPEN.has(latest.run.status))) return;
      let [asked, last] = [false, Promise.resolve()];
      const changed = () => {
        if (!asked) last = last.then(() => void (asked = false)).then(renew).catch(failed);
        asked = true;
      };
      follow({ thread }, changed, failed, signal);
    })();
    return () => stop.abort();
  }, [thread, run, tries]);
  return { ...state, busy: !state.record?.complete && !state.error, again };
}
