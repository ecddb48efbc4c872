// Numbers, times and names as texts. Every text has its unit, so that it can be read without its column.

const grouped = new Intl.NumberFormat("en-US");

export const count = (n) => (n == null ? "–" : grouped.format(n));

export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;

// 10,000 and more in thousands: "11.6k".
export function amount(n) {
  if (n == null) return "–";
  if (n < 10_000) return count(n);
  return n < 999_950 ? `${(n / 1000).toFixed(1)}k` : `${(n / 1e6).toFixed(n < 99.95e6 ? 2 : 1)}M`;
}

export const sum = (numbers) => (numbers ?? []).reduce((all, one) => all + (one ?? 0), 0);

export const tokens = (pair) => (pair ? `${amount(pair[0])} → ${amount(pair[1])} tokens` : "–");

export function duration(s) {
  if (s == null || !Number.isFinite(s)) return "–";
  if (s < 0.0005) return "0 ms";
  if (s < 0.9995) return `${Math.round(s * 1000)} ms`;
  if (s < 59.95) return `${s.toFixed(1)} s`;
  const whole = Math.round(s);
  const [d, h, m] = [Math.floor(whole / 86_400), Math.floor(whole / 3600) % 24, Math.floor(whole / 60) % 60];
  if (d) return `${d} d ${h} h`;
  return h ? `${h} h ${String(m).padStart(2, "0")} min` : `${m} min ${String(whole % 60).padStart(2, "0")} s`;
}

export function cost(dollars) {
  if (dollars == null) return "–";
  if (dollars === 0) return "$0";
  if (dollars >= 0.995) return `$${grouped.format(Number(dollars.toFixed(2)))}`;
  return dollars < 1e-7 ? "< $0.0000001" : `$${Number(dollars.toPrecision(2)).toFixed(9).replace(/0+$/, "")}`;
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

export const day = (date) => `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;

const clock = (date) => `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;

export const exact = (date) => `${day(date)} ${clock(date)}.${String(date.getMilliseconds()).padStart(3, "0")}`;

// A moment for people: "5 min ago", "14:02", "2026-11-29 14:02".
export function when(time, now = new Date()) {
  const date = moment(time);
  if (!date) return "–";
  const s = (now - date) / 1000;
  if (s >= 0 && s < 45) return "just now";
  if (s >= 0 && s < 3600) return `${Math.max(1, Math.round(s / 60))} min ago`;
  const at = `${two(date.getHours())}:${two(date.getMinutes())}`;
  return day(date) === day(now) ? at : `${day(date)} ${at}`;
}

export const first = (text, limit) => (text.length > limit ? `${text.slice(0, limit - 1)}…` : text);

// The beginning of a text, or of one that comes as {text, more}.
export const beginning = (text) => (text == null ? "" : typeof text === "object" ? String(text.text ?? "") : String(text));

export const firstLine = (text) => first(beginning(text).trimStart().split("\n", 1)[0], 300);

export function failureText(failure) {
  if (failure == null) return "";
  if (typeof failure === "string" || "text" in failure) return firstLine(failure);
  const message = firstLine(failure.message);
  return message ? `${failure.type}: ${message}` : (failure.type ?? "");
}
