import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { get } from "./api.js";
import { count } from "./format.js";

const LATEST = 30_000; // milliseconds between two questions, if the server takes long or does not answer
const SHARE = 6; // of the time that an answer takes, between two questions

// What `get` answers: {data, error, busy, current, renew}. The last answer stays until the next one is there: nothing jumps.
// With `every`, it is asked again so many milliseconds later, while the tab is looked at.
export function useAnswer(path, params, { version = 0, every = 0 } = {}) {
  const key = path && JSON.stringify([path, params]);
  const [state, setState] = useState({ data: null, error: null, key: null, text: "" });
  const ask = useRef(() => undefined);
  useEffect(() => {
    if (!key) return undefined;
    const stop = new AbortController();
    let [timer, tries, asking] = [null, 0, false];
    const renew = async () => {
      clearTimeout(timer);
      if (asking) return;
      asking = true;
      const from = performance.now();
      try {
        const data = await get(path, params, stop.signal);
        const text = every ? JSON.stringify(data) : "";
        tries = 0;
        if (!stop.signal.aborted) setState((old) => (every && old.key === key && old.text === text && !old.error ? old : { key, data, error: null, text }));
      } catch (error) {
        tries += 1;
        if (!stop.signal.aborted) setState((old) => ({ ...(old.key === key ? old : { data: null, text: "" }), key, error }));
      }
      asking = false;
      if (stop.signal.aborted || !every) return;
      timer = setTimeout(() => document.hidden || renew(), Math.min(LATEST, Math.max(every * 2 ** tries, (performance.now() - from) * SHARE)));
    };
    const seen = () => every && !document.hidden && renew();
    document.addEventListener("visibilitychange", seen);
    ask.current = renew;
    renew();
    return () => {
      stop.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", seen);
    };
  }, [key, version]);
  const current = state.key === key;
  return { data: state.data, error: current ? state.error : null, busy: Boolean(key) && !current, current, renew: () => ask.current() };
}

// The pages of a list, whose first one is an `answer`. What changes is renewed in place; what is new waits for `restart`:
// nothing moves under a reader's hand.
export function useListed(path, filter, { data, error, busy, current }, idOf) {
  const key = JSON.stringify(filter);
  const [state, setState] = useState({ key: null, items: [], next: null, problem: null });
  const restart = () => setState({ key, ...data, problem: null });
  useEffect(() => {
    if (!data || !current) return;
    const now = new Map(data.items.map((one) => [idOf(one), one]));
    if (state.key !== key) restart();
    else setState((old) => ({ ...old, items: old.items.map((one) => now.get(idOf(one)) ?? one) }));
  }, [data, key, current]);
  const known = new Set(state.items.map(idOf));
  const isNew = (one) => !known.has(idOf(one));
  const more = async () => {
    try {
      const page = await get(path, { ...filter, after: state.next });
      setState((old) => ({ ...old, ...page, items: [...old.items, ...page.items.filter(isNew)], left_out: (old.left_out ?? 0) + (page.left_out ?? 0), problem: null }));
      announce(`${count(page.items.length)} more loaded`);
    } catch (problem) {
      setState((old) => ({ ...old, problem }));
    }
  };
  const fresh = data && current && state.key === key ? data.items.filter(isNew) : [];
  const items = error && state.key !== key ? [] : state.items;
  return { ...state, items, fresh, error: error ?? state.problem, busy: busy || (Boolean(data) && state.key !== key), more, restart };
}

function stored(name, value) {
  try {
    return value === undefined ? localStorage.getItem(name) : localStorage.setItem(name, value);
  } catch {
    return null; // a file opened from disk may have no storage: then nothing is kept
  }
}

// What a browser keeps for the page: [value, put].
export function useStored(name, initial) {
  const [value, setValue] = useState(() => stored(name) ?? initial);
  return [value, (now) => (setValue(now), stored(name, now))];
}

export function useMedia(query) {
  const [matches, setMatches] = useState(() => matchMedia(query).matches);
  useEffect(() => {
    const list = matchMedia(query);
    list.onchange = () => setMatches(list.matches);
    return () => void (list.onchange = null);
  }, [query]);
  return matches;
}

// Keys of a page: {j: action, ...}. Not while the reader types, and not under a dialog.
export function useKeys(keys) {
  const latest = useRef(keys);
  latest.current = keys;
  useEffect(() => {
    const pressed = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
      if (document.querySelector("dialog[open]")) return;
      const typing = event.target.closest?.("input, textarea, select, [contenteditable]");
      if (typing && event.key !== "Escape") return;
      const action = latest.current[event.key];
      if (action && action(event, typing) !== false) event.preventDefault();
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
}

// What a screen reader is told, in the polite live region of the shell.
export function announce(text) {
  const region = document.getElementById("news");
  if (region) region.textContent = text;
}

export function useTitle(text) {
  useEffect(() => {
    document.title = text ? `${text} · dspyer` : "dspyer";
  }, [text]);
}

export function watchSize(element, seen) {
  seen();
  const watcher = new ResizeObserver(seen);
  watcher.observe(element);
  return () => watcher.disconnect();
}

export function useWidth() {
  const ref = useRef(null);
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => watchSize(ref.current, () => setWidth(ref.current.clientWidth)), []);
  return [ref, width];
}

export function useNow(on, every = 1000) {
  const [now, setNow] = useState(() => Date.now() / 1000);
  useEffect(() => {
    if (!on) return undefined;
    const timer = setInterval(() => setNow(Date.now() / 1000), every);
    return () => clearInterval(timer);
  }, [on, every]);
  return now;
}
