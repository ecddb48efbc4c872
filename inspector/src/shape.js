// The JSON form of values (dspyer/values/json.py): values that JSON does not have are objects with the key "$type".

import { isRaw } from "./numbers.js";

const TAG = "$type";

// What a value looks like: {kind: "scalar" | "list" | "map", label, open, close, entries, text, type}.
export function shape(value) {
  if (value === undefined) return scalar("absent", "absent");
  if (value === null) return scalar("None", "none");
  if (typeof value === "string") return scalar(value, "text");
  if (isRaw(value)) return scalar(value.rawJSON, "number");
  if (typeof value === "number") return scalar(String(value), "number");
  if (typeof value === "boolean") return scalar(value ? "True" : "False", "bool");
  if (Array.isArray(value)) return list(value, "list", "[", "]");
  const tag = value[TAG];
  return typeof tag === "string" ? tagged(tag, value) : map(Object.entries(value), "", "{", "}");
}

const scalar = (text, type, label = "") => ({ kind: "scalar", text, type, label, entries: [] });

function list(items, label, open, close) {
  return { kind: "list", label, open, close, entries: items.map((item, i) => [i, item]) };
}

const map = (entries, label, open, close) => ({ kind: "map", label, open, close, entries });

const keyText = (key) => (typeof key === "string" ? key : (shape(key).text ?? JSON.stringify(key)));

const pairs = (found) => found.map(([key, item]) => [keyText(key), item]);

function tagged(tag, value) {
  const inner = value.value;
  const name = typeof value.class === "string" ? value.class.split(/[:.]/).pop() : tag;
  switch (tag) {
    case "delete":
      return scalar("deleted", "deleted");
    case "tuple":
      return list(inner, "tuple", "(", ")");
    case "set":
    case "frozenset":
      return list(inner, tag, "{", "}");
    case "dict":
      return map(pairs(inner), "dict", "{", "}");
    case "patch":
      return map(pairs(inner), "patch", "{", "}");
    case "updates":
      return list(inner, "updates", "[", "]");
    case "cut":
      return cutValue(value);
    case "replace":
      return { ...shape(inner), label: "replaces the whole value" };
  }
  if (inner !== null && typeof inner === "object") return { ...shape(inner), label: name };
  if (inner === undefined) {
    const rest = Object.entries(value).filter(([key]) => key !== TAG && key !== "class");
    return map(rest, name, "{", "}");
  }
  return scalar(typeof inner === "string" ? inner : JSON.stringify(inner), tag, name);
}

// A long value of which the server has sent the first part; `cut` says where the rest is.
function cutValue(mark) {
  const { kind, length, path, value } = mark;
  return { ...shape(kind === "mapping" ? { ...value } : value), cut: { kind, length, path } };
}

// What was sent of a value: all of it, unless it is cut.
export const shown = (value) => (value?.[TAG] === "cut" ? value.value : value);

// As the server counts the characters of a text.
export const points = (text) => [...text].length;

function size(value) {
  if (value?.[TAG] === "cut") return value.length;
  return typeof value === "string" ? points(value) : Object.keys(value ?? {}).length;
}

// Of cut values only what was sent of both can be compared; one may be shorter.
function alike(a, b) {
  if (size(a) !== size(b)) return false;
  const [one, other] = [shown(a), shown(b)];
  if (typeof one === "string" && typeof other === "string") return one.startsWith(other) || other.startsWith(one);
  if (Array.isArray(one) !== Array.isArray(other) || typeof one !== typeof other) return false;
  return Object.keys(one).every((key) => !Object.hasOwn(other, key) || same(one[key], other[key]));
}

export function same(a, b) {
  if (a === b) return true;
  if (a?.[TAG] === "cut" || b?.[TAG] === "cut") return alike(a, b);
  if (typeof a !== "object" || typeof b !== "object" || a === null || b === null) return false;
  if (Array.isArray(a) !== Array.isArray(b)) return false;
  const keys = Object.keys(a);
  return keys.length === Object.keys(b).length && keys.every((key) => Object.hasOwn(b, key) && same(a[key], b[key]));
}

// A field may have any name, that of an attribute of all objects too.
export const own = (object, name) => (Object.hasOwn(object, name) ? object[name] : undefined);

// The difference of two values as rows {mark: "+" | "-" | "~" | "…", path, value, before, count}.
export function difference(before, after, path = []) {
  if (same(before, after)) return [];
  if (before === undefined) return [{ mark: "+", path, value: after }];
  if (after === undefined) return [{ mark: "-", path, value: before }];
  const [a, b] = [shape(before), shape(after)];
  if (a.kind === "map" && b.kind === "map" && a.label === b.label) return ofMaps(a, b, path);
  if (a.kind === "list" && b.kind === "list" && a.label === b.label) return ofLists(a, b, path);
  return [{ mark: "~", path, before, value: after }];
}

function ofMaps(a, b, path) {
  const old = new Map(a.entries);
  const now = new Map(b.entries);
  const keys = [...new Set([...old.keys(), ...now.keys()])];
  return keys.flatMap((key) => difference(old.get(key), now.get(key), [...path, key]));
}

// Lists mostly grow at their end: what is equal at both ends is counted, what is between is shown.
function ofLists(a, b, path) {
  const [old, now] = [a.entries.map((entry) => entry[1]), b.entries.map((entry) => entry[1])];
  let head = 0;
  while (head < old.length && head < now.length && same(old[head], now[head])) head += 1;
  let tail = 0;
  while (tail < old.length - head && tail < now.length - head && same(old.at(-1 - tail), now.at(-1 - tail))) tail += 1;
  const [gone, come] = [old.slice(head, old.length - tail), now.slice(head, now.length - tail)];
  const rows = head ? [{ mark: "…", path, count: head }] : [];
  const paired = Math.min(gone.length, come.length);
  for (let i = 0; i < paired; i += 1) rows.push(...difference(gone[i], come[i], [...path, head + i]));
  for (let i = paired; i < gone.length; i += 1) rows.push({ mark: "-", path: [...path, head + i], value: gone[i] });
  for (let i = paired; i < come.length; i += 1) rows.push({ mark: "+", path: [...path, head + i], value: come[i] });
  if (tail) rows.push({ mark: "…", path, count: tail });
  return rows;
}

export const pathText = (path) =>
  path.map((part, i) => (typeof part === "number" ? `[${part}]` : `${i ? "." : ""}${part}`)).join("");
