// The runs of the store: figures over time, filters, and a list of pages from which two can be compared.

import { useEffect, useRef, useState } from "preact/hooks";
import { cost, count, duration, failureText, firstLine, plural, sum, when } from "./format.js";
import { announce, useAnswer, useListed, useTitle } from "./hooks.js";
import { Overview } from "./overview.jsx";
import { Button, Problem, Status, STATUSES, useListKeys } from "./parts.jsx";
import { go, href, parse } from "./route.js";

const LIMIT = 100;
const SOON = 300; // milliseconds between two looks at the list
const SLOW = 5_000; // the same of an overview of a list in which nothing happens
const SPANS = { today: "Today", "24h": "24 h", "7d": "7 days" };
const TEXTS = ["contains", "thread", "graph", "node", "model", "min_cost", "min_seconds"];
const FILTERS = ["status", "since", "until", ...TEXTS];

export const runKey = (info) => `${info.thread}\n${info.run_id}`;

// `since` and `until` as the store takes them: whole minutes, so that one page stays one query.
export function times({ since, until }) {
  const now = Math.floor(Date.now() / 60_000) * 60_000;
  const spans = { today: new Date(now).setHours(0, 0, 0, 0), "24h": now - 86_400_000, "7d": now - 7 * 86_400_000 };
  return since in spans ? { since: new Date(spans[since]).toISOString() } : { since, until };
}

export const query = (params) => ({ ...Object.fromEntries(["status", ...TEXTS].map((name) => [name, params[name]])), ...times(params) });

// A filter that is typed: it is asked for when the typing pauses.
function Typed({ name, label, value = "", onValue, children, ...rest }) {
  const [box, timer] = [useRef(null), useRef(null)];
  useEffect(() => {
    if (!timer.current) box.current.value = value;
  }, [value]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const give = () => {
    timer.current = clearTimeout(timer.current);
    onValue(box.current.value);
  };
  const wait = () => {
    clearTimeout(timer.current);
    timer.current = setTimeout(give, 250);
  };
  return (
    <label class={`filter f-${name}`}>
      <span>{label}</span>
      <input ref={box} id={`filter-${name}`} autocomplete="off" spellcheck={false} onInput={wait} onChange={give} {...rest} />
      {children}
    </label>
  );
}

const Chips = ({ label, options, value = "", onValue }) => (
  <div class="chips" role="group" aria-label={label}>
    {options.map(([name, words]) => <Button small class="chip" key={name} aria-pressed={value === name} onClick={() => onValue(name)}>{words}</Button>)}
  </div>
);

export function Filters({ page, params, names }) {
  const change = (changes) => go(page, { ...parse(location.hash).params, ...changes }, { replace: true });
  const [all, setAll] = useState(false); // on a phone
  const { since = "", until, thread } = params;
  const picked = since && !(since in SPANS) ? [[since, `${when(since)}${until ? ` to ${when(until)}` : ""}`]] : []; // a bar of the overview
  const typed = (name) => ({ name, value: params[name], onValue: (value) => change({ [name]: value }) });
  return (
    <form class={all ? "runfilters all" : "runfilters"} role="search" aria-label="Filters" onSubmit={(event) => event.preventDefault()}>
      <div class="filterline">
        <Chips label="Status" options={[["", "any status"], ...STATUSES.map((one) => [one, one])]} value={params.status} onValue={(status) => change({ status })} />
        <span class="grow" />
        <Chips label="Started" options={[["", "All"], ...Object.entries(SPANS), ...picked]} value={since} onValue={(one) => change({ since: one, until: one === since ? until : undefined })} />
      </div>
      <div class="filterline">
        <Typed {...typed("contains")} label="Contains" type="search" placeholder="Names, values, prompts, failures" />
        {["graph", "node", "model"].map((name) => (
          <Typed key={name} {...typed(name)} label={`${name[0].toUpperCase()}${name.slice(1)}`} placeholder="any" list={`${name}-names`}>
            <datalist id={`${name}-names`}>{(names?.[`${name}s`] ?? []).map((row) => <option key={row.name} value={row.name} />)}</datalist>
          </Typed>
        ))}
        <Typed {...typed("min_cost")} label="Cost from, USD" inputMode="decimal" placeholder="0.01" />
        <Typed {...typed("min_seconds")} label="Seconds from" inputMode="decimal" placeholder="10" />
        <Button small class="allfilters" aria-expanded={all} onClick={() => setAll(!all)}>{all ? "Fewer filters" : "More filters"}</Button>
      </div>
      {thread && <p class="soft">Of the thread <b>{thread}</b>. <a href={href(page, { ...params, thread: undefined, run: undefined, step: undefined })}>Of all threads</a></p>}
    </form>
  );
}

function words({ failure, questions = [], run_id: id }) {
  if (failure) return `${failure.node ? `${failure.node}: ` : ""}${failureText(failure)}`;
  if (questions.length) return `${questions[0].node} asks: ${firstLine(questions[0].text)}`;
  return `run ${id.slice(0, 8)}`;
}

function Row({ info, chosen, onChoose }) {
  const { thread, run_id: run, status, graph, started, ended } = info;
  const tokens = sum(Object.values(info.usage ?? {}).flatMap((one) => [one.prompt_tokens, one.completion_tokens]));
  const tone = info.failure ? "bad" : info.questions?.length ? "wait" : "soft";
  return (
    <li class={chosen ? "listline on" : "listline"}>
      <label class="pick" title="Choose to compare"><input type="checkbox" checked={chosen} onChange={onChoose} aria-label={`Compare the run of ${thread}`} /></label>
      <a class="listrow" href={href("run", { thread, run })} data-key={runKey(info)}>
        <Status status={status} />
        <span class="runwho"><b class="one">{thread}</b><span class={`one ${tone}`}>{words(info)}</span></span>
        <span class="soft one graphname">{graph}</span>
        <time class="soft one started" dateTime={started}>{when(started)}</time>
        <span class="num">{status === "running" ? "…" : duration(ended && (new Date(ended) - new Date(started)) / 1000)}</span>
        <span class="num opt">{plural(info.steps ?? 0, "step")}</span>
        <span class="num opt">{tokens ? `${count(tokens)} tok` : "–"}</span>
        <span class="num">{cost(info.cost)}</span>
      </a>
    </li>
  );
}

const SHOWN = 'program = graph.compile(store="runs.db")\nprogram.thread("t-42").run(...)';

const Nothing = ({ params }) => FILTERS.some((name) => params[name]) ? (
  <div class="nothing"><h2>Nothing fits</h2><p>No run fits these filters. <a href={href("runs")}>Show every run</a></p></div>
) : (
  <div class="nothing"><h2>No runs yet</h2><p>A run on a thread is stored, and is shown here while it runs:</p><pre>{SHOWN}</pre></div>
);

function Chosen({ chosen, onClear }) {
  const [a, b] = chosen.map((key) => key.split("\n"));
  if (!a) return null;
  return (
    <div class="chosen" role="region" aria-label="Runs to compare">
      <span class="ab">A</span><b class="one">{a[0]}</b>
      <span class="ab b">B</span>{b ? <b class="one">{b[0]}</b> : <span class="soft">choose another run</span>}
      <span class="grow" />
      <Button small onClick={onClear}>Clear</Button>
      {b && <a class="btn small main" href={href("compare", { thread: a[0], run: a[1], other_thread: b[0], other_run: b[1] })}>Compare</a>}
    </div>
  );
}

export function RunsPage({ params }) {
  useTitle("Runs");
  const list = useRef(null);
  const [chosen, setChosen] = useState([]);
  const { since, until } = times(params);
  const overview = useAnswer("overview", { since, until, graph: params.graph }, { every: SLOW });
  const filter = { ...query(params), limit: LIMIT };
  const first = useAnswer("runs", filter, { every: SOON });
  const { items, next, fresh, error, busy, more, restart } = useListed("runs", filter, first, runKey);
  useEffect(() => void (first.data && overview.renew()), [first.data]);
  const choose = (key) => setChosen((old) => (old.includes(key) ? old.filter((one) => one !== key) : [...old, key].slice(-2)));
  useListKeys(list, "a.listrow", {
    x: () => document.activeElement?.dataset.key ? choose(document.activeElement.dataset.key) : false,
    c: () => document.querySelector(".chosen a")?.click(),
  });
  useEffect(() => {
    if (!busy) announce(`${plural(items.length, "run")}${next ? " and more" : ""}`);
  }, [busy, items.length]);
  return (
    <main id="main" class="lists" tabIndex={-1}>
      <div class="sheet">
        <h1 class="hidden">Runs</h1>
        <Overview found={overview} params={params} />
        <Filters page="runs" params={params} names={overview.data} />
        {error && <Problem error={error} />}
        <section class="card runtable" aria-label="Runs" aria-busy={busy}>
          <div class="listhead" aria-hidden="true">
            <span>Status</span><span>Thread</span><span>Graph</span><span>Started</span><span class="num">Took</span>
            <span class="num opt">Steps</span><span class="num opt">Tokens</span><span class="num">Cost</span>
          </div>
          <button type="button" class="fresh" hidden={!fresh.length} onClick={restart}>Show {plural(fresh.length, "new run")}</button>
          <ol ref={list}>{items.map((info) => <Row key={runKey(info)} info={info} chosen={chosen.includes(runKey(info))} onChoose={() => choose(runKey(info))} />)}</ol>
          {!busy && !error && !items.length && !fresh.length && !next && <Nothing params={params} />}
          {next && <Button class="more" onClick={more}>{items.length ? `Show ${LIMIT} more` : "Look further: no run so far fits"}</Button>}
        </section>
      </div>
      <Chosen chosen={chosen} onClear={() => setChosen([])} />
    </main>
  );
}
