// Numbers, times and names as texts. Every text has its unit, so that it can be read without its column.

import { shown } from "./shape.js";

const grouped = new Intl.NumberFormat("en-US");

export const count = (n) => (n == null ? "–" : grouped.format(n));

export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;

export function seconds(s) {
  if (s == null || !Number.isFinite(s)) return "–";
  if (s < 0.0005) return "0 ms";
  if (s < 0.9995) return `${Math.round(s * 1000)} ms`;
  if (s < 59.95) return `${s < 9.995 ? s.toFixed(2) : s.toFixed(1)} s`;
  const whole = Math.round(s);
  const [h, m, rest] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  return h ? `${h} h ${String(m).padStart(2, "0")} min` : `${m} min ${String(rest).padStart(2, "0")} s`;
}

export function usd(cost) {
  if (cost == null) return "–";
  if (cost === 0) return "0 USD";
  const digits = cost >= 1 ? 2 : cost >= 0.01 ? 3 : 5;
  const text = cost.toFixed(digits);
  return Number(text) === 0 ? `< 0.00001 USD` : `${text} USD`;
}

// Times travel as seconds since the epoch or as ISO texts.
export function moment(time) {
  if (time == null || time === 0) return null;
  const date = new Date(typeof time === "number" ? time * 1000 : time);
  return Number.isNaN(date.getTime()) ? null : date;
}

export const epoch = (time) => {
  const date = moment(time);
  return date ? date.getTime() / 1000 : null;
};

const two = (n) => String(n).padStart(2, "0");

const clock = (date) => `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;

export const day = (date) => `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;

export const exact = (date) => `${day(date)} ${clock(date)}.${String(date.getMilliseconds()).padStart(3, "0")}`;

export function ago(date, now = new Date()) {
  const s = (now - date) / 1000;
  if (s < 45) return "just now";
  if (s < 3600) return `${Math.max(1, Math.round(s / 60))} min ago`;
  if (day(date) === day(now)) return `${two(date.getHours())}:${two(date.getMinutes())}`;
  return `${day(date)} ${two(date.getHours())}:${two(date.getMinutes())}`;
}

// Branches travel as lists of numbers; [] is the trunk.
export const branchName = (branch) => (branch == null || branch.length === 0 ? "trunk" : branch.join("."));

export const onBranch = (branch) => (branchName(branch) === "trunk" ? "trunk" : `branch ${branchName(branch)}`);

export const first = (text, limit) => (text.length > limit ? `${text.slice(0, limit - 1)}…` : text);

// The beginning of a text, which may be cut, for one line of the page.
export const firstLine = (text) => first(String(shown(text) ?? "").split("\n", 1)[0], 300);

// A Failure or {type, message} in one line.
export const failureText = (failure) => {
  if (failure == null) return "";
  if (typeof failure === "string") return failure;
  const words = failure.message ? `${failure.type}: ${failure.message}` : failure.type;
  return words ?? "";
};

// The tokens of a usage: {model: {prompt_tokens, completion_tokens, total_tokens, requests, cost}}.
export function totals(usage) {
  const sum = { prompt: 0, response: 0, total: 0, requests: 0 };
  for (const one of Object.values(usage ?? {})) {
    const prompt = one.prompt_tokens ?? 0;
    const response = one.completion_tokens ?? one.response_tokens ?? 0;
    sum.prompt += prompt;
    sum.response += response;
    sum.total += one.total_tokens ?? prompt + response;
    sum.requests += one.requests ?? 0;
  }
  return sum;
}

// The items of a map: "3 of 5 items, 1 failed".
export function itemsText({ total, done, failed, waiting }) {
  const more = [[failed, "failed"], [waiting, "waiting"]].filter(([n]) => n).map(([n, what]) => `, ${count(n)} ${what}`);
  return `${count(done)} of ${plural(total, "item")}${more.join("")}`;
}
