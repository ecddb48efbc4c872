// What differs between two values: texts by words, other values by their keys.

import { diffArrays, diffSentences } from "diff";
import { useMemo, useState } from "preact/hooks";
import { plural } from "./format.js";
import { isRaw } from "./numbers.js";
import { useFew } from "./parts.jsx";
import { Scalar, Value } from "./value.jsx";

const BUDGET = 250; // milliseconds for a comparison by words; of texts for which it is not enough, by sentences
const CONTEXT = 160; // equal characters that stay in sight beside a change
const ROWS = 100;

const KEPT = 0;
const GONE = -1;
const COME = 1;

const changes = (parts) => parts.map((part) => [part.added ? COME : part.removed ? GONE : KEPT, part.value]);

// How much of a text another one has too, at most: words in any order.
function overlap(before, after) {
  const words = new Set(tokens(before));
  return tokens(after).reduce((all, word) => all + (words.has(word) ? word.trim().length : 0), 0);
}

const bulk = (text) => text.replace(/\s/g, "").length;

const tokens = (text) => text.match(/[\p{L}\p{N}_]+|\s+|[^\s\p{L}\p{N}_]/gu) ?? [];

// The parts of what stands in place of another text: what both begin and end with is kept.
function replaced(before, after) {
  const [a, b] = [before, after].map(tokens);
  let [i, j] = [0, 0];
  while (i < Math.min(a.length, b.length) && a[i] === b[i]) i += 1;
  while (j < Math.min(a.length, b.length) - i && a.at(-1 - j) === b.at(-1 - j)) j += 1;
  const [gone, come] = [a, b].map((list) => list.slice(i, list.length - j).join(""));
  return [{ value: a.slice(0, i).join("") }, { removed: true, value: gone }, { added: true, value: come }, { value: a.slice(a.length - j).join("") }].filter(({ value }) => value);
}

// By words with the space behind them; undefined if it takes too long.
function byWords(before, after) {
  const [a, b] = [before, after].map((text) => text.split(/(?<=\s)(?=\S)/));
  const parts = diffArrays(a, b, { timeout: BUDGET })?.map((part) => ({ ...part, value: part.value.join("") }));
  return parts?.flatMap((part, at) => {
    if (part.removed && parts[at + 1]?.added) return replaced(part.value, parts[at + 1].value);
    return part.added && parts[at - 1]?.removed ? [] : [part];
  });
}

// The difference of two texts as [[-1 | 0 | 1, text]]: whole if less than a third of the longer one is in both, or time is up.
export function textDifference(before, after) {
  if (before === after) return [[KEPT, before]];
  const whole = [[GONE, before], [COME, after]].filter(([, text]) => text);
  const least = Math.max(bulk(before), bulk(after)) / 3;
  if (!before || !after || overlap(before, after) < least) return whole;
  const found = byWords(before, after) ?? diffSentences(before, after, { timeout: BUDGET });
  if (!found) return whole;
  const parts = changes(found);
  const kept = parts.reduce((sum, [kind, text]) => sum + (kind === KEPT ? bulk(text) : 0), 0);
  return kept < least ? whole : parts;
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
  const [shown, more] = useFew(parts, ROWS * 10);
  const whole = parts.length <= 2 && parts.every(([kind]) => kind !== KEPT);
  return (
    <span class={`text words${whole ? " whole" : ""}`}>
      {shown.map(([kind, text], at) => {
        if (kind === KEPT) return <Equal key={at} text={text} first={at === 0} last={at === parts.length - 1} />;
        const Mark = kind === GONE ? "del" : "ins";
        return <Mark key={at}>{whole ? <Scalar of={text} /> : text}</Mark>;
      })}
      {more}
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
    const changed = part.added || part.removed;
    if (!changed) rows.push({ equal: part.count });
    const gone = part.added ? 0 : part.count;
    const come = part.removed ? (found[at + 1]?.added ? found[at + 1].count : 0) : part.added && found[at - 1]?.removed ? 0 : part.count;
    for (let n = 0; changed && n < Math.max(gone, come); n += 1) {
      rows.push({ key: n < come ? j + n : i + n, before: n < gone ? before[i + n] : undefined, after: n < come ? after[j + n] : undefined });
    }
    [i, j] = [i + gone, j + come];
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
  const [shown, more] = useFew(rows, ROWS);
  return (
    <>
      <ul class="diff">
        {shown.map(({ key, equal, unit = "item", before, after }, at) => (
          <li key={at}>
            {equal ? <span class="soft">{plural(equal, `equal ${unit}`)}</span> : <><span class="key">{list ? key + 1 : key}</span><div><Diff before={before} after={after} /></div></>}
          </li>
        ))}
      </ul>
      {more}
    </>
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
