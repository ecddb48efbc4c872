// Small parts that several pages use.

import { Component } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { ago, count, exact, moment } from "./format.js";

export const STATUSES = ["completed", "failed", "interrupted", "running", "stopped", "crashed"];

const MARKS = { completed: "✓", failed: "✕", crashed: "✕", interrupted: "?", running: "▸", stopped: "■" };

export function Status({ status }) {
  return (
    <span class={`status s-${status}`}>
      <span class="sign" aria-hidden="true">{MARKS[status] ?? "·"}</span>
      {status}
    </span>
  );
}

export function Time({ time }) {
  const date = moment(time);
  if (!date) return <span class="quiet">–</span>;
  return <time dateTime={date.toISOString()} title={exact(date)}>{ago(date)}</time>;
}

export function Clock({ time }) {
  const date = moment(time);
  if (!date) return <span class="quiet">–</span>;
  return <time dateTime={date.toISOString()} title={exact(date)}>{exact(date).slice(11)}</time>;
}

export function Facts({ items }) {
  return (
    <dl class="facts">
      {items.filter(Boolean).map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

// `old`: what was read before stands below it.
export const Problem = ({ error, old, title, onRetry }) => (
  <div class="problem" role="alert">
    <strong>{title ?? (error.status === 0 ? "No connection" : "This did not work")}</strong>
    <p>{error.message}{old && " What is shown here was read before."}</p>
    {onRetry && <button type="button" onClick={onRetry}>Try again</button>}
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

  render({ what, children }, { error }) {
    return error ? <Problem error={error} title={`${what} cannot be shown`} onRetry={() => this.setState({ error: null })} /> : children;
  }
}

// The first entries of a list, and a button that shows the others.
export function useFew(items, most = 60) {
  const [all, setAll] = useState(false);
  const left = all ? 0 : items.length - most;
  if (left <= 0) return [items, null];
  return [items.slice(0, most), <button type="button" class="fold" onClick={() => setAll(true)}>show {count(left)} more</button>];
}

export const Empty = ({ children }) => <div class="empty">{children}</div>;

export function Dialog({ title, onClose, children, wide }) {
  const ref = useRef(null);
  useEffect(() => {
    const back = document.activeElement;
    ref.current.showModal();
    return () => back?.focus?.();
  }, []);
  return (
    <dialog
      ref={ref}
      class={wide ? "wide" : ""}
      aria-labelledby="dialog-title"
      onClose={onClose}
      onCancel={(event) => {
        event.preventDefault();
        onClose();
      }}
    >
      <header>
        <h2 id="dialog-title">{title}</h2>
        <button type="button" class="plain" onClick={onClose} aria-label="Close">✕</button>
      </header>
      {children}
    </dialog>
  );
}

// j and k, arrows, Home and End move the focus through the elements of a list.
export function moveFocus(container, selector, event) {
  const items = [...container.querySelectorAll(selector)];
  if (!items.length) return;
  const at = items.indexOf(document.activeElement);
  const steps = { j: 1, ArrowDown: 1, ArrowRight: 1, k: -1, ArrowUp: -1, ArrowLeft: -1 };
  let to;
  if (event.key === "Home") to = 0;
  else if (event.key === "End") to = items.length - 1;
  else to = at < 0 ? 0 : at + (steps[event.key] ?? 0);
  items[Math.max(0, Math.min(items.length - 1, to))].focus();
}

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
      {tabs.map(({ id, name, count }) => (
        <button
          key={id}
          type="button"
          role="tab"
          id={`tab-${id}`}
          aria-selected={id === selected}
          aria-controls="panel"
          tabIndex={id === selected ? 0 : -1}
          onClick={() => onSelect(id)}
        >
          {name}
          {count ? <span class="badge">{count}</span> : null}
        </button>
      ))}
    </div>
  );
}
