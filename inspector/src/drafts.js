// Drafts: what was typed and not yet sent. They outlive the part of the page that shows them, and a reload of the tab.

import { useLayoutEffect, useState } from "preact/hooks";

const PREFIX = "dspyer-draft:";
const known = new Map(); // also where a page has no storage, as a file opened from disk
const readers = new Map();

function read(key) {
  if (known.has(key)) return known.get(key);
  try {
    const text = sessionStorage.getItem(PREFIX + key);
    return text === null ? undefined : JSON.parse(text);
  } catch {
    return undefined; // no storage
  }
}

function write(key, value) {
  known.set(key, value);
  try {
    if (value === undefined) sessionStorage.removeItem(PREFIX + key);
    else sessionStorage.setItem(PREFIX + key, JSON.stringify(value));
  } catch {
    // no storage, or it is full: memory has it
  }
  for (const renew of readers.get(key) ?? []) renew({});
}

// [value, set, clear] of a draft by its key. `initial` is what stands there as long as nothing was typed.
export function useDraft(key, initial) {
  const [, renew] = useState();
  useLayoutEffect(() => { // before the first key is typed
    const all = readers.get(key) ?? new Set();
    readers.set(key, all.add(renew));
    return () => all.delete(renew);
  }, [key]);
  return [read(key) ?? initial, (value) => write(key, value), () => write(key, undefined)];
}

export const hasDraft = (key) => read(key) !== undefined;
