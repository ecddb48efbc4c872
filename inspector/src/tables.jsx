// Conflicts, items, statistics and repairs of a run.

import { useEffect, useState } from "preact/hooks";
import { get } from "./api.js";
import { embedded } from "./embedded.js";
import { count, itemsText, plural, seconds, usd } from "./format.js";
import { useAnswer } from "./hooks.js";
import { Empty, Problem, useFew } from "./parts.jsx";
import { pathText, shown } from "./shape.js";
import { Source, Text, Value, gist } from "./value.jsx";

export function Conflict({ conflict }) {
  return (
    <div class="conflict">
      <h4>
        <code>{pathText(conflict.path)}</code> at {conflict.join}
        <span class="quiet"> policy {conflict.policy}</span>
      </h4>
      <dl class="pairs">
        <div><dt>before</dt><dd><Value value={conflict.base} open={false} /></dd></div>
        {conflict.values.map(([author, value], i) => (
          <div key={i}>
            <dt>{author}{author === conflict.winner && <b class="won"> chosen</b>}</dt>
            <dd><Value value={value} open={false} /></dd>
          </div>
        ))}
        <div><dt>result</dt><dd>{conflict.winner ? <Value value={conflict.value} open={false} /> : "not resolved"}</dd></div>
      </dl>
    </div>
  );
}

const JOINS = 40; // joins that are read at once

// The conflicts are in the joins: these are read from the last one back. A file has them in one list.
async function conflictsIn(joins, thread, run) {
  const steps = await Promise.all(joins.map((row) => get("commit", { thread, run, id: row.id })));
  return steps.flatMap((step) => (step.conflicts ?? []).map((conflict) => ({ commit: step.commit.id, conflict })));
}

export function ConflictsView({ thread, run, data, steps, onShow }) {
  const [state, setState] = useState({ items: [], read: 0, joins: null, error: null });
  useEffect(() => {
    let over = false;
    const start = embedded
      ? get("conflicts", { thread, run }).then(({ items }) => ({ items, read: 0, joins: [], error: null }))
      : steps.all().then(async () => {
          const joins = [];
          for (let i = steps.count - 1; i >= 0; i -= 1) if ((steps.at(i)?.parents ?? []).length > 1) joins.push(steps.at(i));
          return { items: await conflictsIn(joins.slice(0, JOINS), thread, run), read: JOINS, joins, error: null };
        });
    start.then((found) => over || setState(found), (error) => over || setState((old) => ({ ...old, error })));
    return () => {
      over = true;
    };
  }, [data.count]);
  const { items, read, joins, error } = state;
  const more = async () => {
    try {
      const found = await conflictsIn(joins.slice(read, read + JOINS), thread, run);
      setState({ ...state, items: [...items, ...found], read: read + JOINS });
    } catch (failed) {
      setState({ ...state, error: failed });
    }
  };
  if (error) return <Problem error={error} />;
  if (!joins) return <div class="waiting" aria-busy="true" />;
  return (
    <div class="padded">
      {items.map(({ commit, conflict }, i) => (
        <div key={i}>
          <Source.Provider value={{ of: "commit", thread, run, id: commit }}><Conflict conflict={conflict} /></Source.Provider>
          {commit && <button type="button" class="link" onClick={() => onShow(commit)}>Show the join {commit}</button>}
        </div>
      ))}
      {!items.length && <Empty><p>No branches {read < joins.length ? "at the joins read so far" : "of this run"} changed the same value.</p></Empty>}
      {read < joins.length && <button type="button" onClick={more}>Read {plural(Math.min(JOINS, joins.length - read), "more join")} of {joins.length - read}</button>}
    </div>
  );
}

// What an older server, or a file, does not have.
const Missing = ({ error }) => (error.status === 404 ? <Empty><p>{error.message}</p></Empty> : <Problem error={error} />);

export function ItemsView({ thread, run, data }) {
  const { data: answer, error } = useAnswer("items", { thread, run }, data.count);
  const [items, more] = useFew(answer?.items ?? [], 200);
  if (error) return <Missing error={error} />;
  if (!answer) return <div class="waiting" aria-busy="true" />;
  return (
    <div class="padded">
      {data.maps.map((one) => <p key={one.node}><code>{one.node}</code> {itemsText(one)}</p>)}
      <ol class="plainlist">
        {items.map((one) => (
          <li key={one.id}>
            <code>{one.node}</code> <span class="quiet">{one.status}</span>{" "}
            {one.status === "done" ? <Source.Provider value={{ of: "items", thread, run }}><Value value={one.value} open={false} /></Source.Provider> : one.failure}
          </li>
        ))}
      </ol>
      {more}
    </div>
  );
}

const COLUMNS = [
  ["Node", (one) => one.node],
  ["Visits", (one) => count(one.visits)],
  ["Items", (one) => (one.items == null ? "" : count(one.items))],
  ["First try", (one) => percent(one.first_try_percent)],
  ["Retried", (one) => amount(one.retried)],
  ["Corrected", (one) => amount(one.corrected)],
  ["Failed", (one) => amount(one.failed)],
  ["Attempts", (one) => count(one.attempts)],
  ["Median", (one) => seconds(one.p50)],
  ["95 %", (one) => seconds(one.p95)],
  ["Total", (one) => seconds(one.seconds)],
  ["LM calls", (one) => (one.lm_calls == null ? "–" : amount(one.lm_calls))],
  ["Tokens", (one) => (one.tokens == null ? "–" : amount(one.tokens))],
  ["Cost", (one) => (one.cost == null ? "–" : one.cost === 0 ? "" : usd(one.cost))],
];
const amount = (n) => (n ? count(n) : "");
const percent = (share) => (share == null ? "–" : `${share.toFixed(share % 1 ? 1 : 0)} %`);

export function StatsView({ thread, run, data }) {
  const { data: asked, error } = useAnswer(data.stats ? null : "stats", { thread, run }, data.count);
  const stats = data.stats ?? asked;
  if (error) return <Missing error={error} />;
  if (!stats) return <div class="waiting" aria-busy="true" />;
  const usage = Object.entries(stats.usage ?? data.info.usage ?? {});
  const troubles = stats.nodes.flatMap((one) => [
    ...Object.entries(one.problems ?? {}).map(([text, n]) => [one.node, "problem", text, n]),
    ...Object.entries(one.exceptions ?? {}).map(([text, n]) => [one.node, "exception", text, n]),
  ]);
  return (
    <div class="padded">
      <h2>Nodes</h2>
      <div class="tablebox" tabIndex={0} role="group" aria-label="Nodes">
        <table>
          <thead><tr>{COLUMNS.map(([name], i) => <th key={name} scope="col" class={i ? "num" : ""}>{name}</th>)}</tr></thead>
          <tbody>
            {stats.nodes.map((one) => (
              <tr key={one.node}>
                {COLUMNS.map(([name, cell], i) =>
                  i ? <td key={name} class="num">{cell(one)}</td> : <th key={name} scope="row">{cell(one)}</th>,
                )}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {troubles.length > 0 && (
        <>
          <h2>Problems and exceptions</h2>
          <ul class="plainlist">
            {troubles.map(([node, kind, text, n], i) => (
              <li key={i}><code>{node}</code> {text} <span class="quiet">{kind}, {plural(n, "time")}</span></li>
            ))}
          </ul>
        </>
      )}
      {usage.length > 0 && (
        <>
          <h2>Language models</h2>
          <div class="tablebox" tabIndex={0} role="group" aria-label="Language models">
            <table>
              <thead>
                <tr><th scope="col">Model</th><th scope="col" class="num">Requests</th><th scope="col" class="num">Tokens in</th><th scope="col" class="num">Tokens out</th><th scope="col" class="num">Cost</th></tr>
              </thead>
              <tbody>
                {usage.map(([model, one]) => (
                  <tr key={model}>
                    <th scope="row">{model}</th>
                    <td class="num">{count(one.requests)}</td>
                    <td class="num">{count(one.prompt_tokens)}</td>
                    <td class="num">{count(one.completion_tokens)}</td>
                    <td class="num">{usd(one.cost)}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        </>
      )}
      {stats.unknown?.length > 0 && <p class="note">{stats.unknown.join("; ")}.</p>}
    </div>
  );
}

export function RepairsView({ thread, run, data, onShow }) {
  const { data: answer, error } = useAnswer("repairs", { thread, run }, data.count);
  const items = answer?.items ?? [];
  if (error) return <Missing error={error} />;
  if (!answer) return <div class="waiting" aria-busy="true" />;
  if (!items.length) {
    return <Empty><p>No correction: a repair is an output that a check refused and accepted after a correction.</p></Empty>;
  }
  return (
    <div class="padded">
      {items.map((repair, i) => {
        const { problems = [], rejected = [], commit, ...fields } = repair;
        return (
          <article class="repair" key={i}>
            <h3>{gist(Object.values(fields)[0] ?? "", 90)}</h3>
            {commit && <button type="button" class="link" onClick={() => onShow(commit)}>Show the check {commit}</button>}
            {shown(rejected).map((output, n) => (
              <div key={n} class="d-removed">
                <p><span class="mark">-</span> refused: {shown(shown(problems)[n] ?? []).map((text) => (typeof text === "string" ? text : gist(text))).join("; ")}</p>
                <Value value={output} />
              </div>
            ))}
            <p><span class="mark">+</span> inputs and accepted outputs</p>
            <Value value={fields} open />
          </article>
        );
      })}
    </div>
  );
}
