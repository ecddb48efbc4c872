import { useEffect, useRef, useState } from "preact/hooks";
import { get } from "./api.js";

// What `get` answers: {data, error, busy}. The last answer stays until the next one is there: nothing jumps.
export function useAnswer(path, params, version = 0) {
  const key = path && JSON.stringify([path, params]);
  const [state, setState] = useState({ data: null, error: null, key: null });
  useEffect(() => {
    if (!key) return undefined;
    const stop = new AbortController();
    get(path, params, stop.signal).then(
      (data) => stop.signal.aborted || setState({ data, error: null, key }),
      (error) => stop.signal.aborted || setState((old) => ({ data: old.key === key ? old.data : null, error, key })),
    );
    return () => stop.abort();
  }, [key, version]);
  return { ...state, busy: key !== null && state.key !== key, current: state.key === key };
}

export function useMedia(query) {
  const [matches, setMatches] = useState(() => matchMedia(query).matches);
  useEffect(() => {
    const list = matchMedia(query);
    const changed = () => setMatches(list.matches);
    list.addEventListener("change", changed);
    return () => list.removeEventListener("change", changed);
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

// The time, renewed while `on`.
export function useNow(on, every = 1000) {
  const [now, setNow] = useState(() => Date.now() / 1000);
  useEffect(() => {
    if (!on) return undefined;
    const timer = setInterval(() => setNow(Date.now() / 1000), every);
    return () => clearInterval(timer);
  }, [on, every]);
  return now;
}
