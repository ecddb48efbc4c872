// The runs of the store: figures over time, filters, and a list of pages from which two can be compared.

import { useEffect, useRef, useState } from "preact/hooks";
import { get } from "./api.js";
import { cost, count, duration, failureText, firstLine, plural, when } from "./format.js";
import { announce, useTitle } from "./hooks.js";
import { Overview } from "./overview.jsx";
import { Problem, Status, STATUSES, useListKeys } from "./parts.jsx";
import { useRenewed } from "./renewed.js";
import { go, href } from "./route.js";

const LIMIT = 100;
const SLOW = 5_000; // milliseconds between two overviews of a list in which nothing happens
const SPANS = { "": "All", today: "Today", "24h": "24 h", "7d": "7 days", custom: "Custom" };
const TEXTS = ["contains", "thread", "graph", "node", "model", "min_cost", "min_seconds"];
const FILTERS = ["status", "since", "until", ...TEXTS];

export const runKey = (info) => `${info.thread}\n${info.run_id}`;

const iso = (date) => (date && !Number.isNaN(date.getTime()) ? date.toISOString() : undefined);

// `since` and `until` as the store takes them: whole minutes, so that one page stays one query.
export function times({ since, until }) {
  const now = Math.floor(Date.now() / 60_000) * 60_000;
  const spans = { today: new Date(now).setHours(0, 0, 0, 0), "24h": now - 86_400_000, "7d": now - 7 * 86_400_000 };
  if (since in spans) return { since: iso(new Date(spans[since])) };
  return { since: since && since !== "custom" ? iso(new Date(since)) : undefined, until: until ? iso(new Date(until)) : undefined };
}

// The filters of an address as the parameters of a request.
export const query = (params) => ({ ...Object.fromEntries(["status", ...TEXTS].map((name) => [name, params[name]])), ...times(params) });

// The pages of the list. What changes is renewed in place; what is new waits for a click: nothing moves under a reader's hand.
function usePages(filter) {
  const key = JSON.stringify(filter);
  const { data, error, busy } = useRenewed("runs", { ...filter, limit: LIMIT });
  const [state, setState] = useState({ key: null, items: [], next: null, problem: null });
  useEffect(() => {
    if (!data) return;
    setState((old) => {
      if (old.key !== key) return { key, items: data.items, next: data.next, problem: null };
      const now = new Map(data.items.map((info) => [runKey(info), info]));
      return { ...old, items: old.items.map((info) => now.get(runKey(info)) ?? info) };
    });
  }, [data, key]);
  const shown = state.key === key ? state : { items: [], next: null };
  const known = new Set(shown.items.map(runKey));
  const fresh = state.key === key && data ? data.items.filter((info) => !known.has(runKey(info))) : [];
  const more = async () => {
    try {
      const page = await get("runs", { ...filter, limit: LIMIT, after: state.next });
      setState((old) => ({ ...old, items: [...old.items, ...page.items], next: page.next, problem: null }));
      announce(`${plural(page.items.length, "more run")} loaded`);
    } catch (problem) {
      setState((old) => ({ ...old, problem }));
    }
  };
  const showFresh = () => setState({ key, items: data.items, next: data.next, problem: null });
  return { ...shown, data, fresh, error: error ?? state.problem, busy: busy || state.key !== key, more, showFresh };
}

// A filter that is typed: it is asked for when the typing pauses.
function Typed({ name, label, value = "", onValue, children, ...rest }) {
  const [text, setText] = useState(value);
  const timer = useRef(null);
  const sent = useRef(value);
  useEffect(() => {
    if (value !== sent.current) setText(value);
    sent.current = value;
  }, [value]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const give = (now) => {
    clearTimeout(timer.current);
    sent.current = now;
    if (now !== value) onValue(now);
  };
  const typed = (event) => {
    const now = event.target.value;
    setText(now);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => give(now), 250);
  };
  return (
    <label class={`filter f-${name}`}>
      <span>{label}</span>
      <input
        id={`filter-${name}`}
        autocomplete="off"
        spellcheck={false}
        value={text}
        onInput={typed}
        onBlur={() => give(text)}
        onKeyDown={(event) => event.key === "Enter" && give(text)}
        {...rest}
      />
      {children}
    </label>
  );
}

// One of several, as buttons beside each other.
export function Chips({ label, options, value = "", onValue }) {
  return (
    <div class="chips" role="group" aria-label={label}>
      {options.map(([name, words]) => (
        <button key={name} type="button" class="chip" aria-pressed={value === name} onClick={() => onValue(name)}>
          {words}
        </button>
      ))}
    </div>
  );
}

// A time of the page's own clock, as an input takes it.
const local = (text) => {
  const date = text && text !== "custom" ? new Date(text) : null;
  return date && !Number.isNaN(date.getTime()) ? new Date(date - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 16) : "";
};

export function Filters({ page, params, names = {} }) {
  const change = (name) => (value) => go(page, { ...params, [name]: value }, { replace: true });
  const span = params.since in SPANS || !params.since ? (params.since ?? "") : "custom";
  const within = (since) => go(page, { ...params, since, until: undefined }, { replace: true });
  const [all, setAll] = useState(false); // on a phone
  const typed = (name) => ({ name, value: params[name], onValue: change(name) });
  return (
    <form class={all ? "runfilters all" : "runfilters"} role="search" aria-label="Filters" onSubmit={(event) => event.preventDefault()}>
      <div class="filterline">
        <Chips label="Status" options={[["", "any status"], ...STATUSES.map((one) => [one, one])]} value={params.status} onValue={change("status")} />
        <span class="room" />
        <Chips label="Started" options={Object.entries(SPANS)} value={span} onValue={within} />
      </div>
      {span === "custom" && (
        <div class="filterline">
          {["since", "until"].map((name) => (
            <label key={name} class="filter f-time">
              <span>{name === "since" ? "Started since" : "Started until"}</span>
              <input
                type="datetime-local"
                value={local(params[name])}
                onChange={(event) => {
                  const date = iso(new Date(event.target.value));
                  change(name)(date ?? (name === "since" ? "custom" : undefined));
                }}
              />
            </label>
          ))}
        </div>
      )}
      <div class="filterline">
        <Typed {...typed("contains")} label="Contains" type="search" placeholder="Names, values, prompts, failures" />
        {["graph", "node", "model"].map((name) => (
          <Typed key={name} {...typed(name)} label={`${name[0].toUpperCase()}${name.slice(1)}`} placeholder="any" list={`${name}-names`}>
            <datalist id={`${name}-names`}>{(names[`${name}s`] ?? []).map((row) => <option key={row.name} value={row.name} />)}</datalist>
          </Typed>
        ))}
        <Typed {...typed("min_cost")} label="Cost from, USD" inputMode="decimal" placeholder="0.01" />
        <Typed {...typed("min_seconds")} label="Seconds from" inputMode="decimal" placeholder="10" />
        <button type="button" class="btn small allfilters" aria-expanded={all} onClick={() => setAll(!all)}>{all ? "Fewer filters" : "More filters"}</button>
      </div>
    </form>
  );
}

const took = (info) => (info.ended == null ? null : (new Date(info.ended) - new Date(info.started)) / 1000);

const sum = (usage, name) => Object.values(usage ?? {}).reduce((all, one) => all + (one[name] ?? 0), 0);

function words({ failure, questions = [], run_id: id }) {
  if (failure) return `${failure.node ? `${failure.node}: ` : ""}${failureText(failure)}`;
  if (questions.length) return `${questions[0].node} asks: ${firstLine(questions[0].text)}`;
  return `run ${id.slice(0, 8)}`;
}

function Row({ info, chosen, onChoose }) {
  const tokens = sum(info.usage, "prompt_tokens") + sum(info.usage, "completion_tokens");
  const tone = info.failure ? "bad" : info.questions?.length ? "wait" : "soft";
  return (
    <li class={chosen ? "listline on" : "listline"}>
      <label class="pick" title="Choose to compare">
        <input type="checkbox" checked={chosen} onChange={onChoose} aria-label={`Compare the run of ${info.thread}`} />
      </label>
      <a class="listrow" href={href("run", { thread: info.thread, run: info.run_id })} data-key={runKey(info)}>
        <Status status={info.status} />
        <span class="runwho">
          <b class="one">{info.thread}</b>
          <span class={`one ${tone}`}>{words(info)}</span>
        </span>
        <span class="soft one graphname">{info.graph}</span>
        <time class="soft one started" dateTime={info.started}>{when(info.started)}</time>
        <span class="num">{info.status === "running" ? "…" : duration(took(info))}</span>
        <span class="num opt">{plural(info.steps ?? 0, "step")}</span>
        <span class="num opt">{tokens ? `${count(tokens)} tok` : "–"}</span>
        <span class="num">{info.cost == null ? "–" : cost(info.cost)}</span>
      </a>
    </li>
  );
}

function Nothing({ params }) {
  if (FILTERS.some((name) => params[name])) {
    return <div class="nothing"><h2>Nothing fits</h2><p>No run fits these filters. <a href={href("runs")}>Show every run</a></p></div>;
  }
  return (
    <div class="nothing">
      <h2>No runs yet</h2>
      <p>A run on a thread is stored, and is shown here while it runs:</p>
      <pre>{'program = graph.compile(store="runs.db")\nprogram.thread("t-42").run(...)'}</pre>
    </div>
  );
}

// The bar of two chosen runs.
function Chosen({ chosen, onClear }) {
  const [a, b] = chosen.map((key) => key.split("\n"));
  if (!a) return null;
  return (
    <div class="chosen" role="region" aria-label="Runs to compare">
      <span class="ab">A</span><b class="one">{a[0]}</b>
      <span class="ab b">B</span>{b ? <b class="one">{b[0]}</b> : <span class="soft">choose another run</span>}
      <span class="room" />
      <button type="button" class="btn small" onClick={onClear}>Clear</button>
      {b && <a class="btn small main" href={href("compare", { thread: a[0], run: a[1], other_thread: b[0], other_run: b[1] })}>Compare</a>}
    </div>
  );
}

export function RunsPage({ params }) {
  useTitle("Runs");
  const list = useRef(null);
  const [chosen, setChosen] = useState([]);
  const { since, until } = times(params);
  const overview = useRenewed("overview", { since, until, graph: params.graph }, SLOW);
  const { items, next, fresh, error, busy, more, showFresh, data } = usePages(query(params));
  useEffect(() => void (data && overview.renew()), [data]);
  const choose = (key) => setChosen((old) => (old.includes(key) ? old.filter((one) => one !== key) : [...old, key].slice(-2)));
  useListKeys(list, "a.listrow", {
    x: (event, typing) => {
      const key = document.activeElement?.dataset?.key;
      return typing || !key ? false : choose(key);
    },
    c: (event, typing) => (typing || chosen.length < 2 ? false : document.querySelector(".chosen a")?.click()),
  });
  useEffect(() => {
    if (!busy) announce(`${plural(items.length, "run")}${next ? " and more" : ""}`);
  }, [busy, items.length]);
  return (
    <main id="main" class="lists" tabIndex={-1}>
      <div class="sheet">
        <h1 class="hidden">Runs</h1>
        <Overview found={overview} params={params} />
        <Filters page="runs" params={params} names={overview.data ?? {}} />
        {params.thread && <p class="soft">Of the thread <b>{params.thread}</b>. <a href={href("runs", { ...params, thread: undefined })}>Of all threads</a></p>}
        {error && <Problem error={error} />}
        <section class="table runtable" aria-label="Runs" aria-busy={busy}>
          <div class="listhead" aria-hidden="true">
            <span>Status</span><span>Thread</span><span>Graph</span><span>Started</span><span class="num">Took</span>
            <span class="num opt">Steps</span><span class="num opt">Tokens</span><span class="num">Cost</span>
          </div>
          <button type="button" class="fresh" hidden={!fresh.length} onClick={showFresh}>Show {plural(fresh.length, "new run")}</button>
          <ol ref={list}>
            {items.map((info) => <Row key={runKey(info)} info={info} chosen={chosen.includes(runKey(info))} onChoose={() => choose(runKey(info))} />)}
          </ol>
          {!busy && !error && !items.length && !fresh.length && !next && <Nothing params={params} />}
          {next && <button type="button" class="btn more" onClick={more}>{items.length ? `Show ${LIMIT} more` : "Look further: no run so far fits"}</button>}
        </section>
      </div>
      <Chosen chosen={chosen} onClear={() => setChosen([])} />
    </main>
  );
}
