// The address: `#/run?thread=a&run=b&step=a.1/trunk:3&tab=graph`. Back and forward are the browser's own.

import { useEffect, useState } from "preact/hooks";

export function parse(hash) {
  const found = /^#\/?(\w*)(?:\?(.*))?$/.exec(hash) ?? [];
  return { page: found[1] || "runs", params: Object.fromEntries(new URLSearchParams(found[2] ?? "")) };
}

// The parameters of an address or a request; what is empty is left out.
function query(params) {
  const found = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) for (const one of [value].flat()) if (one !== undefined && one !== null && one !== "") found.append(name, one);
  return found.size ? `?${found}` : "";
}

export const href = (page, params = {}, before = "#/") => `${before}${page}${query(params)}`;

export function go(page, params, { replace = false } = {}) {
  const address = href(page, params);
  if (address === location.hash) return;
  // At once, and not when the browser's own event comes: the next key builds on this address.
  if (replace) history.replaceState(history.state, "", address);
  else history.pushState(null, "", address);
  dispatchEvent(new HashChangeEvent("hashchange"));
}

export function useRoute() {
  const [route, setRoute] = useState(() => parse(location.hash));
  useEffect(() => {
    const changed = () => setRoute(parse(location.hash));
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return route;
}
