// The data of an exported run: values that many steps share are stored once, and named by their place.

const PAGE = 1e9;

export function unpack(data) {
  const values = data.values ?? [];
  const state = (refs) => refs && Object.fromEntries(Object.entries(refs).map(([name, place]) => [name, values[place]]));
  const missing = (what) => {
    throw Object.assign(new Error(`The file does not hold ${what}.`), { status: 404 });
  };
  const answers = {
    about: () => data.about,
    run: () => data.run,
    commits: ({ first = 0, count = PAGE }) => ({ items: data.rows.slice(first, first + count), next: null }),
    commit: ({ id }) => {
      const step = data.commits[id] ?? missing(`the step ${id}`);
      return { ...step, before: state(step.before), after: state(step.after) };
    },
    lm_calls: ({ execution }) => ({ items: data.lm_calls?.[execution] ?? [] }),
    posts: () => ({ items: data.posts ?? [] }),
    conflicts: () => ({ items: data.conflicts ?? [] }),
    stats: () => data.run.stats,
    repairs: () => ({ items: data.repairs ?? [] }),
  };
  return {
    about: data.about,
    of: { thread: data.run.info.thread, run: data.run.info.run_id },
    between: data.between ?? 0,
    get: async (path, params) => (answers[path] ?? (() => missing(path)))(params),
  };
}
