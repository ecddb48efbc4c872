// The steps as a tree. Only the rows in sight are elements: 100,000 rows scroll like 20.

import { isApproval } from "./asked.jsx";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { amount, count, duration, plural, sum } from "./format.js";
import { useKeys, watchSize } from "./hooks.js";
import { hintOf, isBookkeeping, nameOf } from "./names.js";
import { hue, Kind, Tag } from "./parts.jsx";
import { useValues } from "./record.js";
import { useSearch } from "./search.js";
import { isOwn, scale, span, times, worked } from "./times.js";

const ROW = 30;
const FIND = "Search steps, values and prompts";
const OVER = 10; // rows above and below those in sight

// What is shown: {step, depth, inner: whether it has rows inside, open}.
function rowsOf(record, open, all, found) {
  const rows = [];
  const fits = (step) => (found ? found.around.has(step.id) || found.hits.has(step.id) : all || !isBookkeeping(record, step));
  const walk = (id, depth) => {
    for (const step of record.inside(id).filter(fits)) {
      const inner = record.inside(step.id).some(fits);
      const unfolded = inner && (found ? found.around.has(step.id) : open(step.id));
      rows.push({ step, depth, inner, open: unfolded });
      if (unfolded) walk(step.id, depth + 1);
    }
  };
  walk(null, 0);
  return rows;
}

// The id of what a person answered, or a check refused: its value is asked for when the row is in sight.
function verdictOf(record, step) {
  if (step.kind !== "check") return step.asked?.answer?.value ?? null;
  return step.wrote[record.graph(record.path(step.id))?.checks?.[step.node]?.into ?? "problems"]?.value ?? null;
}

function Marks({ record, step, verdict, where }) {
  const ok = isApproval(verdict);
  const marks = [
    !isOwn(record, step) && step.parent === null && ["shared", "", `done by ${record.run.origin.run}`],
    where && [where, "", "where the search found it"],
    step.failed.length > 0 && [plural(step.failed.length, "failed attempt"), "bad"],
    step.status === "unreadable" && ["unreadable", "bad"],
    step.failure && [step.failure.type, "bad"],
    step.status === "waiting" && [step.asked ? "asks" : "waits", "wait"],
    step.status === "running" && ["running", "live"],
    step.status === "stopped" && ["stopped"],
    step.asked?.answer && (ok === null ? ["answered", "ok"] : ok ? ["approved", "ok"] : ["refused", "bad"]),
    step.kind === "check" && verdict?.length > 0 && ["refused the output", "wait"],
    step.conflicts.length > 0 && [plural(step.conflicts.length, "conflict"), "wait"],
  ];
  return marks.filter(Boolean).map(([words, tone, title]) => <Tag key={words} tone={tone} title={title}>{words}</Tag>);
}

function Row({ record, row, top, selected, onSelect, onToggle, x, all, verdict, where, now }) {
  const { step, depth, inner, open } = row;
  const total = record.sums(step.id);
  const when = span(record, step, now);
  const bar = when && step.kind !== "start" && isOwn(record, step) && barOf(x, when);
  const [used, hint] = [sum(total.tokens), hintOf(step)];
  const spent = when && step.kind !== "start" && step.kind !== "edit" && (inner || step.status !== "waiting") ? duration(worked(all, when.from, when.till)) : "";
  return (
    <div
      {...{ id: `row-${step.id}`, role: "treeitem", "aria-level": depth + 1, "aria-expanded": inner ? open : undefined, "aria-selected": selected }}
      class={["row", selected && "on", isBookkeeping(record, step) && "dim", step.status === "running" && "runs"].filter(Boolean).join(" ")}
      style={{ transform: `translateY(${top}px)` }}
      onClick={() => onSelect(step.id)}
      onDblClick={() => inner && onToggle(step.id, !open)}
    >
      <div class="name">
        {Array.from({ length: Math.min(depth, 12) }, (_, i) => <span key={i} class="g" />)}
        <span class={inner ? (open ? "tw open" : "tw") : "tw none"} aria-hidden="true" onClick={(event) => inner && (event.stopPropagation(), onToggle(step.id, !open))} />
        <Kind kind={step.kind} />
        <span class="lbl">{nameOf(step)}</span>
        {step.visit > 1 && <span class="x">×{count(step.visit)}</span>}
        {hint && <span class="hint">{hint}</span>}
        <Marks {...{ record, step, verdict, where }} />
      </div>
      <div class="barcell" aria-hidden="true">
        {bar && <i class="tbar" style={{ ...bar, background: hue(step.kind) }} />}
      </div>
      <div class="r num">{used ? amount(used) : ""}</div>
      <div class="r num" key={`took ${spent}`}>{spent}</div>
    </div>
  );
}

const BARS = 150; // pixels of the bars in the rows

function barOf(x, { from, till }) {
  const left = Math.max(0, Math.min(x(from), BARS - 2));
  return { transform: `translateX(${left}px)`, width: `${Math.max(2, Math.min(x(till), BARS) - left)}px` };
}

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
    const { scrollTop: top, clientHeight: height, scrollHeight } = scroller.current;
    end.current = top > 0 && top + height >= scrollHeight - ROW;
    setView((old) => (old.top === top && old.height === height ? old : { top, height }));
  };
  useLayoutEffect(() => watchSize(scroller.current, seen), []);
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
  const move = (to) => void (rows.length && onSelect(rows[Math.max(0, Math.min(rows.length - 1, to))].step.id));
  // Keys move wherever the focus is, but not under what uses these keys itself.
  const key = (act) => (event) => (event.target.closest?.("[role=tablist], [role=separator], .pane, dialog, summary") ? false : act());
  const inTree = (act) => (event) => (event.target === scroller.current ? act() : false);
  const row = rows[index];
  const page = Math.max(1, Math.floor(view.height / ROW) - 1);
  const [up, down] = [key(() => move(index - 1)), key(() => move(index + 1))];
  useKeys({
    "/": () => field.current.focus(),
    ArrowDown: down, j: down, ArrowUp: up, k: up,
    Home: key(() => move(0)), End: key(() => move(rows.length - 1)), PageDown: inTree(() => move(index + page)), PageUp: inTree(() => move(index - page)),
    Enter: inTree(onEnter), " ": inTree(onEnter),
    ArrowRight: key(() => row?.inner && (row.open ? move(index + 1) : toggle(row.step.id, true))),
    ArrowLeft: key(() => row && (row.open && !found ? toggle(row.step.id, false) : row.step.parent !== null && onSelect(row.step.parent))),
    Escape: (event) => {
      if (event.target !== field.current) return false;
      return query ? setQuery("") : scroller.current.focus();
    },
  });

  const from = Math.max(0, Math.floor(view.top / ROW) - OVER);
  const to = Math.min(rows.length, Math.ceil((view.top + view.height) / ROW) + OVER);
  const inSight = rows.slice(from, to);
  const values = useValues(record, inSight.map(({ step }) => verdictOf(record, step)).filter(Boolean));
  const all = times(record, now);
  const x = useMemo(() => scale(all, BARS), [all]);
  useEffect(() => {
    if (found && found.done && found.hits.size && !found.hits.has(selected)) onSelect(found.first);
  }, [found?.done, query]);
  return (
    <section class="left" aria-label="Steps">
      <div class="tools">
        <input
          {...{ ref: field, type: "search", class: "find", value: query, placeholder: FIND, "aria-label": FIND }}
          onInput={(event) => setQuery(event.target.value)}
          onKeyDown={(event) => (event.key === "ArrowDown" || event.key === "Enter") && (event.preventDefault(), scroller.current.focus())}
        />
        {found && <span class="soft num found">{found.done ? plural(found.hits.size, "step") : `${amount(found.read)} of ${amount(found.total)} values`}</span>}
        <label class="check"><input type="checkbox" checked={books} onChange={(event) => setBooks(event.target.checked)} /> bookkeeping</label>
      </div>
      <div
        {...{ ref: scroller, class: "tree", role: "tree", "aria-label": "Steps of the run", tabIndex: 0, "aria-busy": !record.complete, onScroll: seen }}
        aria-activedescendant={index >= from && index < to ? `row-${selected}` : undefined}
      >
        <div class="space" role="none" style={{ height: `${rows.length * ROW}px` }}>
          {inSight.map((row, i) => (
            <Row
              key={row.step.id} {...{ record, row, onSelect, onToggle: toggle, x, all, top: (from + i) * ROW, selected: row.step.id === selected }}
              verdict={values.get(verdictOf(record, row.step))}
              where={found?.hits.get(row.step.id)}
              now={record.sums(row.step.id).running ? now : 0}
            />
          ))}
        </div>
        {!rows.length && <p class="empty">{found ? "No step has this text." : "No step yet."}</p>}
      </div>
    </section>
  );
}
