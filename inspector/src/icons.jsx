// One icon and one hue for each kind of step.

const PATHS = {
  agent: "M6 1.2a2.3 2.3 0 1 1 0 4.6 2.3 2.3 0 0 1 0-4.6M1.6 11c0-2.6 2-4.2 4.4-4.2s4.4 1.6 4.4 4.2z",
  module: "M6 .8 7.4 4.6 11.2 6 7.4 7.4 6 11.2 4.6 7.4.8 6l3.8-1.4z",
  tool: "M10.8 3.2 8.9 5.1 7 4.9l-.2-1.9 1.9-1.9A3.2 3.2 0 0 0 4.6 5.2L.9 8.9l2.2 2.2 3.7-3.7a3.2 3.2 0 0 0 4-4.2z",
  map: "M1 1h4v4H1zM7 1h4v4H7zM1 7h4v4H1zM7 7h4v4H7z",
  item: "M2.5 2.5h7v7h-7z",
  join: "M2 1v3l3.2 2.6V11h1.6V6.6L10 4V1H8.4v2.2L6 5.2 3.6 3.2V1z",
  start: "M3 1.5v9L10.5 6z",
  edit: "M8.2 1 11 3.8 4.2 10.6.9 11.1l.5-3.3z",
  graph: "M4 1h4v3H6.7v1.6H10V8h1v3H8V8h.8V6.8H3.2V8H4v3H1V8h1V5.6h3.3V4H4z",
  search: "M5 1a4 4 0 1 1-.1 8A4 4 0 0 1 5 1m0 1.5a2.5 2.5 0 1 0 0 5 2.5 2.5 0 0 0 0-5M8 8.9 8.9 8l2.4 2.3-1 1z",
  trial: "M4 1h4v1.3h-.6v2.4l3 5.1c.3.6 0 1.2-.7 1.2H2.3c-.7 0-1-.6-.7-1.2l3-5.1V2.3H4z",
  check: "M1.2 6.5 4.6 10 11 2.4 9.6 1.2 4.5 7.3 2.5 5.2z",
  question: "M1 1.5h10v7H6.5L3.5 11V8.5H1z",
  user: "M1 1.5h10v7H6.5L3.5 11V8.5H1z",
};

const FUNCTION = "M4 1.5 1 6l3 4.5M8 1.5 11 6 8 10.5"; // lines, not an area

const HUES = { agent: "agent", graph: "agent", search: "agent", module: "lm", tool: "tool", map: "map", item: "map", trial: "map", question: "wait" };

export const hue = (kind) => `var(--${HUES[kind] ?? "join"})`;

export function Kind({ kind, large }) {
  return (
    <span class={large ? "ic large" : "ic"} style={{ background: hue(kind) }} title={kind}>
      <svg viewBox="0 0 12 12" aria-hidden="true">
        {kind === "function" ? <path d={FUNCTION} fill="none" stroke="currentColor" stroke-width="1.6" /> : <path d={PATHS[kind] ?? PATHS.item} fill="currentColor" />}
      </svg>
    </span>
  );
}
