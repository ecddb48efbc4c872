// Values as text: always text nodes, long ones folded with a count.

import { createContext } from "preact";
import { useContext, useState } from "preact/hooks";
import { get } from "./api.js";
import { embedded } from "./embedded.js";
import { first, plural } from "./format.js";
import { useFew } from "./parts.jsx";
import { difference, pathText, points, shape } from "./shape.js";

// Which answer the shown values are from: {of, ...params}. The server cuts very long values, and sends the rest on request.
export const Source = createContext(null);

const TEXT_LIMIT = 400;
const LINES = 8;
const ITEMS = 40;

export const Text = ({ text, limit }) => <Folded seen={shape(text)} limit={limit} />;

function Folded({ seen: given, limit = TEXT_LIMIT }) {
  const [open, setOpen] = useState(false);
  const { seen, rest } = useRest(given);
  const { text } = seen;
  const lines = text.split("\n");
  if (text.length <= limit * 1.2 && lines.length <= LINES + 2) return <><span class="text">{text}</span>{rest}</>;
  const short = lines.slice(0, LINES).join("\n").slice(0, limit);
  return (
    <>
      <span class="text">{open ? text : `${short}…`}</span>
      <button type="button" class="fold" aria-expanded={open} onClick={() => setOpen(!open)}>
        {open ? "show less" : `show all ${plural(seen.cut?.length ?? points(text), "character")}`}
      </button>
      {open && rest}
    </>
  );
}

// The rest of a cut value, part by part.
export function useRest(seen) {
  const given = useContext(Source);
  const source = embedded ? null : given;
  const [more, setMore] = useState([]);
  const [error, setError] = useState(null);
  if (!seen.cut) return { seen, rest: null };
  const text = seen.cut.kind === "text";
  const have = text ? points(seen.text + more.join("")) : seen.entries.length + more.flat().length;
  const load = async () => {
    try {
      const part = await get("value", { ...source, path: JSON.stringify(seen.cut.path), first: have });
      if (part.length !== seen.cut.length) throw new Error("It has changed since it was read: load the page again.");
      setError(null);
      setMore([...more, text ? part.value : shape(part.value).entries.map(([key, item]) => [Array.isArray(part.value) ? have + key : key, item])]);
    } catch (failed) {
      setError(failed);
    }
  };
  const left = seen.cut.length - have;
  const unit = text ? "character" : seen.cut.kind === "list" ? "item" : "key";
  const words = source ? `load ${plural(left, `more ${unit}`)}` : `${plural(left, `more ${unit}`)} left out`;
  const rest = left > 0 && (
    <button type="button" class="fold" onClick={load} disabled={!source}>{error ? error.message : words}</button>
  );
  const whole = text
    ? { ...seen, text: seen.text + more.join("") }
    : { ...seen, entries: seen.entries.concat(...more), size: seen.cut.length };
  return { seen: whole, rest };
}

function Scalar({ seen, depth }) {
  return (
    <span class={`v v-${seen.type}`}>
      {seen.label && <span class="tag">{seen.label} </span>}
      {seen.type === "text" && seen.text === "" ? <span class="tag">empty text</span> : <Folded seen={seen} limit={depth ? 200 : TEXT_LIMIT} />}
    </span>
  );
}

// One line that says what a folded value holds.
export function gist(value, limit = 72) {
  const seen = shape(value);
  if (seen.kind === "scalar") return first(seen.text.replace(/\s+/g, " "), limit);
  const size = seen.cut?.length ?? seen.entries.length;
  if (!size) return `${seen.open}${seen.close}`;
  const parts = seen.entries.slice(0, 6).map(([key, item]) => {
    const inner = shape(item);
    const text = inner.kind === "scalar" ? first(inner.text.replace(/\s+/g, " "), 24) : `${inner.open}…${inner.close}`;
    return seen.kind === "map" ? `${key}: ${text}` : text;
  });
  return first(`${seen.open}${parts.join(", ")}${size > 6 ? ", …" : ""}${seen.close}`, limit);
}

export function Value({ value, depth = 0, open: start }) {
  const given = shape(value);
  const { seen, rest } = useRest(given);
  const size = seen.size ?? seen.entries.length;
  const [open, setOpen] = useState(start ?? (depth < 1 ? size <= 12 : depth < 2 && size <= 3));
  const [shown, more] = useFew(seen.entries, ITEMS);
  if (seen.kind === "scalar") return <Scalar seen={given} depth={depth} />;
  if (!size) return <span class="v"><span class="tag">{seen.label || "dict"}</span> {seen.open}{seen.close}</span>;
  const unit = seen.kind === "list" ? "item" : "key";
  return (
    <span class="tree">
      <button type="button" class="twist" aria-expanded={open} onClick={() => setOpen(!open)}>
        <span class="tag">{seen.label || "dict"} · {plural(size, unit)}</span>
        {!open && <span class="gist">{gist(value)}</span>}
      </button>
      {open && (
        <ul class="entries">
          {shown.map(([key, item]) => (
            <li key={key}>
              <span class="key">{seen.kind === "list" ? `[${key}]` : key}</span>
              <Value value={item} depth={depth + 1} />
            </li>
          ))}
          {(more || rest) && <li>{more || rest}</li>}
        </ul>
      )}
    </span>
  );
}

const WORDS = { "+": "added", "-": "removed", "~": "changed" };
const ROWS = 60;

// Two texts: what both begin and end with is cut to a few characters, so that the change is in sight.
function TextChange({ before, after }) {
  let head = 0;
  while (head < before.length && head < after.length && before[head] === after[head]) head += 1;
  let tail = 0;
  const room = Math.min(before.length, after.length) - head;
  while (tail < room && before.at(-1 - tail) === after.at(-1 - tail)) tail += 1;
  const start = Math.max(0, head - 40);
  const cut = (text) => {
    const end = Math.min(text.length, text.length - tail + 40);
    return `${start ? "…" : ""}${text.slice(start, end)}${end < text.length ? "…" : ""}`;
  };
  return (
    <>
      <del>{before ? <Text text={cut(before)} /> : <span class="tag">empty text</span>}</del>
      <ins>{after ? <Text text={cut(after)} /> : <span class="tag">empty text</span>}</ins>
    </>
  );
}

// What was sent of both is equal; the difference is in what was cut.
const Beyond = () => <p class="quiet">It changed beyond what is shown: load the rest in the states below.</p>;

function Changed({ row }) {
  const [a, b] = [shape(row.before), shape(row.value)];
  if (typeof row.before === "string" && typeof row.value === "string" && a.type === "text" && b.type === "text") return <TextChange before={row.before} after={row.value} />;
  return (
    <>
      <del><Value value={row.before} open={false} /></del>
      <ins><Value value={row.value} open={false} /></ins>
    </>
  );
}

function DiffRow({ row }) {
  if (row.mark === "…") return <li class="d-same"><span class="mark">…</span>{plural(row.count, "equal item")}</li>;
  return (
    <li class={`d d-${WORDS[row.mark]}`}>
      <span class="mark" title={WORDS[row.mark]}>{row.mark}<span class="hidden"> {WORDS[row.mark]} </span></span>
      {row.path.length > 0 && <span class="key">{pathText(row.path)}</span>}
      <span class="change">{row.mark === "~" ? <Changed row={row} /> : <Value value={row.value} open={false} />}</span>
    </li>
  );
}

// The difference of one field.
export function Difference({ before, after }) {
  const rows = difference(before, after);
  const [shown, more] = useFew(rows, ROWS);
  if (!rows.length) return <Beyond />;
  return (
    <ul class="diff">
      {shown.map((row, i) => <DiffRow key={i} row={row} />)}
      {more && <li>{more}</li>}
    </ul>
  );
}
