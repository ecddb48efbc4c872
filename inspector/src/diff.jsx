// What differs between two values: texts by words, other values by their keys.

import { diffArrays, diffWordsWithSpace } from "diff";
import { useMemo, useState } from "preact/hooks";
import { plural } from "./format.js";
import { isRaw } from "./numbers.js";
import { Scalar, Value } from "./value.jsx";

const BUDGET = 120; // milliseconds for a comparison by words, and for one of long texts
const RUN = 8; // tokens: four words and what is between them
const CONTEXT = 160; // equal characters that stay in sight beside a change
const ROWS = 100;

const KEPT = 0;
const GONE = -1;
const COME = 1;

const changes = (parts) => parts.map((part) => [part.added ? COME : part.removed ? GONE : KEPT, part.value]);

// How much of two texts is the same, at most: the words that both have, in any order.
function overlap(before, after) {
  const words = new Map();
  const all = (text) => tokens(text).filter((word) => word.trim());
  for (const word of all(before)) words.set(word, (words.get(word) ?? 0) + 1);
  let shared = 0;
  for (const word of all(after)) {
    const left = words.get(word) ?? 0;
    if (left) {
      shared += word.length;
      words.set(word, left - 1);
    }
  }
  return shared;
}

const bulk = (text) => text.replace(/\s/g, "").length;

const byWords = (before, after, budget) => diffWordsWithSpace(before, after, { timeout: budget });

const tokens = (text) => text.match(/[\p{L}\p{N}_]+|\s+|[^\s\p{L}\p{N}_]/gu) ?? [];

// Where each run of tokens begins that a text has only once.
function places(list) {
  const found = new Map();
  for (let at = 0; at + RUN <= list.length; at += 1) {
    const run = list.slice(at, at + RUN).join("");
    found.set(run, found.has(run) ? -1 : at);
  }
  return found;
}

// The longest chain of pairs in which both numbers grow: pairs come in the order of the first one.
function chain(pairs) {
  const ends = []; // of the chains of each length the one with the smallest end
  const before = new Array(pairs.length);
  pairs.forEach(([, place], at) => {
    let [low, high] = [0, ends.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (pairs[ends[middle]][1] < place) low = middle + 1;
      else high = middle;
    }
    before[at] = ends[low - 1];
    ends[low] = at;
  });
  const found = [];
  for (let at = ends.at(-1); at !== undefined; at = before[at]) found.push(pairs[at]);
  return found.reverse();
}

// Of long texts, runs of words that both have once are held fast, and only what is between them is compared by words, as long as
// there is time.
function byRuns(before, after) {
  const end = performance.now() + BUDGET;
  const [a, b] = [tokens(before), tokens(after)];
  const [mine, theirs] = [places(a), places(b)];
  const out = [];
  let [i, j] = [0, 0];
  const fill = (toA, toB) => {
    const [gone, come] = [a.slice(i, toA).join(""), b.slice(j, toB).join("")];
    const left = end - performance.now();
    const found = gone && come && left > 0 ? byWords(gone, come, left) : null;
    if (found) out.push(...found);
    else out.push(...[{ removed: true, value: gone }, { added: true, value: come }].filter((part) => part.value));
  };
  const common = [...mine].filter(([run, at]) => at >= 0 && (theirs.get(run) ?? -1) >= 0).map(([run, at]) => [at, theirs.get(run)]);
  for (const [atA, atB] of [...chain(common), [a.length, b.length]]) {
    if (atA < i || atB < j) continue; // it overlaps the run before
    if (atA > i || atB > j) fill(atA, atB);
    const value = a.slice(atA, atA + RUN).join("");
    if (out.at(-1) && !out.at(-1).added && !out.at(-1).removed) out[out.length - 1] = { value: out.at(-1).value + value };
    else if (value) out.push({ value });
    [i, j] = [atA + RUN, atB + RUN];
  }
  return out;
}

// Spaces alone between two changes belong to both: `a b` after `c d` are two words that were replaced, and not four changes.
function tidied(parts) {
  const out = [];
  let gone = "";
  let come = "";
  const flush = () => {
    if (gone) out.push([GONE, gone]);
    if (come) out.push([COME, come]);
    gone = come = "";
  };
  parts.forEach(([kind, text], at) => {
    if (kind === GONE) gone += text;
    else if (kind === COME) come += text;
    else if (gone && come && !text.trim() && !text.includes("\n") && at + 1 < parts.length) {
      gone += text;
      come += text;
    } else {
      flush();
      out.push([KEPT, text]);
    }
  });
  flush();
  return out;
}

// The difference of two texts as [[-1 | 0 | 1, text]]: whole if less than a third of the longer one is in both, or time is up.
export function textDifference(before, after) {
  if (before === after) return [[KEPT, before]];
  const whole = [[GONE, before], [COME, after]].filter(([, text]) => text);
  const least = Math.max(bulk(before), bulk(after)) / 3;
  if (!before || !after || overlap(before, after) < least) return whole;
  const parts = changes(byWords(before, after, BUDGET) ?? byRuns(before, after));
  const kept = parts.reduce((sum, [kind, text]) => sum + (kind === KEPT ? bulk(text) : 0), 0);
  return kept < least ? whole : tidied(parts);
}

// A stretch that is equal: its ends beside the changes, and what is between on request.
function Equal({ text, first, last }) {
  const [open, setOpen] = useState(false);
  const room = (first ? 0 : CONTEXT) + (last ? 0 : CONTEXT);
  if (open || text.length < room + 240) return <>{text}</>;
  const cut = text.length - room;
  return (
    <>
      {!first && text.slice(0, CONTEXT)}
      <button type="button" class="fold between" onClick={() => setOpen(true)}>{plural(cut, "equal character")}</button>
      {!last && text.slice(-CONTEXT)}
    </>
  );
}

function TextDiff({ before, after }) {
  const parts = useMemo(() => textDifference(before, after), [before, after]);
  const [all, setAll] = useState(false);
  const shown = all ? parts : parts.slice(0, ROWS * 10);
  const whole = parts.length <= 2 && parts.every(([kind]) => kind !== KEPT);
  return (
    <span class={`text words${whole ? " whole" : ""}`}>
      {shown.map(([kind, text], at) => {
        if (kind === KEPT) return <Equal key={at} text={text} first={at === 0} last={at === parts.length - 1} />;
        const Mark = kind === GONE ? "del" : "ins";
        return <Mark key={at}>{whole ? <Scalar of={text} /> : text}</Mark>;
      })}
      {shown.length < parts.length && <button type="button" class="fold" onClick={() => setAll(true)}>show the rest</button>}
    </span>
  );
}

const isMap = (value) => value !== null && typeof value === "object" && !Array.isArray(value) && !isRaw(value);

export const same = (one, other) => one === other || JSON.stringify(one) === JSON.stringify(other);

// The values of two lists in pairs: what both have is found by its JSON, what stands in its place is compared with it.
function pairs(before, after) {
  const names = [before, after].map((list) => list.map((item) => JSON.stringify(item)));
  const found = diffArrays(names[0], names[1], { timeout: BUDGET }) ?? [{ removed: true, count: before.length }, { added: true, count: after.length }];
  const rows = [];
  let [i, j] = [0, 0];
  found.forEach((part, at) => {
    if (!part.added && !part.removed) {
      rows.push({ equal: part.count });
      i += part.count;
      j += part.count;
    } else if (part.removed) {
      const come = found[at + 1]?.added ? found[at + 1].count : 0;
      for (let n = 0; n < Math.max(part.count, come); n += 1) {
        rows.push({ key: n < come ? j + n : i + n, before: n < part.count ? before[i + n] : undefined, after: n < come ? after[j + n] : undefined });
      }
      i += part.count;
      j += come;
    } else if (!found[at - 1]?.removed) {
      for (let n = 0; n < part.count; n += 1) rows.push({ key: j + n, before: undefined, after: after[j + n] });
      j += part.count;
    }
  });
  return rows;
}

function byKeys(before, after) {
  const names = [...new Set([...Object.keys(before), ...Object.keys(after)])];
  const value = (of, name) => (Object.hasOwn(of, name) ? of[name] : undefined);
  const rows = names.map((name) => ({ key: name, before: value(before, name), after: value(after, name) }));
  const changed = rows.filter((row) => row.before === undefined || row.after === undefined || !same(row.before, row.after));
  const equal = rows.length - changed.length;
  return equal ? [...changed, { equal, unit: "field" }] : changed;
}

function Rows({ rows, list }) {
  const [most, setMost] = useState(ROWS);
  return (
    <ul class="diff">
      {rows.slice(0, most).map((row, at) => (
        <li key={at}>
          {row.equal ? (
            <span class="soft">{plural(row.equal, `equal ${row.unit ?? "item"}`)}</span>
          ) : (
            <>
              <span class="key">{list ? row.key + 1 : row.key}</span>
              <div><Diff before={row.before} after={row.after} /></div>
            </>
          )}
        </li>
      ))}
      {rows.length > most && <li><button type="button" class="fold" onClick={() => setMost(most + ROWS)}>show {plural(Math.min(ROWS, rows.length - most), "more change")}</button></li>}
    </ul>
  );
}

// `undefined` is a value that is not there. Equal values are shown once, as they are.
export function Diff({ before, after }) {
  const rows = useMemo(() => {
    if (before === undefined || after === undefined) return null;
    if (Array.isArray(before) && Array.isArray(after)) return pairs(before, after);
    return isMap(before) && isMap(after) ? byKeys(before, after) : null;
  }, [before, after]);
  if (typeof before === "string" && typeof after === "string") return <TextDiff before={before} after={after} />;
  if (before !== undefined && same(before, after)) return <Value of={after} />;
  if (rows?.some((row) => row.equal) || (rows && rows.length && !Array.isArray(before))) return <Rows rows={rows} list={Array.isArray(before)} />;
  const parts = [before, after].some((value) => value !== null && typeof value === "object" && !isRaw(value));
  return (
    <span class={parts ? "whole parts" : "whole"}>
      {before !== undefined && <del><Value of={before} plain /></del>}
      {after !== undefined && <ins><Value of={after} plain /></ins>}
    </span>
  );
}
