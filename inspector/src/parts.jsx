// Small parts that several views use.

import { Component } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { count, exact, moment, when } from "./format.js";
import { useKeys } from "./hooks.js";

export { Kind, hue } from "./icons.jsx";

export const STATUSES = ["completed", "failed", "interrupted", "running", "stopped", "crashed"];

const TONES = { completed: "ok", done: "ok", failed: "bad", crashed: "bad", unreadable: "bad", interrupted: "wait", waiting: "wait", running: "live" };

export const Status = ({ status }) => <span class={`pill ${TONES[status] ?? ""}`}>{status}</span>;

// A small mark beside a name: tone is "ok", "bad", "wait" or none.
export const Tag = ({ tone = "", title, children }) => <span class={`tag ${tone}`} title={title}>{children}</span>;

export const Button = ({ main, small, danger, class: more = "", children, ...rest }) => (
  <button type="button" class={["btn", main && "main", small && "small", danger && "danger", more].filter(Boolean).join(" ")} {...rest}>{children}</button>
);

export function Time({ time }) {
  const date = moment(time);
  if (!date) return <span class="soft">–</span>;
  return <time dateTime={date.toISOString()} title={exact(date)}>{when(date)}</time>;
}

// `old`: what was read before stands below it.
export const Problem = ({ error, old, title, onRetry }) => (
  <div class="note bad" role="alert">
    <b>{title ?? (error.status === 0 ? "No connection" : "This did not work")}</b>
    <p class="whole">{String(error.message ?? error).slice(0, 2000)}{old && " What is shown here was read before."}</p>
    {onRetry && <Button small onClick={onRetry}>Try again</Button>}
  </div>
);

// A part of the page that fails says so, and the others stay. It is made again when the reader asks, or goes elsewhere (`of`).
export class Boundary extends Component {
  static getDerivedStateFromError(error) {
    return { error };
  }

  componentDidUpdate(before) {
    if (this.state.error && before.of !== this.props.of) this.setState({ error: null });
  }

  render({ what = "This part", children }, { error }) {
    return error ? <Problem error={error} title={`${what} cannot be shown`} onRetry={() => this.setState({ error: null })} /> : children;
  }
}

// The first entries of a list, and a button that shows as many more.
export function useFew(items, most = 60) {
  const [shown, setShown] = useState(most);
  const left = items.length - shown;
  if (left <= 0) return [items, null];
  return [items.slice(0, shown), <Button small onClick={() => setShown(shown + most)}>Show {count(Math.min(most, left))} more of {count(items.length)}</Button>];
}

export const Field = ({ name, title, out, children }) => (
  <div class={out ? "field out" : "field"}><dt title={title}>{name}</dt><dd>{children}</dd></div>
);

// What a click on its words unfolds; `words` may depend on whether it is open.
export function Fold({ words, open: start = false, look = "twist", children }) {
  const [open, setOpen] = useState(start);
  return (
    <>
      <button type="button" class={look} aria-expanded={open} onClick={() => setOpen(!open)}>{typeof words === "function" ? words(open) : words}</button>
      {open && children()}
    </>
  );
}

export const Wrong = ({ id, words }) => words && <p id={`${id}-wrong`} class="bad wrong" role="alert">{words}</p>;

// A text of a form with its label, and what is wrong with it. With `rows` it may be long.
export function Line({ id, label, hint, wrong, rows, onText, children, ...rest }) {
  const told = { id, autocomplete: "off", "aria-invalid": Boolean(wrong), "aria-describedby": wrong ? `${id}-wrong` : undefined, ...rest };
  return (
    <div class="inputline">
      <label for={id}>{label} {hint && <span class="soft">{hint}</span>}</label>
      {rows ? <textarea rows={rows} onInput={(event) => onText(event.target.value)} {...told} /> : <input onInput={(event) => onText(event.target.value)} {...told} />}
      {children}
      <Wrong id={id} words={wrong} />
    </div>
  );
}

export const rowsFor = (text) => Math.min(16, Math.max(2, text.slice(0, 4000).split("\n").length + Math.floor(Math.min(4000, text.length) / 100)));

export function Dialog({ title, onClose, children, wide }) {
  const ref = useRef(null);
  useEffect(() => {
    const back = document.activeElement;
    ref.current.showModal();
    return () => back?.focus?.();
  }, []);
  return (
    <dialog ref={ref} class={wide ? "wide" : ""} aria-labelledby="dialog-title" onClose={onClose} onCancel={(event) => (event.preventDefault(), onClose())}>
      <header>
        <h2 id="dialog-title">{title}</h2>
        <button type="button" class="plain" onClick={onClose} aria-label="Close">✕</button>
      </header>
      {children}
    </dialog>
  );
}

// Arrows, Home and End move the focus through the elements of a list.
export function moveFocus(container, selector, event) {
  const items = [...container.querySelectorAll(selector)];
  const steps = { j: 1, ArrowDown: 1, ArrowRight: 1, k: -1, ArrowUp: -1, ArrowLeft: -1, Home: -Infinity, End: Infinity };
  if (!items.length || !(event.key in steps)) return;
  const to = items.indexOf(document.activeElement) + steps[event.key];
  items[Math.max(0, Math.min(items.length - 1, to))].focus();
}

// Those keys, j and k walk through a list, and "/" goes to its search; `more`: further keys.
export function useListKeys(list, selector, more) {
  const move = (event) => (list.current ? moveFocus(list.current, selector, event) : false);
  const walk = Object.fromEntries(["j", "k", "ArrowDown", "ArrowUp", "Home", "End"].map((key) => [key, move]));
  useKeys({ ...walk, "/": () => document.getElementById("filter-contains")?.focus(), Escape: (event) => event.target.blur?.(), ...more });
}

// `tabs`: [{id, name, count}]. What is selected stands in an element with the id "panel" and the role tabpanel.
export function Tabs({ label, tabs, selected, onSelect }) {
  const ref = useRef(null);
  const pressed = (event) => {
    if (!["ArrowLeft", "ArrowRight", "Home", "End"].includes(event.key)) return;
    event.preventDefault();
    moveFocus(ref.current, "[role=tab]", event);
    document.activeElement.click();
  };
  return (
    <div class="tabs" role="tablist" aria-label={label} ref={ref} onKeyDown={pressed}>
      {tabs.map(({ id, name, count: number }) => (
        <button key={id} {...{ type: "button", role: "tab", class: "tab", id: `tab-${id}`, "aria-selected": id === selected, "aria-controls": "panel", tabIndex: id === selected ? 0 : -1 }} onClick={() => onSelect(id)}>
          {name}{number ? <span class="badge">{count(number)}</span> : null}
        </button>
      ))}
    </div>
  );
}
