// What the runs come to: four small charts over time, and tables of failures by cause, graphs, nodes and models.

import { useState } from "preact/hooks";
import { cost, count, duration, plural, when } from "./format.js";
import { Problem, Tabs } from "./parts.jsx";
import { href } from "./route.js";

const HIGH = 44;
const WIDE = 240;
const FEW = 5;

const total = (tokens) => (Array.isArray(tokens) ? tokens[0] + tokens[1] : (tokens ?? 0));

// Bars over time. `parts` gives a bucket's values from the bottom up, each with its colour.
function Bars({ buckets, parts, label, at, onAt, onPick }) {
  const stacks = buckets.map(parts);
  const most = Math.max(...stacks.map((stack) => stack.reduce((all, [value]) => all + value, 0)), 0) || 1;
  const step = WIDE / Math.max(buckets.length, 12);
  return (
    <svg class="bars" viewBox={`0 0 ${WIDE} ${HIGH}`} preserveAspectRatio="none" role="img" aria-label={label} onPointerLeave={() => onAt(null)}>
      <line class="base" x1="0" x2={WIDE} y1={HIGH - 0.5} y2={HIGH - 0.5} />
      {stacks.map((stack, i) => {
        let y = HIGH - 1;
        return (
          <g key={buckets[i].since} class={at === i ? "at" : undefined}>
            {stack.map(([value, kind]) => {
              const height = value ? Math.max(1.5, (value / most) * (HIGH - 3)) : 0;
              y -= height;
              return height ? <rect key={kind} fill={kind} x={i * step + step * 0.12} y={y} width={step * 0.76} height={height} /> : null;
            })}
            <rect class="hit" x={i * step} y="0" width={step} height={HIGH} onPointerEnter={() => onAt(i)} onClick={() => onPick(buckets[i])} />
          </g>
        );
      })}
    </svg>
  );
}

const percent = (part, whole) => (whole ? `${Number(((100 * part) / whole).toPrecision(2))} %` : "0 %");

function Charts({ data, at, onAt, onPick }) {
  const { buckets } = data;
  const one = at == null ? data : buckets[at];
  const range = at == null ? null : when(buckets[at].since);
  const chart = { buckets, at, onAt, onPick };
  const cards = [
    {
      name: "Runs",
      figure: count(one.runs),
      more: one.failed ? <span class="bad">{count(one.failed)} failed, {percent(one.failed, one.runs)}</span> : "none failed",
      parts: (b) => [[b.failed, "var(--bad)"], [b.runs - b.failed, "var(--accent)"]],
      label: `Runs over time: ${plural(data.runs, "run")}, ${count(data.failed)} failed`,
    },
    {
      name: "Time",
      figure: duration(one.p50),
      more: `median; 95 % in ${duration(one.p95)}`,
      parts: (b) => [[b.p50 ?? 0, "var(--map)"], [Math.max(0, (b.p95 ?? 0) - (b.p50 ?? 0)), "color-mix(in srgb, var(--map) 35%, transparent)"]],
      label: `Time over time: half of the runs took ${duration(data.p50)}, 95 % at most ${duration(data.p95)}`,
    },
    {
      name: "Tokens",
      figure: count(total(one.tokens)),
      more: Array.isArray(one.tokens) ? `${count(one.tokens[0])} in, ${count(one.tokens[1])} out` : " ",
      parts: (b) => [[total(b.tokens), "var(--lm)"]],
      label: `Tokens over time: ${count(total(data.tokens))}`,
    },
    {
      name: "Cost",
      figure: one.cost == null ? "–" : cost(one.cost),
      more: one.cost == null ? "a model has no price" : one.runs ? `${cost(one.cost / one.runs)} a run` : " ",
      parts: (b) => [[b.cost ?? 0, "var(--tool)"]],
      label: `Cost over time: ${data.cost == null ? "unknown" : cost(data.cost)}`,
    },
  ];
  return (
    <div class="charts">
      {cards.map(({ name, figure, more, parts, label }) => (
        <figure class="chart" key={name}>
          <figcaption><span>{name}</span><span class="soft">{range}</span></figcaption>
          <p class="sumfigure num">{figure}</p>
          <p class="soft sub one">{more}</p>
          <Bars {...chart} parts={parts} label={label} />
        </figure>
      ))}
    </div>
  );
}

function Figures({ rows, what, link }) {
  return (
    <table>
      <thead>
        <tr><th scope="col">{what}</th><th scope="col">Runs</th><th scope="col">Failed</th><th scope="col" class="opt">Half within</th><th scope="col">95 % within</th><th scope="col" class="opt">Tokens</th><th scope="col">Cost</th></tr>
      </thead>
      <tbody>
        {rows.map((row) => (
          <tr key={row.name}>
            <th scope="row"><a href={link(row.name)}>{row.name}</a></th>
            <td>{count(row.runs)}</td>
            <td class={row.failed ? "bad" : "soft"}>{count(row.failed)}</td>
            <td class="opt">{duration(row.p50)}</td>
            <td>{duration(row.p95)}</td>
            <td class="opt">{count(total(row.tokens))}</td>
            <td>{row.cost == null ? "–" : cost(row.cost)}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

// The longest part of a message that has no number: what a search finds in all failures of one cause.
const searched = (message) => (message ?? "").split(/[\d…#]+|\n/).reduce((best, part) => (part.trim().length > best.length ? part.trim() : best), "").slice(0, 80);

function Causes({ rows, link }) {
  const most = Math.max(...rows.map((row) => row.count));
  return (
    <table>
      <thead><tr><th scope="col">Cause</th><th scope="col" class="opt">Graph</th><th scope="col">Node</th><th scope="col">Runs</th></tr></thead>
      <tbody>
        {rows.map((row) => (
          <tr key={`${row.graph}\n${row.node}\n${row.type}\n${row.message}`}>
            <th scope="row"><a href={link(row)}><b>{row.type}</b> {row.message}</a></th>
            <td class="opt cellname">{row.graph}</td>
            <td class="cellname">{row.node}</td>
            <td><span class="share"><svg viewBox="0 0 40 6" aria-hidden="true"><rect width={(40 * row.count) / most} height="6" rx="3" /></svg>{count(row.count)}</span></td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

const EMPTY = { runs: 0, failed: 0, p50: null, p95: null, tokens: [0, 0], cost: 0, buckets: [], graphs: [], nodes: [], models: [], failures: [] };

export function Overview({ found: { data: found, error, busy }, params }) {
  const data = found ?? EMPTY;
  const [at, setAt] = useState(null);
  const [tab, setTab] = useState(null);
  const [all, setAll] = useState(false);
  if (error) return <Problem error={error} />;
  const to = (changes) => href("runs", { ...params, ...changes });
  const pick = ({ since, until }) => (location.hash = to({ since, until }));
  const tabs = [["failures", "Failures"], ["graphs", "Graphs"], ["nodes", "Nodes"], ["models", "Models"]]
    .map(([id, name]) => ({ id, name, count: data[id].length }));
  const shown = tab ?? (data.failures.length ? "failures" : "graphs");
  const rows = all ? data[shown] : data[shown].slice(0, FEW);
  const cause = ({ graph, node, type, message }) => to({ status: "failed", graph, node, contains: searched(message) || type });
  const links = { graphs: (graph) => to({ graph }), nodes: (node) => to({ node }), models: (model) => to({ model }) };
  return (
    <section class={found ? "overview" : "overview unread"} aria-label="Overview" aria-busy={busy}>
      <Charts data={data} at={at != null && at < data.buckets.length ? at : null} onAt={setAt} onPick={pick} />
      <div class="table sums">
        <div class="sumhead">
          <Tabs label="Tables" tabs={tabs} selected={shown} onSelect={setTab} />
          {data.since && <span class="soft opt">counted since {when(data.since)}</span>}
        </div>
        <div id="panel" role="tabpanel" aria-labelledby={`tab-${shown}`} tabIndex={0} class="sumrows">
          {!rows.length && <p class="soft">{busy ? "…" : shown === "failures" ? "No run has failed." : "Nothing to count yet."}</p>}
          {rows.length > 0 && (shown === "failures"
            ? <Causes rows={rows} link={cause} />
            : <Figures rows={rows} what={tabs.find(({ id }) => id === shown).name} link={links[shown]} />)}
          {data[shown].length > FEW && (
            <button type="button" class="btn small" onClick={() => setAll(!all)}>{all ? "Show fewer" : `Show all ${count(data[shown].length)}`}</button>
          )}
        </div>
      </div>
    </section>
  );
}
