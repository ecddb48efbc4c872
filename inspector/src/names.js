// How steps are called, and which of them only keep the books.

import { first } from "./format.js";

export const nameOf = (step) => {
  if (step.kind === "start") return "inputs";
  if (step.kind === "edit") return "edited by hand";
  return step.kind === "join" ? step.node.replace(/^join:/, "join ") : step.node;
};

// The starts of inner graphs, joins without conflicts, and what an agent does between its turns.
export function isBookkeeping(record, step) {
  if (step.status !== "done") return false;
  if (step.kind === "join") return !step.conflicts.length;
  if (step.parent === null) return false;
  if (step.kind === "start") return true;
  return step.kind === "function" && (step.node === "begin" || step.node === "settle") && record.step(step.parent)?.kind === "agent";
}

// What a step says besides its name: the first argument of a call.
export function hintOf({ call }) {
  const [value] = Object.values(call?.args ?? {});
  return value === undefined ? "" : first(typeof value === "string" ? value : JSON.stringify(value), 80);
}
