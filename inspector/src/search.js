// Searching inside of a run: in the names and texts of steps at once, then in values and prompts as they come.

import { useEffect, useMemo, useReducer, useRef } from "preact/hooks";
import { beginning } from "./format.js";
import { nameOf } from "./names.js";

// Whether a JSON value has a text somewhere; `text` is in lower case.
export function mentions(value, text) {
  if (typeof value === "string") return value.toLowerCase().includes(text);
  if (typeof value !== "object" || value === null) return String(value).toLowerCase().includes(text);
  if (Array.isArray(value)) return value.some((one) => mentions(one, text));
  return Object.entries(value).some(([key, one]) => key.toLowerCase().includes(text) || mentions(one, text));
}

// The texts of a step that are in it, with where they stand: [[where, text]].
function textsOf(step) {
  const { asked, call } = step;
  const failures = [...step.failed, step.failure].filter(Boolean).map((one) => ["failure", `${one.type}: ${beginning(one.message)}`]);
  const calls = step.lm.flatMap((one) => [["model", one.model ?? ""], ["failure", beginning(one.failed)]]);
  const said = [["question", asked?.text], ["comment", asked?.answer?.comment], ["answer", asked?.answer?.by], ...step.messages.map((one) => ["message", one.text])];
  const told = [["", nameOf(step)], ["", step.node], ["reason", step.reason], ...said].map(([where, text]) => [where, beginning(text)]);
  return [...told, ...failures, ...calls, ["arguments", call ? JSON.stringify(call.args ?? "") : ""]];
}

// The ids of the values of a step, with where they stand: [[where, VID]].
function valuesOf(step) {
  const found = Object.entries(step.wrote).map(([name, { value }]) => [name, value]);
  if (step.call?.result) found.push(["result", step.call.result]);
  if (step.asked?.answer?.value) found.push(["answer", step.asked.answer.value]);
  for (const call of step.lm) found.push(...(call.messages ?? []).map((id) => ["prompt", id]), ["response", call.response]);
  for (const post of step.posts) found.push([post.field, post.value]);
  return found.filter(([, id]) => id);
}

const AHEAD = 200; // values that are asked for at once

// {hits: Map of step id to where, around: ids of the steps around them, first, read, total, done}; null without a text.
export function useSearch(record, query) {
  const text = query.trim().toLowerCase();
  const [version, renew] = useReducer((n) => n + 1, 0);
  const ids = useMemo(() => (text ? [...new Set(record.steps.flatMap((step) => valuesOf(step).map(([, id]) => id)))] : []), [record, Boolean(text)]);
  const values = record.source;
  const cache = useRef({});
  const read = ids.reduce((all, id) => all + (values.known.has(id) || values.problems.has(id)), 0);
  useEffect(() => {
    if (!text || read >= ids.length) return undefined;
    const stop = values.listen(renew);
    values.want(ids.filter((id) => !values.known.has(id) && !values.problems.has(id)).slice(0, AHEAD));
    return stop;
  }, [text, ids, version]);
  return useMemo(() => {
    if (!text) return null;
    const [hits, around] = [new Map(), new Set()];
    if (cache.current.text !== text) cache.current = { text, has: new Map() };
    const { has } = cache.current;
    const inValue = (id) => {
      if (!has.has(id) && values.known.has(id)) has.set(id, mentions(values.known.get(id), text));
      return has.get(id) ?? false;
    };
    for (const step of record.steps) {
      const where = textsOf(step).find(([, one]) => one.toLowerCase().includes(text)) ?? valuesOf(step).find(([, id]) => inValue(id));
      if (!where) continue;
      hits.set(step.id, where[0]);
      for (const one of record.around(step.id)) around.add(one.id);
    }
    return { hits, around, first: hits.keys().next().value, read, total: ids.length, done: read >= ids.length };
  }, [record, text, read >= ids.length ? ids : version]);
}
