// Answers that are asked for again and again while the tab is looked at: what another tab or process does is shown within
// half a second, and a server that takes long is asked less often.

import { useEffect, useRef, useState } from "preact/hooks";
import { get } from "./api.js";

const SOONEST = 300; // milliseconds between an answer and the next question
const LATEST = 30_000;
const SHARE = 6; // of the time that an answer takes, between two questions

// {data, error, busy, renew}: `data` is that of these parameters; null until it is there.
export function useRenewed(path, params, soonest = SOONEST) {
  const key = path && JSON.stringify([path, params]);
  const [state, setState] = useState({ key: null, data: null, error: null, text: "" });
  const ask = useRef(() => undefined);
  useEffect(() => {
    if (!key) return undefined;
    const stop = new AbortController();
    let timer = null;
    let tries = 0;
    let asking = false;
    const renew = async () => {
      clearTimeout(timer);
      if (asking) return;
      asking = true;
      const from = performance.now();
      try {
        const data = await get(path, params, stop.signal);
        const text = JSON.stringify(data);
        tries = 0;
        setState((old) => (old.key === key && old.text === text && !old.error ? old : { key, data, error: null, text }));
      } catch (error) {
        if (stop.signal.aborted) return;
        tries += 1;
        setState((old) => ({ ...(old.key === key ? old : { data: null, text: "" }), key, error }));
      }
      asking = false;
      if (stop.signal.aborted) return;
      const pause = Math.max(soonest * 2 ** tries, (performance.now() - from) * SHARE);
      timer = setTimeout(() => (document.hidden ? undefined : renew()), Math.min(LATEST, pause));
    };
    const seen = () => document.hidden || renew();
    document.addEventListener("visibilitychange", seen);
    ask.current = renew;
    renew();
    return () => {
      stop.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", seen);
    };
  }, [key]);
  const current = state.key === key;
  return { data: current ? state.data : null, error: current ? state.error : null, busy: Boolean(key) && !current, renew: () => ask.current() };
}
