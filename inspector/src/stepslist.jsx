// The steps of a run as a list, and the same over time.

import { useEffect, useMemo, useState } from "preact/hooks";
import { embedded } from "./embedded.js";
import { branchName, count, epoch, first, plural, seconds, usd } from "./format.js";
import { announce, useMedia, useNow } from "./hooks.js";
import { Problem } from "./parts.jsx";
import { shown } from "./shape.js";
import { VirtualList } from "./virtual.jsx";

const ROW = 34;

// The rows that fit a text in the name of the node, the branch, or a field that was written.
function useFilter(steps, size) {
  const [text, setText] = useState("");
  const [found, setFound] = useState(null);
  useEffect(() => {
    const wanted = text.trim().toLowerCase();
    if (!wanted) return setFound(null);
    let over = false;
    steps.all().then(() => {
      if (over) return;
      const fits = (row) =>
        [row.node, branchName(row.branch), ...(row.writes ?? []), ...(row.route ?? [])].some((word) =>
          String(word).toLowerCase().includes(wanted),
        );
      const hits = [];
      for (let i = 0; i < steps.count; i += 1) if (steps.at(i) && fits(steps.at(i))) hits.push(i);
      setFound(hits);
      announce(`${plural(hits.length, "step")} found`);
    });
    return () => {
      over = true;
    };
  }, [text, size]);
  return { text, setText, found };
}

export function entryWords(entry) {
  if (entry.kind === "failure") return `${entry.failure.node} failed`;
  if (entry.kind === "question") return `${entry.question.node} asks`;
  return entry.row?.node ?? entry.id;
}

function marks(row) {
  const found = [];
  if (row.failure) found.push(["✕", "failed, and went along an error edge"]);
  const failed = Array.isArray(row.failed_attempts) ? row.failed_attempts.length : (row.failed_attempts ?? 0);
  if (failed) found.push([`↻${failed}`, `${plural(failed, "failed attempt")} before this one`]);
  if (row.cached) found.push(["⚡", "from the node's cache"]);
  if (row.conflicts) found.push([`≠${row.conflicts}`, plural(row.conflicts, "conflict")]);
  return found;
}

const Marks = ({ row }) =>
  marks(row).map(([sign, words]) => (
    <span key={sign} class="marker" title={words}>{sign}<span class="hidden"> {words}</span></span>
  ));

// The name of a node at the depth of its branch, so that forks can be seen.
function Node({ row }) {
  const depth = Math.min(row.branch?.length ?? 0, 6);
  return (
    <span class="node" role="gridcell">
      <span class={`depth depth-${depth}`} aria-hidden="true" />
      <span class="nodename" title={row.node}>{row.node}</span>
      {row.visit > 1 && <span class="visit" title={`visit ${row.visit}`}>×{row.visit}</span>}
      <Marks row={row} />
    </span>
  );
}

function EndRow({ entry }) {
  const failed = entry.kind === "failure";
  const text = failed ? `${entry.failure.type}: ${entry.failure.message}` : shown(entry.question.text);
  return (
    <>
      <span class="index" role="gridcell">{failed ? "✕" : "?"}</span>
      <span class={`ending ${failed ? "bad" : "asks"}`} role="gridcell">
        <b>{entryWords(entry)}</b> {first(text.replace(/\s+/g, " "), 160)}
      </span>
    </>
  );
}

const Blank = ({ i }) => <span class="index" role="gridcell">{i + 1}</span>;

function CommitRow({ row, i }) {
  const writes = row.writes ?? [];
  const lm = row.lm ?? {};
  return (
    <>
      <span class="index" role="gridcell">{row.version ?? i}</span>
      <Node row={row} />
      <span class="branch" role="gridcell">{branchName(row.branch)}</span>
      <span class="writes" role="gridcell" title={writes.join(", ")}>{writes.join(", ")}</span>
      <span class="num lm" role="gridcell">{lm.calls ? plural(lm.calls, "call") : ""}</span>
      <span class="num tokens" role="gridcell">{lm.tokens ? `${count(lm.tokens)} tok` : ""}</span>
      <span class="num cost" role="gridcell">{lm.cost ? usd(lm.cost) : ""}</span>
      <span class="num took" role="gridcell">{row.node === "START" ? "" : seconds(row.duration)}</span>
    </>
  );
}

function FilterBox({ filter, size }) {
  return (
    <div class="listhead">
      <label class="grow">
        <span class="hidden">Filter steps</span>
        <input
          id="filter"
          type="search"
          placeholder="Filter by node, branch or field"
          value={filter.text}
          onInput={(event) => filter.setText(event.target.value)}
        />
      </label>
      <span class="quiet num">{filter.found ? `${count(filter.found.length)} of ${plural(size, "step")}` : plural(size, "step")}</span>
    </div>
  );
}

// What both lists share: the filter, and rows whose numbers are those of the whole list.
function Listed({ label, steps, entries, selected, onSelect, onOpen, data, extra, render, head }) {
  const filter = useFilter(steps, entries.size);
  const { found } = filter;
  const phone = useMedia("(max-width: 620px)");
  const size = found ? found.length : entries.size;
  const index = (i) => (found ? found[i] : i);
  const place = found ? found.indexOf(selected) : selected;
  return (
    <>
      <div class="listbar"><FilterBox filter={filter} size={steps.count} />{extra}</div>
      {embedded?.between > 0 && !found && (
        <p class="note">The file holds the first and the last steps; {count(embedded.between)} between them are left out.</p>
      )}
      {steps.error && <Problem error={steps.error} onRetry={() => steps.retry()} />}
      <VirtualList
        key={found ? "found" : "all"}
        label={label}
        size={size}
        rowHeight={phone ? 44 : ROW}
        selected={place}
        stick={data.info.status === "running"}
        onSelect={(i) => onSelect(index(i))}
        onOpen={(i) => {
          if (i >= 0) onSelect(index(i));
          onOpen();
        }}
        onRange={(from, to) => !found && steps.want(from, to)}
        head={head}
        render={(i) => {
          const entry = entries.at(index(i));
          if (!entry) return <Blank i={index(i)} />;
          return entry.kind === "commit" ? render(entry.row, index(i)) : <EndRow entry={entry} />;
        }}
      />
    </>
  );
}

export function StepsView(props) {
  const head = (
    <div class="vhead steprow" aria-hidden="true">
      <span class="index">#</span><span>Node</span><span class="branch">Branch</span><span class="writes">Wrote</span>
      <span class="num lm">LM</span><span class="num tokens">Tokens</span><span class="num cost">Cost</span><span class="num took">Time</span>
    </div>
  );
  return (
    <div class="listview steplist">
      <Listed label="Steps" {...props} head={head} render={(row, i) => <CommitRow row={row} i={i} />} />
    </div>
  );
}

// --- the timeline

const rowEnd = (row) => epoch(row.started) + (row.duration ?? 0);

// When the parents of a step had ended: what it waited for, and which of them was the last.
function waits(row, steps) {
  const parents = (row.parents ?? []).map((id) => steps.at(steps.indexOf(id))).filter(Boolean);
  if (!parents.length) return { parents, last: null, pause: 0, spread: 0 };
  const ends = parents.map(rowEnd);
  const last = parents[ends.indexOf(Math.max(...ends))];
  return { parents, last, pause: epoch(row.started) - Math.max(...ends), spread: Math.max(...ends) - Math.min(...ends) };
}

function Bar({ row, steps, span }) {
  const [from, to] = span;
  const width = Math.max(to - from, 1e-6);
  const at = (time) => `${Math.max(0, Math.min(100, ((time - from) / width) * 100)).toFixed(3)}%`;
  const start = epoch(row.started);
  const { parents, last, spread } = waits(row, steps);
  const first = parents.length ? Math.min(...parents.map(rowEnd)) : start;
  const share = (a, b) => `${(Math.max(0, Math.min(b, to) - Math.max(a, from)) / width * 100).toFixed(3)}%`;
  const failed = row.failure || (Array.isArray(row.failed_attempts) ? row.failed_attempts.length : row.failed_attempts);
  const joined = parents.length > 1;
  return (
    <span class="track" role="gridcell">
      <span class={`lead${joined ? " wait" : ""}`} style={{ left: at(first), width: share(first, start) }} />
      {joined && parents.map((parent) => <span key={parent.id} class="tick" style={{ left: at(rowEnd(parent)) }} />)}
      <span class={`bar${failed ? " bad" : ""}${row.lm?.calls ? " lm" : ""}`} style={{ left: at(start), width: share(start, rowEnd(row)) }} />
      {joined && spread > 0.0005 && last && (
        <span class="waited" style={{ left: at(first) }}>waited {seconds(spread)} for {last.node}</span>
      )}
    </span>
  );
}

function Scale({ span }) {
  const [from, to] = span;
  const parts = [0, 0.25, 0.5, 0.75, 1];
  return (
    <span class="scale">
      {parts.map((share) => <span key={share} style={{ left: `${share * 100}%` }}>{share === 0 ? "0" : seconds((to - from) * share)}</span>)}
    </span>
  );
}

export function TimelineView(props) {
  const { steps, data } = props;
  const running = data.info.status === "running";
  const now = useNow(running);
  const [zoom, setZoom] = useState(steps.count > 60); // to the rows in sight; else the whole run
  const [range, setRange] = useState([0, 40]);
  const whole = useMemo(() => {
    const from = epoch(data.info.started) ?? epoch(steps.at(0)?.started) ?? 0;
    const last = steps.at(steps.count - 1);
    const to = running ? Math.max(now, from) : Math.max(epoch(data.info.ended) ?? 0, last ? rowEnd(last) : 0, from);
    return [from, Math.max(to, from + 0.001)];
  }, [data, steps.count, now, steps.at(steps.count - 1)]);
  const span = useMemo(() => {
    if (!zoom) return whole;
    const seen = [];
    for (let i = range[0]; i < Math.min(range[1], steps.count); i += 1) if (steps.at(i)) seen.push(steps.at(i));
    if (!seen.length) return whole;
    const from = Math.min(...seen.map((row) => epoch(row.started)));
    return [from, Math.max(from + 0.001, ...seen.map(rowEnd))];
  }, [zoom, range, whole, steps.at(range[0]), steps.at(range[1] - 1)]);
  const extra = (
    <label class="check">
      <input type="checkbox" checked={zoom} onChange={(event) => setZoom(event.target.checked)} />
      Zoom to the rows in sight
    </label>
  );
  const head = (
    <div class="vhead timerow" aria-hidden="true"><span class="index">#</span><span>Node</span><Scale span={span} /><span class="num took">Time</span></div>
  );
  return (
    <div class="listview timelist">
      <Listed
        label="Timeline"
        {...props}
        steps={Object.assign(Object.create(steps), { want: (a, b) => (steps.want(a, b), setRange((old) => (old[0] === a && old[1] === b ? old : [a, b]))) })}
        extra={extra}
        head={head}
        render={(row, i) => (
          <>
            <span class="index" role="gridcell">{row.version ?? i}</span>
            <Node row={row} />
            <Bar row={row} steps={steps} span={span} />
            <span class="num took" role="gridcell">{row.node === "START" ? "" : seconds(row.duration)}</span>
          </>
        )}
      />
      <p class="legend" aria-hidden="true">
        <span><i class="bar lm" /> with LM calls</span><span><i class="bar" /> without</span>
        <span><i class="bar bad" /> with failures</span><span><i class="lead wait" /> waited for another branch</span>
      </p>
    </div>
  );
}
