// Values as text nodes: long texts, lists and mappings are folded, and unfold by parts.

import { useState } from "preact/hooks";
import { count, plural } from "./format.js";
import { isRaw } from "./numbers.js";
import { Fold } from "./parts.jsx";
import { useValues } from "./record.js";

const CHARACTERS = 2000;
const LINES = 30;
const PAGE = 50;
const INLINE = 96; // characters of a list or a mapping that is shown in one line

// A page of a long list: [items, where they begin, the buttons to the others].
export function usePages(items, size = PAGE, unit = "item", start = 0) {
  const [wanted, setFirst] = useState(start);
  const last = Math.max(0, Math.ceil(items.length / size) - 1) * size;
  const first = Math.min(wanted, last);
  if (!last) return [items, 0, null];
  const go = (to, words, label) => (
    <button type="button" class="plain" disabled={to === first} aria-label={`${label} ${unit}s`} onClick={() => setFirst(to)}>{words}</button>
  );
  return [
    items.slice(first, first + size),
    first,
    <nav class="pages" aria-label={`${unit}s`}>
      {go(0, "«", "first")}
      {go(Math.max(0, first - size), "‹", "before")}
      <span class="num">{count(first + 1)}–{count(Math.min(first + size, items.length))} of {plural(items.length, unit)}</span>
      {go(Math.min(last, first + size), "›", "next")}
      {go(last, "»", "last")}
    </nav>,
  ];
}

function LongText({ text, length = text.length, whole }) {
  const [open, setOpen] = useState(false);
  const short = text.slice(0, CHARACTERS).split("\n", LINES).join("\n");
  if (length === text.length && text.length - short.length < CHARACTERS / 4) return <span class="text">{text}</span>;
  return (
    <>
      <span class="text">{open ? (whole ? whole() : text) : `${short}…`}</span>
      <button type="button" class="fold" aria-expanded={open} onClick={() => setOpen(!open)}>
        {open ? "show less" : length == null ? "show all of it" : `show all ${plural(length, "character")}`}
      </button>
    </>
  );
}

// A text of the record: as it is, or {text: its beginning, more: the id of the whole}, which is asked for when it is unfolded.
export function Text({ record, of }) {
  if (of == null) return null;
  if (typeof of !== "object") return <LongText text={String(of)} />;
  return <LongText text={of.text} length={null} whole={() => <Whole record={record} of={of} />} />;
}

function Whole({ record, of }) {
  return useValues(record, [of.more]).get(of.more) ?? of.text;
}

export function Scalar({ of }) {
  if (of === "") return <span class="soft">empty text</span>;
  if (typeof of === "string") return <LongText text={of} />;
  if (of === null || of === undefined) return <span class="v soft">{of === null ? "None" : "–"}</span>;
  return <span class="v">{isRaw(of) ? of.rawJSON : of === true ? "True" : of === false ? "False" : String(of)}</span>;
}

const isScalar = (value) => value === null || typeof value !== "object" || isRaw(value);

export function gist(value, most = INLINE) {
  const text = typeof value === "string" ? value : isScalar(value) ? (value === null ? "None" : isRaw(value) ? value.rawJSON : String(value)) : lineOf(value, most);
  if (!text) return "empty text";
  const line = text.slice(0, most * 2).replace(/\s+/g, " ").trim();
  return line.length > most ? `${line.slice(0, most - 1)}…` : line;
}

function lineOf(value, most) {
  const list = Array.isArray(value);
  const part = ([key, item]) => `${list ? "" : `${key}: `}${isScalar(item) ? gist(item, most) : Array.isArray(item) ? `[${item.length}]` : "{…}"}`;
  const text = Object.entries(value).slice(0, most).map(part).join(", ");
  return list ? `[${text}]` : `{${text}}`;
}

// Numbers and short texts in one line: most lists are.
function isShort(value) {
  const items = Array.isArray(value) ? value : Object.values(value);
  return items.length <= 8 && items.every((item) => isScalar(item) && !(typeof item === "string" && item.includes("\n"))) && lineOf(value, INLINE).length <= INLINE / 2;
}

function Parts({ of, depth }) {
  const list = Array.isArray(of);
  const [shown, , pages] = usePages(list ? of.map((item, at) => [at + 1, item]) : Object.entries(of), PAGE, list ? "item" : "key");
  return (
    <>
      <ul class={list ? "items" : "keys"}>
        {shown.map(([key, item]) => <li key={key}><span class="key">{key}</span><div><Node of={item} depth={depth + 1} /></div></li>)}
      </ul>
      {pages}
    </>
  );
}

function Node({ of, depth }) {
  const scalar = isScalar(of);
  const size = scalar ? 0 : Array.isArray(of) ? of.length : Object.keys(of).length;
  if (scalar) return <Scalar of={of} />;
  if (!size) return <span class="v soft">{Array.isArray(of) ? "[]" : "{}"}</span>;
  if (depth && isShort(of)) return <span class="v">{lineOf(of, Infinity)}</span>;
  const parts = () => <Parts of={of} depth={depth} />;
  if (!depth) return parts();
  const words = (open) => <>{plural(size, Array.isArray(of) ? "item" : "key")} <span class="soft">{!open && gist(of)}</span></>;
  return <Fold words={words} open={depth < 2 || (depth < 4 && size <= 6)}>{parts}</Fold>;
}

const asText = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 2));

export function Copy({ of }) {
  const [done, setDone] = useState(false);
  if (!navigator.clipboard) return null;
  const copy = async () => {
    await navigator.clipboard.writeText(asText(of));
    setDone(true);
    setTimeout(() => setDone(false), 1500);
  };
  return (
    <button type="button" class="copy" aria-label={done ? "Copied" : "Copy"} title="Copy" onClick={copy}>
      <svg viewBox="0 0 12 12" aria-hidden="true"><path d={done ? "M2 6.5 5 9.5 10.5 3" : "M4 4h6.5v6.5H4zM1.5 8V1.5H8"} fill="none" stroke="currentColor" stroke-width="1.2" /></svg>
    </button>
  );
}

export function Value({ of, plain }) {
  if (of === undefined) return <span class="soft" aria-busy="true">…</span>;
  const copies = !plain && (!isScalar(of) || (typeof of === "string" && of.length > 60));
  return (
    <div class={`value${copies ? " copies" : ""}`}>
      {copies && <Copy of={of} />}
      <Node of={of} depth={0} />
    </div>
  );
}

export function ValueOf({ record, vid, plain }) {
  const values = useValues(record, vid == null ? [] : [vid]);
  return vid == null ? <span class="soft">–</span> : <Value of={values.get(vid)} plain={plain} />;
}
