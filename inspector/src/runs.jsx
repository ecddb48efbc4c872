// The lists of runs and of threads: filters, search, pages.

import { useEffect, useRef, useState } from "preact/hooks";
import { get } from "./api.js";
import { count, failureText, firstLine, epoch, plural, seconds, totals, usd } from "./format.js";
import { announce, useKeys, useTitle } from "./hooks.js";
import { Empty, Problem, Status, STATUSES, Time, moveFocus } from "./parts.jsx";
import { go, href } from "./route.js";

const LIMIT = 100;
const RENEW = 4000; // milliseconds between two looks for what is new
const SINCE = { "": "any time", 3600: "the last hour", 86400: "the last 24 hours", 604800: "the last 7 days" };

export const runKey = (info) => `${info.thread}\n${info.run_id}`;

// The value of `since` for "the last hour": whole minutes, so that one page stays one query.
const sinceTime = (span) => (span ? new Date(Math.floor(Date.now() / 60000) * 60000 - span * 1000).toISOString() : "");

function query(filter) {
  const { status, graph, thread, text } = filter;
  return { status, graph, thread, text, since: sinceTime(Number(filter.within || 0)), until: filter.until };
}

function usePages(path, filter) {
  const key = JSON.stringify([path, filter]);
  const [state, setState] = useState({ key: null, items: [], next: null, error: null, fresh: [] });
  const shown = useRef(state);
  shown.current = state;
  useEffect(() => {
    const stop = new AbortController();
    let pause = RENEW;
    let timer = null;
    const load = () => get(path, { ...query(filter), limit: LIMIT }, stop.signal);
    const failed = (error) => stop.signal.aborted || setState((old) => ({ ...old, error, key }));
    load().then(
      (page) => stop.signal.aborted || setState({ key, items: page.items, next: page.next, error: null, fresh: [] }),
      failed,
    );
    // What changed is renewed in place; what is new waits for a click, so that nothing moves under the reader's hand.
    const renew = async () => {
      timer = setTimeout(renew, pause);
      if (document.hidden || shown.current.key !== key) return;
      try {
        const page = await load();
        if (stop.signal.aborted) return;
        pause = RENEW;
        const now = new Map(page.items.map((info) => [runKey(info), info]));
        const known = new Set(shown.current.items.map(runKey));
        const items = shown.current.items.map((info) => now.get(runKey(info)) ?? info);
        const fresh = page.items.filter((info) => !known.has(runKey(info)));
        // More than a page is new: between it and what is shown there are runs that were not read.
        const after = fresh.length && fresh.length === page.items.length ? page.next : undefined;
        setState((old) => ({ ...old, items, fresh, after, error: null }));
      } catch (error) {
        pause = Math.min(pause * 2, 60_000);
        failed(error);
      }
    };
    timer = setTimeout(renew, pause);
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [key]);
  const more = async () => {
    try {
      const page = await get(path, { ...query(filter), limit: LIMIT, after: state.next });
      setState((old) => ({ ...old, items: [...old.items, ...page.items], next: page.next, error: null }));
      announce(`${plural(page.items.length, "more run")} loaded`);
    } catch (error) {
      setState((old) => ({ ...old, error }));
    }
  };
  const showFresh = () =>
    setState(({ items, next, fresh, after, ...old }) => {
      const whole = after === undefined ? { items: [...fresh, ...items], next } : { items: fresh, next: after };
      return { ...old, ...whole, fresh: [] };
    });
  return { ...state, busy: state.key !== key, more, showFresh };
}

function Filters({ page, params }) {
  const change = (name) => (event) => go(page, { ...params, [name]: event.target.value }, { replace: true });
  return (
    <form class="filters" role="search" onSubmit={(event) => event.preventDefault()}>
      <label class="grow">
        <span>Search</span>
        <input
          id="search"
          type="search"
          value={params.text ?? ""}
          placeholder="Thread or failure"
          onInput={change("text")}
        />
      </label>
      <label>
        <span>Status</span>
        <select value={params.status ?? ""} onChange={change("status")}>
          <option value="">any status</option>
          {STATUSES.map((status) => <option key={status} value={status}>{status}</option>)}
        </select>
      </label>
      <label>
        <span>Graph</span>
        <input type="text" value={params.graph ?? ""} placeholder="any graph" onInput={change("graph")} />
      </label>
      <label>
        <span>Started</span>
        <select value={params.within ?? ""} onChange={change("within")}>
          {Object.entries(SINCE).map(([span, words]) => <option key={span} value={span}>{words}</option>)}
        </select>
      </label>
    </form>
  );
}

function duration(info) {
  const [from, to] = [epoch(info.started), epoch(info.ended)];
  return from == null || to == null ? null : to - from;
}

function Row({ info, threads }) {
  const failure = info.failure;
  const asked = info.questions?.length ?? 0;
  const question = asked ? info.questions[0] : null;
  const words = failure
    ? `${failure.node ? `${failure.node}: ` : ""}${firstLine(failureText(failure))}`
    : question
      ? `${question.node ?? ""} asks: ${firstLine(question.text)}`
      : `run ${info.run_id.slice(0, 8)}`;
  const tokens = totals(info.usage).total;
  return (
    <li>
      <a class="row" href={href("run", { thread: info.thread, run: info.run_id })} data-key={runKey(info)}>
        <Status status={info.status} />
        <span class="who">
          <span class="name">{info.thread}</span>
          <span class={failure ? "sub bad" : "sub"}>{words}</span>
        </span>
        <span class="graphname">{info.graph}</span>
        <span class="num">{plural(info.steps ?? 0, "step")}</span>
        <span class="num">{info.status === "running" ? "…" : seconds(duration(info))}</span>
        <span class="num opt">{tokens ? `${count(tokens)} tokens` : "–"}</span>
        <span class="num">{usd(info.cost)}</span>
        <span class="num when"><Time time={info.started} /></span>
      </a>
    </li>
  );
}

export function RunsPage({ page, params }) {
  const threads = page === "threads";
  const title = threads ? "Threads" : "Runs";
  useTitle(title);
  const list = useRef(null);
  const { items, next, error, busy, fresh, more, showFresh } = usePages(page, params);
  const move = (event, typing) => (typing ? false : moveFocus(list.current, "a.row", event));
  useKeys({
    j: move,
    k: move,
    ArrowDown: move,
    ArrowUp: move,
    Home: move,
    End: move,
    "/": (event, typing) => (typing ? false : document.getElementById("search").focus()),
    Escape: (event) => event.target.blur?.(),
  });
  useEffect(() => {
    if (!busy) announce(`${title}: ${plural(items.length, "entry", "entries")}${next ? " and more" : ""}`);
  }, [busy, items.length]);
  const filtered = ["text", "status", "graph", "within", "thread", "until"].some((name) => params[name]);
  return (
    <main id="main" class="runs" tabIndex={-1}>
      <div class="headline">
        <h1>{title}</h1>
        <button type="button" class="fresh" hidden={!fresh.length} onClick={showFresh}>
          Show {plural(fresh.length, "new run")}
        </button>
      </div>
      <Filters page={page} params={params} />
      {params.thread && (
        <p class="chosen">
          Runs of the thread <b>{params.thread}</b>. <a href={href(page)}>Show all</a>
        </p>
      )}
      {error && <Problem error={error} />}
      <div class="heads" aria-hidden="true">
        <span>Status</span><span>Thread</span><span>Graph</span><span class="num">Steps</span><span class="num">Time</span>
        <span class="num opt">Tokens</span><span class="num">Cost</span><span class="num when">Started</span>
      </div>
      <ol class="rows" ref={list} aria-busy={busy} aria-label={title}>
        {items.map((info) => <Row key={runKey(info)} info={info} />)}
      </ol>
      {!busy && !error && items.length === 0 && (
        <Empty>
          {filtered ? (
            <p>Nothing fits this filter. <a href={href(page)}>Show everything</a></p>
          ) : (
            <p>The store has no runs yet. A run on a thread is stored: <code>program.thread("t").run(…)</code></p>
          )}
        </Empty>
      )}
      {next && <button type="button" class="more" onClick={more}>Show {LIMIT} more</button>}
    </main>
  );
}
