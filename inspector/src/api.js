// Answers: from the record inside of the page (a run as a file), else from the server that sent the page.

import { parseAnswer, parseJSON, parseValue, tried } from "./numbers.js";
import { href } from "./route.js";

export const LOCKED = "dspyer-locked";

// A run as a file: `run.to_html(path)` puts {about, record} into the page.
const element = document.getElementById("embedded");
export const embedded = element ? read(element.textContent) : null;

function read(text) {
  const { about, record } = parseJSON(text);
  const { values, lists, steps, ...rest } = record;
  const value = (id) => (Object.hasOwn(lists, id) ? lists[id].map(value) : values[id] ?? null); // lists share their items
  const answers = {
    about: () => about,
    record: () => ({ ...rest, items: steps, next: null, position: null, count: steps.length }),
    values: ({ id }) => ({ values: Object.fromEntries(id.map((one) => [one, value(one)])) }),
  };
  return { run: rest.run, get: async (path, params = {}) => answers[path](params) };
}

const KEY = "dspyer-token";
const channel = embedded ? null : new BroadcastChannel("dspyer");

export class ApiError extends Error {
  constructor(message, status, fields) {
    super(message);
    this.status = status;
    this.fields = fields ?? {};
  }
}

// The token comes in the fragment, `#token=abc/run?...`, and leaves the address at once: an address is copied and shown.
function takeToken() {
  const found = /^#token=([\w-]+)(.*)$/.exec(location.hash);
  if (!found) return;
  sessionStorage.setItem(KEY, found[1]);
  history.replaceState(null, "", `#${found[2].replace(/^[&;]/, "") || "/runs"}`);
}

export const token = () => (embedded ? null : sessionStorage.getItem(KEY));

export const setToken = (text) => sessionStorage.setItem(KEY, (/#token=([\w-]+)/.exec(text) ?? /([\w-]+)[^#]*$/.exec(text.trim()))?.[1] ?? "");

// A tab opened from a link has no token yet: another tab of this very origin has it.
export async function prepare() {
  if (embedded) return;
  takeToken();
  addEventListener("hashchange", takeToken); // a link with a token, opened in a tab that shows the page already
  let given;
  const answered = new Promise((done) => (given = done));
  channel.onmessage = ({ data }) => {
    if (data?.ask && token()) channel.postMessage({ token: token() });
    if (data?.token && !token()) given(sessionStorage.setItem(KEY, data.token));
  };
  if (token()) return;
  channel.postMessage({ ask: true });
  await Promise.race([answered, new Promise((done) => setTimeout(done, 150))]);
}

// Answers with values keep numbers as they were written.
const PARSERS = { values: parseValue, questions: parseAnswer, examples: parseAnswer };

async function answer(response, parse = parseJSON) {
  const text = await response.text();
  const body = tried(() => parse(text), () => undefined);
  if (response.ok && body !== undefined) return body;
  const words = response.ok ? "The answer of the server is no JSON." : (body?.error?.message ?? body?.error ?? body?.detail ?? (text.slice(0, 300) || response.statusText));
  throw new ApiError(typeof words === "string" ? words : JSON.stringify(words), response.status, body?.fields ?? body?.errors);
}

async function request(path, params, options) {
  let response;
  try {
    response = await fetch(href(path, params ?? {}, "api/"), {
      ...options,
      headers: { "X-Dspyer-Token": token() ?? "", ...options?.headers },
      credentials: "omit",
      cache: "no-store",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server does not respond. Is `dspyer inspect` still running?", 0);
  }
  // The server was started again, with another token: the shell asks for it.
  if (response.status === 401 && path !== "about") dispatchEvent(new Event(LOCKED));
  return response;
}

export async function get(path, params, signal) {
  if (embedded) return embedded.get(path, params);
  return answer(await request(path, params, { signal }), PARSERS[path]);
}

export async function post(path, body) {
  return answer(await request(path, null, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) }));
}

// Server-sent events, read with fetch since EventSource sends no headers. Connects again until `signal` aborts.
// `onLink` gets null when there is a connection, and the error when there is none.
export async function follow(params, onEvent, onLink, signal) {
  let after = params.after;
  for (let pause = 500; !signal.aborted; pause = Math.min(pause * 2, 10_000)) {
    try {
      const response = await request("follow", { ...params, after }, { signal, headers: { Accept: "text/event-stream" } });
      if (!response.ok) await answer(response);
      onLink(null);
      for await (const event of messages(response.body)) {
        if (event.event === "error") throw new ApiError(JSON.parse(event.data).message, 503);
        if (event.id) after = event.id;
        pause = 500;
        onEvent(event);
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof ApiError) onLink(error); // else a stream broke off: the next try tells
      if (error.status >= 400 && error.status < 500) return;
    }
    await new Promise((done) => setTimeout(done, pause));
  }
}

async function* messages(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split(/\r?\n\r?\n/);
    rest = parts.pop();
    for (const part of parts) {
      const line = (name) => part.split(/\r?\n/).filter((one) => one.startsWith(`${name}:`)).map((one) => one.slice(name.length + 1).replace(/^ /, ""));
      const event = { event: line("event").at(-1) ?? "message", id: line("id").at(-1) ?? "", data: line("data").join("\n") };
      if (event.data || event.event !== "message") yield event;
    }
  }
}
