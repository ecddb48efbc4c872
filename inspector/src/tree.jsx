// The steps as a tree. Only the rows in sight are elements: 100,000 rows scroll like 20.

import { isApproval } from "./asked.jsx";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { amount, count, duration, plural, sum } from "./format.js";
import { useKeys } from "./hooks.js";
import { hintOf, isBookkeeping, nameOf } from "./names.js";
import { hue, Kind, Tag } from "./parts.jsx";
import { useValues } from "./record.js";
import { useSearch } from "./search.js";
import { isOwn, scale, span, times, worked } from "./times.js";

const ROW = 30;
const OVER = 10; // rows above and below those in sight

// What is shown: {step, depth, inner: whether it has rows inside, open}.
function rowsOf(record, open, all, found) {
  const rows = [];
  const shown = (step) => all || !isBookkeeping(record, step);
  const walk = (id, depth) => {
    for (const step of record.inside(id)) {
      if (found ? !found.around.has(step.id) && !found.hits.has(step.id) : !shown(step)) continue;
      const inner = record.inside(step.id).some((one) => (found ? found.around.has(one.id) || found.hits.has(one.id) : shown(one)));
      const unfolded = inner && (found ? found.around.has(step.id) : open(step.id));
      rows.push({ step, depth, inner, open: unfolded });
      if (unfolded) walk(step.id, depth + 1);
    }
  };
  walk(null, 0);
  return rows;
}

// Approved or refused, and what a check refused: their values are asked for when the row is in sight.
function verdictIds(record, step) {
  if (step.asked?.answer?.value) return [step.asked.answer.value];
  const into = step.kind === "check" && problemsOf(record, step);
  return into ? [into] : [];
}

function problemsOf(record, step) {
  const into = record.graph(record.path(step.id))?.checks?.[step.node]?.into ?? "problems";
  return step.wrote[into]?.value ?? null;
}

function Marks({ record, step, values, where }) {
  const answer = step.asked?.answer && values.get(step.asked.answer.value);
  const ok = answer === undefined ? null : isApproval(answer);
  const problems = step.kind === "check" ? values.get(problemsOf(record, step)) : null;
  return (
    <>
      {!isOwn(record, step) && step.parent === null && <Tag title={`done by ${record.run.origin.run}`}>shared</Tag>}
      {where && <Tag title="where the search found it">{where}</Tag>}
      {step.failed.length > 0 && <Tag tone="bad">{plural(step.failed.length, "failed attempt")}</Tag>}
      {step.status === "unreadable" && <Tag tone="bad">unreadable</Tag>}
      {step.failure && <Tag tone="bad">{step.failure.type}</Tag>}
      {step.status === "waiting" && <Tag tone="wait">{step.asked ? "asks" : "waits"}</Tag>}
      {step.status === "running" && <Tag tone="live">running</Tag>}
      {step.status === "stopped" && <Tag>stopped</Tag>}
      {step.asked?.answer && (ok === null ? <Tag tone="ok">answered</Tag> : <Tag tone={ok ? "ok" : "bad"}>{ok ? "approved" : "refused"}</Tag>)}
      {Array.isArray(problems) && problems.length > 0 && <Tag tone="wait">refused the output</Tag>}
      {step.conflicts.length > 0 && <Tag tone="wait">{plural(step.conflicts.length, "conflict")}</Tag>}
    </>
  );
}

function Row({ record, row, top, selected, onSelect, onToggle, x, all, values, where, now }) {
  const { step, depth, inner, open } = row;
  const total = record.sums(step.id);
  const when = span(record, step, now);
  const [a, b] = when ? [x(when.from), x(when.till)] : [0, 0];
  const book = isBookkeeping(record, step);
  const [used, hint] = [sum(total.tokens), hintOf(step)];
  const spent = when && step.kind !== "start" && step.kind !== "edit" && (inner || step.status !== "waiting") ? duration(worked(all, when.from, when.till)) : "";
  return (
    <div
      id={`row-${step.id}`}
      role="treeitem"
      aria-level={depth + 1}
      aria-expanded={inner ? open : undefined}
      aria-selected={selected}
      class={["row", selected && "on", book && "dim", step.status === "running" && "runs"].filter(Boolean).join(" ")}
      style={{ transform: `translateY(${top}px)` }}
      onClick={() => onSelect(step.id)}
      onDblClick={() => inner && onToggle(step.id, !open)}
    >
      <div class="name">
        {Array.from({ length: Math.min(depth, 12) }, (_, i) => <span key={i} class="g" />)}
        {inner ? (
          <span
            class={open ? "tw open" : "tw"}
            aria-hidden="true"
            onClick={(event) => {
              event.stopPropagation();
              onToggle(step.id, !open);
            }}
          />
        ) : <span class="tw none" />}
        <Kind kind={step.kind} />
        <span class="lbl">{nameOf(step)}</span>
        {step.visit > 1 && <span class="x">×{count(step.visit)}</span>}
        {hint && <span class="hint">{hint}</span>}
        <Marks record={record} step={step} values={values} where={where} />
      </div>
      <div class="barcell" aria-hidden="true">
        {when && step.kind !== "start" && isOwn(record, step) && <i class="tbar" style={{ transform: `translateX(${Math.max(0, Math.min(a, x.width - 2))}px)`, width: `${Math.max(2, Math.min(b, x.width) - a)}px`, background: hue(step.kind) }} />}
      </div>
      <div class="r num">{used ? amount(used) : ""}</div>
      <div class="r num" key={`took ${spent}`}>{spent}</div>
    </div>
  );
}

const BARS = 150; // pixels of the bars in the rows

export function Tree({ record, selected, onSelect, onEnter, query, setQuery, now }) {
  const scroller = useRef(null);
  const field = useRef(null);
  const [toggled, setToggled] = useState(() => new Map());
  const [books, setBooks] = useState(false);
  const [view, setView] = useState({ top: 0, height: 600 });
  const found = useSearch(record, query);
  const first = useMemo(() => record.inside(null).find((step) => step.kind === "agent" || step.kind === "graph")?.id, [record]);
  const chosen = record.step(selected);
  const around = useMemo(() => new Set(record.around(selected).map((step) => step.id)), [record, selected]);
  const isOpen = (id) => toggled.get(id) ?? (id === first || record.sums(id).running || false);
  const rows = useMemo(
    () => rowsOf(record, isOpen, books || (chosen && isBookkeeping(record, chosen)), found),
    [record, toggled, books, found, chosen && isBookkeeping(record, chosen)],
  );
  const index = rows.findIndex((row) => row.step.id === selected);

  // What is selected is unfolded, wherever it was selected.
  useLayoutEffect(() => {
    const folded = [...around].filter((id) => !isOpen(id));
    if (folded.length) setToggled((old) => new Map([...old, ...folded.map((id) => [id, true])]));
  }, [selected]);

  const end = useRef(false);
  const seen = () => {
    const el = scroller.current;
    end.current = el.scrollTop > 0 && el.scrollTop + el.clientHeight >= el.scrollHeight - ROW;
    setView((old) => (old.top === el.scrollTop && old.height === el.clientHeight ? old : { top: el.scrollTop, height: el.clientHeight }));
  };
  useLayoutEffect(() => {
    seen();
    const watcher = new ResizeObserver(seen);
    watcher.observe(scroller.current);
    return () => watcher.disconnect();
  }, []);
  // What is selected comes into sight: once, and when a phone comes back from it to the tree, which was not shown.
  const [placed, last] = [useRef(null), useRef(null)];
  last.current = selected ?? last.current;
  const shown = view.height > 0;
  useLayoutEffect(() => {
    const [el, place] = [scroller.current, selected ? index : rows.findIndex((row) => row.step.id === last.current)];
    if (place < 0 || !shown || placed.current === (selected ?? "back")) return;
    placed.current = selected ?? "back";
    const top = place * ROW;
    if (top < el.scrollTop) el.scrollTop = Math.max(0, top - ROW);
    else if (top + ROW > el.scrollTop + el.clientHeight - 8) el.scrollTop = top + 3 * ROW - el.clientHeight;
    seen();
  }, [selected, index, shown]);
  useLayoutEffect(() => {
    if (end.current) scroller.current.scrollTop = scroller.current.scrollHeight; // the reader watches the end
  }, [rows.length]);

  const toggle = (id, open) => setToggled((old) => new Map(old).set(id, open));
  const move = (to) => rows.length && onSelect(rows[Math.max(0, Math.min(rows.length - 1, to))].step.id);
  const pressed = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const row = rows[index];
    const page = Math.max(1, Math.floor(view.height / ROW) - 1);
    const moves = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: page, PageUp: -page };
    if (event.key in moves) move(index < 0 ? 0 : index + moves[event.key]);
    else if (event.key === "Home") move(0);
    else if (event.key === "End") move(rows.length - 1);
    else if (event.key === "ArrowRight" && row?.inner) row.open ? move(index + 1) : toggle(row.step.id, true);
    else if (event.key === "ArrowLeft" && row) {
      if (row.open && !found) toggle(row.step.id, false);
      else if (row.step.parent !== null) onSelect(row.step.parent);
    } else if (event.key === "Enter" || event.key === " ") onEnter();
    else return;
    event.preventDefault();
  };
  const latest = useRef(pressed);
  latest.current = pressed;
  // Arrows and letters move wherever the focus is, but not under what uses these keys itself.
  const moved = (event, typing) => {
    const inside = event.target.closest?.("[role=tree], [role=tablist], [role=separator], .pane, dialog, summary");
    return inside || typing ? false : latest.current(event);
  };
  useKeys({
    "/": (event, typing) => (typing ? false : field.current.focus()),
    ArrowDown: moved, ArrowUp: moved, ArrowLeft: moved, ArrowRight: moved, Home: moved, End: moved, j: moved, k: moved,
    Escape: (event, typing) => {
      if (event.target !== field.current) return false;
      if (query) setQuery("");
      else scroller.current.focus();
      return undefined;
    },
  });

  const from = Math.max(0, Math.floor(view.top / ROW) - OVER);
  const to = Math.min(rows.length, Math.ceil((view.top + view.height) / ROW) + OVER);
  const inSight = rows.slice(from, to);
  const values = useValues(record, inSight.flatMap(({ step }) => verdictIds(record, step)));
  const all = times(record, now);
  const x = useMemo(() => Object.assign(scale(all, BARS), { width: BARS }), [all]);
  useEffect(() => {
    if (found && found.done && found.hits.size && !found.hits.has(selected)) onSelect(found.first);
  }, [found?.done, query]);
  return (
    <section class="left" aria-label="Steps">
      <div class="tools">
        <input
          ref={field}
          type="search"
          class="find"
          value={query}
          placeholder="Search steps, values and prompts"
          aria-label="Search steps, values and prompts"
          onInput={(event) => setQuery(event.target.value)}
          onKeyDown={(event) => {
            if (event.key !== "ArrowDown" && event.key !== "Enter") return;
            event.preventDefault();
            scroller.current.focus();
          }}
        />
        {found && <span class="soft num found">{found.done ? plural(found.hits.size, "step") : `${amount(found.read)} of ${amount(found.total)} values`}</span>}
        <label class="check">
          <input type="checkbox" checked={books} onChange={(event) => setBooks(event.target.checked)} /> bookkeeping
        </label>
      </div>
      <div
        ref={scroller}
        class="tree"
        role="tree"
        aria-label="Steps of the run"
        tabIndex={0}
        aria-activedescendant={index >= from && index < to ? `row-${selected}` : undefined}
        aria-busy={!record.complete}
        onScroll={seen}
        onKeyDown={pressed}
      >
        <div class="space" role="none" style={{ height: `${rows.length * ROW}px` }}>
          {inSight.map((row, i) => (
            <Row
              key={row.step.id}
              record={record}
              row={row}
              top={(from + i) * ROW}
              selected={row.step.id === selected}
              onSelect={onSelect}
              onToggle={toggle}
              x={x}
              all={all}
              values={values}
              where={found?.hits.get(row.step.id)}
              now={row.step.status === "running" || record.sums(row.step.id).running ? now : 0}
            />
          ))}
        </div>
        {!rows.length && <p class="empty">{found ? "No step has this text." : "No step yet."}</p>}
      </div>
    </section>
  );
}
