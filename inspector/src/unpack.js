// The data of an exported run (dspyer/display/run_file.py): one table of values, whose lists and mappings name their
// parts by place, so that what many steps share is there once. Each is made when it is first asked for.

import { isRaw } from "./numbers.js";
import { own } from "./shape.js";

function table(entries) {
  const made = new Map();
  const at = (place) => {
    const entry = entries[place];
    if (entry === null || typeof entry !== "object" || isRaw(entry)) return entry;
    let value = made.get(place);
    if (value === undefined) {
      value = Array.isArray(entry) ? entry.map(at) : Object.fromEntries(Object.entries(entry).map(([name, part]) => [name, at(part)]));
      made.set(place, value);
    }
    return value;
  };
  return at;
}

export function unpack(data) {
  const at = table(data.values);
  const missing = (what) => {
    throw Object.assign(new Error(`The file does not hold ${what}.`), { status: 404 });
  };
  const items = (name) => ({ items: name in data.lists ? at(data.lists[name]) : [] });
  const answers = new Map(
    Object.entries({
      about: () => data.about,
      run: () => data.run,
      commits: ({ first = 0, count = data.rows.length }) => ({ items: data.rows.slice(first, first + count), next: null }),
      commit: ({ id }) => {
        const { states, ...step } = at(own(data.steps, id) ?? missing(`the step ${id}`));
        const state = (refs) => refs && Object.fromEntries(Object.entries(refs).map(([name, place]) => [name, at(place)]));
        return { ...step, before: state(states.before), after: state(states.after) };
      },
      execution: ({ id }) => own(items("executions").items, id) ?? missing(`the execution ${id}`),
      posts: () => items("posts"),
      conflicts: () => items("conflicts"),
      items: () => items("items"),
      repairs: () => items("repairs"),
    }),
  );
  return {
    about: data.about,
    of: { thread: data.run.info.thread, run: data.run.info.run_id },
    between: data.between,
    get: async (path, params) => (answers.get(path) ?? (() => missing(path)))(params),
  };
}
