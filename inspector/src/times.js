// When the steps of a run worked. What nobody worked in, since a question waited or the run was not resumed yet, is folded.

const kept = new WeakMap();

// Steps that a copy or a rerun shares with its origin are not part of its own time.
export const isOwn = (record, step) => !record.run.origin || step.id.startsWith(`${record.run.id}/`);

const AROUND = new Set(["agent", "graph", "map", "search", "item", "trial"]); // their time is that of the steps inside of them

// The length of time that some spans cover.
function covered(spans) {
  let [sum, end] = [0, -Infinity];
  for (const [from, till] of spans.toSorted((a, b) => a[0] - b[0])) {
    sum += Math.max(0, till - Math.max(from, end));
    end = Math.max(end, till);
  }
  return sum;
}

// {from, till, folds: [{from, till, asked, open}], work, seconds, waited}, in seconds since the epoch; what is open still
// waits. `work` is what is drawn; `seconds` and `waited` are those of `Record`.
export function times(record, now = 0) {
  const old = kept.get(record);
  if (old && (old.now === now || !old.running)) return old;
  const [busy, asked, outer] = [[], [], []];
  let [running, from, till] = [false, Infinity, -Infinity];
  for (const step of record.steps) {
    if (!isOwn(record, step)) continue;
    if (step.asked?.at != null) asked.push([step.asked.at, step.asked.answer?.at ?? Infinity]);
    if (step.started == null) continue;
    const runs = step.status === "running";
    const end = runs ? Math.max(now, step.started) : step.started + (step.seconds ?? 0);
    running ||= runs;
    from = Math.min(from, step.started);
    till = Math.max(till, end);
    if (step.parent === null) outer.push([step.started, end]);
    const inner = record.inside(step.id).some((one) => one.started != null);
    if (!inner || !(AROUND.has(step.kind) || step.waited > 0)) busy.push([step.started, end]);
  }
  const found = { now, running, from, till, folds: gaps(busy.sort((a, b) => a[0] - b[0]), asked) };
  if (!running && asked.some(([, answered]) => answered === Infinity)) found.folds.push({ from: till, till, asked: true, open: true });
  if (!Number.isFinite(from)) Object.assign(found, { from: 0, till: 0 });
  found.work = found.till - found.from - found.folds.reduce((all, fold) => all + fold.till - fold.from, 0);
  const answered = asked.filter(([, at]) => at !== Infinity);
  found.waited = covered([...busy, ...answered]) - covered(busy);
  found.seconds = covered([...outer, ...answered]) - found.waited;
  kept.set(record, found);
  return found;
}

function gaps(busy, asked) {
  if (!busy.length) return [];
  const idle = [];
  let till = busy[0][0];
  for (const [from, end] of busy) {
    if (from > till) idle.push([till, from]);
    till = Math.max(till, end);
  }
  const active = covered(busy);
  const long = Math.max(5, active / 5);
  const folds = [];
  for (const [from, to] of idle) {
    const open = asked.filter(([begun, answered]) => begun < to && answered > from);
    if (to - from <= (open.length ? Math.max(0.2, active / 50) : long)) continue;
    const ends = open.reduce((all, [begun, answered]) => [Math.min(all[0], begun), Math.max(all[1], answered)], [Infinity, -Infinity]);
    folds.push(open.length ? { from: Math.max(from, ends[0]), till: Math.min(to, ends[1]), asked: true } : { from, till: to, asked: false });
  }
  return folds;
}

// The part of a span in which somebody worked.
export function worked({ folds }, from, till) {
  let sum = till - from;
  for (const fold of folds) sum -= Math.max(0, Math.min(fold.till, till) - Math.max(fold.from, from));
  return Math.max(0, sum);
}

// When a step began and ended: {from, till}; null of one that has not begun. What waits has no end yet.
export function span(record, step, now = 0) {
  const { from, till, running } = record.sums(step.id);
  if (!Number.isFinite(from)) return null;
  return { from, till: running ? Math.max(from, till, now) : Math.max(from, till) };
}

const FOLD = 26; // pixels of a folded gap

// Where a moment is drawn: a function of it, with `back` from a pixel to the time worked, and `view` in time worked.
export function scale(all, width, view = null) {
  const [a, b] = view ?? [0, Math.max(all.work, 1e-6)];
  const marks = all.folds.map((fold) => ({ ...fold, at: worked(all, all.from, fold.from) }));
  const shown = marks.filter((mark) => mark.at >= a && mark.at <= b);
  const fold = Math.min(FOLD, (width * 0.4) / Math.max(1, shown.length));
  const free = width - fold * shown.length;
  const place = (work, before) => ((work - a) / (b - a)) * free + before * fold;
  const x = (time) => {
    let before = 0;
    for (const mark of shown) {
      if (mark.open) break; // nothing comes after it
      if (time >= mark.till) before += 1;
      else if (time > mark.from) before += (time - mark.from) / (mark.till - mark.from);
    }
    return place(worked(all, all.from, Math.max(time, all.from)), before);
  };
  x.back = (pixel) => a + ((pixel - x.folds.reduce((all, { x: at }) => all + Math.max(0, Math.min(fold, pixel - at)), 0)) / free) * (b - a);
  x.folds = shown.map((mark, i) => ({ ...mark, x: place(mark.at, i), width: fold }));
  x.view = [a, b];
  return x;
}
