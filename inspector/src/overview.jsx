// What the runs come to: four small charts over time, and tables of failures by cause, graphs, nodes and models.

import { useState } from "preact/hooks";
import { cost, count, duration, sum, when } from "./format.js";
import { Problem, Tabs, useFew } from "./parts.jsx";
import { href } from "./route.js";

const HIGH = 44;
const WIDE = 240;
const FEW = 5;

// Bars over time, each with parts from the bottom up: [value, colour].
function Bars({ stacks, buckets, label, at, onAt, onPick }) {
  const most = Math.max(...stacks.map((stack) => sum(stack.map(([value]) => value))), 0) || 1;
  const step = WIDE / Math.max(stacks.length, 12);
  return (
    <svg class="bars" viewBox={`0 0 ${WIDE} ${HIGH}`} preserveAspectRatio="none" role="img" aria-label={label} onPointerLeave={() => onAt(null)}>
      <line class="base" x1="0" x2={WIDE} y1={HIGH - 0.5} y2={HIGH - 0.5} />
      {stacks.map((stack, i) => {
        let y = HIGH - 1;
        return (
          <g key={buckets[i].since} class={at === i ? "at" : undefined}>
            {stack.filter(([value]) => value).map(([value, fill]) => {
              const height = Math.max(1.5, (value / most) * (HIGH - 3));
              y -= height;
              return <rect key={fill} fill={fill} x={i * step + step * 0.12} y={y} width={step * 0.76} height={height} />;
            })}
            <rect class="hit" x={i * step} y="0" width={step} height={HIGH} onPointerEnter={() => onAt(i)} onClick={() => onPick(buckets[i])} />
          </g>
        );
      })}
    </svg>
  );
}

// The charts: [name, figure, what is said below it, the bar of a bucket].
const CHARTS = [
  ["Runs", (b) => count(b.runs), (b) => (b.failed ? `${count(b.failed)} failed, ${Number(((100 * b.failed) / b.runs).toPrecision(2))} %` : "none failed"),
    (b) => [[b.failed, "var(--bad)"], [b.runs - b.failed, "var(--accent)"]]],
  ["Time", (b) => duration(b.p50), (b) => `median; 95 % in ${duration(b.p95)}`,
    (b) => [[b.p50, "var(--map)"], [Math.max(0, b.p95 - b.p50), "color-mix(in srgb, var(--map) 35%, transparent)"]]],
  ["Tokens", (b) => count(sum(b.tokens)), (b) => `${count(b.tokens[0])} in, ${count(b.tokens[1])} out`, (b) => [[sum(b.tokens), "var(--lm)"]]],
  ["Cost", (b) => cost(b.cost), (b) => (b.cost == null ? "a model has no price" : b.runs ? `${cost(b.cost / b.runs)} a run` : " "), (b) => [[b.cost, "var(--tool)"]]],
];

function Charts({ data, onPick }) {
  const { buckets } = data;
  const [at, setAt] = useState(null);
  const one = buckets[at] ?? data;
  return (
    <div class="charts card">
      {CHARTS.map(([name, figure, more, parts]) => (
        <figure class="chart" key={name}>
          <figcaption><span>{name}</span><span class="soft">{buckets[at] && when(buckets[at].since)}</span></figcaption>
          <p class="sumfigure num">{figure(one)}</p>
          <p class={`sub one ${name === "Runs" && one.failed ? "bad" : "soft"}`}>{more(one)}</p>
          <Bars {...{ buckets, at, onPick }} stacks={buckets.map(parts)} onAt={setAt} label={`${name} over time: ${figure(data)}, ${more(data)}`} />
        </figure>
      ))}
    </div>
  );
}

// The columns of a table: [words, class, cell].
const FIGURES = [
  ["Runs", "", (row) => count(row.runs)], ["Failed", "", (row) => <span class={row.failed ? "bad" : "soft"}>{count(row.failed)}</span>],
  ["Half within", "opt", (row) => duration(row.p50)], ["95 % within", "", (row) => duration(row.p95)],
  ["Tokens", "opt", (row) => count(sum(row.tokens))], ["Cost", "", (row) => cost(row.cost)],
];
const CAUSES = [
  ["Graph", "opt cellname", (row) => row.graph], ["Node", "cellname", (row) => row.node],
  ["Runs", "", (row, most) => <span class="share"><svg viewBox="0 0 40 6" aria-hidden="true"><rect width={(40 * row.count) / most} height="6" rx="3" /></svg>{count(row.count)}</span>],
];

// The longest part of a message that has no number: what a search finds in all failures of one cause.
const searched = (message) => (message ?? "").split(/[\d…#]+|\n/).map((part) => part.trim()).reduce((best, part) => (part.length > best.length ? part : best), "").slice(0, 80);

// The tables: [id, name, what a row is, columns, the filters that find its runs].
const TABLES = [
  ["failures", "Failures", "Cause", CAUSES, ({ graph, node, type, message }) => ({ status: "failed", graph, node, contains: searched(message) || type })],
  ["graphs", "Graphs", "Graph", FIGURES, ({ name }) => ({ graph: name })],
  ["nodes", "Nodes", "Node", FIGURES, ({ name }) => ({ node: name })],
  ["models", "Models", "Model", FIGURES, ({ name }) => ({ model: name })],
];

function Rows({ of, to, data }) {
  const [id, , what, columns, filters] = of;
  const [rows, more] = useFew(data[id], FEW);
  const most = Math.max(...data[id].map((row) => row.count));
  if (!rows.length) return <p class="soft">{id === "failures" ? "No run has failed." : "Nothing to count yet."}</p>;
  return (
    <>
      <table>
        <thead><tr><th scope="col">{what}</th>{columns.map(([words, look]) => <th key={words} scope="col" class={look}>{words}</th>)}</tr></thead>
        <tbody>
          {rows.map((row, at) => (
            <tr key={at}>
              <th scope="row"><a href={to(filters(row))}>{row.name ?? <><b>{row.type}</b> {row.message}</>}</a></th>
              {columns.map(([words, look, cell]) => <td key={words} class={look}>{cell(row, most)}</td>)}
            </tr>
          ))}
        </tbody>
      </table>
      {more}
    </>
  );
}

const EMPTY = { runs: 0, failed: 0, p50: null, p95: null, tokens: [0, 0], cost: 0, buckets: [], graphs: [], nodes: [], models: [], failures: [] };

export function Overview({ found: { data: found, error, busy }, params }) {
  const data = found ?? EMPTY;
  const [tab, setTab] = useState(null);
  if (error) return <Problem error={error} />;
  const to = (changes) => href("runs", { ...params, ...changes });
  const shown = TABLES.find(([id]) => id === (tab ?? (data.failures.length ? "failures" : "graphs")));
  return (
    <section class={found ? "overview" : "overview unread"} aria-label="Overview" aria-busy={busy}>
      <Charts data={data} onPick={({ since, until }) => (location.hash = to({ since, until }))} />
      <div class="card sums">
        <div class="sumhead">
          <Tabs label="Tables" tabs={TABLES.map(([id, name]) => ({ id, name, count: data[id].length }))} selected={shown[0]} onSelect={setTab} />
          {data.since && <span class="soft opt">counted since {when(data.since)}</span>}
        </div>
        <div id="panel" role="tabpanel" aria-labelledby={`tab-${shown[0]}`} tabIndex={0} class="sumrows">{found && <Rows key={shown[0]} of={shown} to={to} data={data} />}</div>
      </div>
    </section>
  );
}
