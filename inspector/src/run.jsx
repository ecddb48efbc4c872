// One run: its head, its views (steps, graph, timeline, ...) and the selected step beside them.

import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { Actions } from "./acts.jsx";
import { follow, token } from "./api.js";
import { embedded } from "./embedded.js";
import { count, epoch, failureText, firstLine, itemsText, plural, seconds, totals, usd } from "./format.js";
import { GraphView } from "./graph.jsx";
import { announce, useAnswer, useKeys, useMedia, useNow, useTitle } from "./hooks.js";
import { LiveView } from "./live.jsx";
import { Boundary, Facts, Problem, Status, Tabs, Time } from "./parts.jsx";
import { go, href } from "./route.js";
import { ConflictsView, ItemsView, RepairsView, StatsView } from "./tables.jsx";
import { StepPane } from "./step.jsx";
import { useSteps } from "./steps.js";
import { StepsView, TimelineView } from "./stepslist.jsx";

// What stands in the list of steps: the commits, then what has not been committed: failures and open questions.
function useEntries(steps, data) {
  const ends = useMemo(() => {
    const failed = (data?.failures ?? []).map((failure) => ({ kind: "failure", failure, id: `!${failure.execution}` }));
    const asked = (data?.questions ?? []).map((question) => ({
      kind: "question",
      question,
      id: `?${question.id ?? `${question.execution}/${question.key}`}`,
    }));
    return [...failed, ...asked];
  }, [data]);
  const size = steps.count + ends.length;
  const at = (i) => {
    if (i >= steps.count) return ends[i - steps.count];
    const row = steps.at(i);
    return row && { kind: "commit", row, id: row.id };
  };
  const indexOf = (id) => {
    const end = ends.findIndex((entry) => entry.id === id);
    return end >= 0 ? steps.count + end : steps.indexOf(id);
  };
  return { size, at, indexOf, ends };
}

// In words: what the run is doing or how it ended.
function words(data, rows) {
  const { info, failures = [], questions = [] } = data;
  const failure = info.failure ?? failures[0];
  if (info.status === "interrupted" && questions.length) {
    const [question] = questions;
    return `${question.node} asks: ${firstLine(question.text)}`;
  }
  if (failure && info.status !== "completed") {
    const attempt = failure.attempt > 1 ? ` in attempt ${failure.attempt}` : "";
    return `${failure.node ?? "The run"} failed${attempt}: ${firstLine(failureText(failure))}`;
  }
  const last = rows.at(rows.count - 1);
  const place = last ? `, last ${last.node}` : "";
  if (info.status === "running") return `Running${place}`;
  if (info.status === "completed") return `Completed after ${plural(rows.count, "step")}`;
  if (info.status === "crashed") return `The process ended without a word${place}; the run can be resumed`;
  return `${info.status[0].toUpperCase()}${info.status.slice(1)} after ${plural(rows.count, "step")}${place}`;
}

function Head({ data, trouble, steps, about, onChanged, end, onShow }) {
  const { info } = data;
  const now = useNow(info.status === "running");
  const [from, to] = [epoch(info.started), epoch(info.ended)];
  const spent = totals(info.usage);
  const label = /^(.*)\/[^/]*$/.exec(steps.at(0)?.id ?? steps.at(steps.count - 1)?.id ?? "")?.[1] ?? info.run_id.slice(0, 8);
  const models = Object.keys(info.usage ?? {});
  return (
    <header class="runhead">
      <div class="title">
        {!embedded && <a class="crumb" href={href("runs", { thread: info.thread })}>Runs of</a>}
        <h1>{info.thread || info.graph}</h1>
        <Status status={info.status} />
        <span class="runid" title={`run ${info.run_id}`}>{label}</span>
        <span class="room" />
        {!embedded && <CopyLink />}
        <Actions data={data} about={about} onChanged={onChanged} />
      </div>
      <p class={`says s-${info.status}`} title={failureText(info.failure)}>
        {end ? <button type="button" class="link" onClick={() => onShow(end.id)}>{words(data, steps)}</button> : words(data, steps)}
      </p>
      {trouble && <Problem error={trouble} old />}
      <Facts
        items={[
          ["Graph", info.graph],
          ["Steps", count(Math.max(info.steps ?? 0, steps.count))],
          ["Started", <Time time={info.started} />],
          ["Time", from == null ? "–" : seconds((info.status === "running" ? Math.max(now, from) : (to ?? from)) - from)],
          ["Requests", spent.requests ? count(spent.requests) : "–"],
          ["Tokens in / out", spent.total ? `${count(spent.prompt)} / ${count(spent.response)}` : "–"],
          ["Cost", usd(info.cost)],
          ...(data.maps ?? []).map((one) => [one.node, itemsText(one)]),
          ["Model", <span title={models.join("\n")}>{models.length ? models[0] : "–"}{models.length > 1 ? ` +${models.length - 1}` : ""}</span>],
        ]}
      />
    </header>
  );
}

function CopyLink() {
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    const address = `${location.origin}${location.pathname}#token=${token() ?? ""}${location.hash.slice(1)}`;
    await navigator.clipboard.writeText(address);
    setCopied(true);
    announce("Link copied, with its token");
    setTimeout(() => setCopied(false), 1500);
  };
  return (
    <button type="button" onClick={copy} title="Copies the address of what you see, with the token: for you, not to publish">
      {copied ? "Copied" : "Copy link"}
    </button>
  );
}

const HAS_LIVE = (data) => (data.fields ?? []).some((field) => field.live);

function viewsOf(data) {
  return [
    { id: "steps", name: "Steps" },
    { id: "graph", name: "Graph" },
    { id: "timeline", name: "Timeline" },
    HAS_LIVE(data) && { id: "live", name: "Live fields" },
    data.maps?.length > 0 && { id: "items", name: "Items" },
    { id: "conflicts", name: "Conflicts" },
    { id: "stats", name: "Statistics" },
    { id: "repairs", name: "Repairs" },
  ].filter(Boolean);
}

export function RunPage({ params, about }) {
  const { thread, run } = params;
  const [version, setVersion] = useState(0);
  const { data, error } = useAnswer("run", { thread, run }, version);
  const steps = useSteps(thread, run);
  const entries = useEntries(steps, data);
  const wide = useMedia("(min-width: 1000px)");
  const pane = useRef(null);
  const renew = () => {
    if (steps.error) steps.retry();
    setVersion((n) => n + 1);
  };
  useTitle(data && `${data.info.status} · ${thread || data.info.graph}`);

  const known = useRef(0);
  if (data && data.count !== known.current) {
    known.current = data.count;
    steps.forgetOpen();
    steps.count = data.count;
  }

  const lost = useFollow(thread, run, data, renew, Boolean(error || steps.error));
  const status = data?.info.status;
  const before = useRef(null);
  useEffect(() => {
    if (status && before.current && before.current !== status) announce(`The run is now ${status}`);
    before.current = status;
  }, [status]);

  const [opened, setOpened] = useState(false);
  // Without a step in the address, the last entry is shown beside the list: a failure, a question, or the last commit.
  const auto = wide && !params.step && entries.size > 0;
  const [pending, setPending] = useState(null); // selected, and not read yet
  const index = pending ?? (params.step ? entries.indexOf(params.step) : auto ? entries.size - 1 : -1);
  const entry = index >= 0 && pending === null ? entries.at(index) : params.step ? unread(params.step) : null;
  const select = (i, how = { replace: Boolean(params.step) }) => {
    const chosen = entries.at(i);
    setPending(chosen ? null : i);
    if (chosen) show(chosen.id, how);
    else steps.want(i, i);
  };
  useLayoutEffect(() => {
    if (pending !== null && entries.at(pending)) select(pending);
  });
  const show = (id, how) => {
    const { page: _page, ...rest } = params;
    go("run", { ...rest, step: id }, how);
  };
  const setView = (view) => go("run", { ...params, view: view === "steps" ? undefined : view }, { replace: true });
  useEffect(() => {
    if (data) steps.want(entries.size - 40, entries.size);
  }, [data?.count]);

  const move = (by) => (event, typing) => {
    if (typing || !data || event.target.closest?.("[role=tablist], .detail") ) return false;
    return select(Math.max(0, Math.min(entries.size - 1, (index < 0 ? entries.size : index) + by)));
  };
  const views = data ? viewsOf(data) : [];
  const numbers = Object.fromEntries(
    views.map(({ id }, i) => [String(i + 1), (_, typing) => (typing ? false : setView(id))]),
  );
  useKeys({
    j: move(1),
    k: move(-1),
    ...numbers,
    "/": (event, typing) => (typing ? false : focusFilter(setView)),
    Escape: (event, typing) => {
      if (typing) return event.target.blur();
      if (!wide && params.step) return close();
      return document.querySelector("[role=grid]")?.focus();
    },
  });
  const close = () => go("run", { ...params, step: undefined });
  const open = () => {
    setOpened(true);
    requestAnimationFrame(() => pane.current?.querySelector("h2")?.focus());
  };

  if (error && !data) return <main id="main" tabIndex={-1}><Problem error={error} onRetry={renew} /></main>;
  // Both before anything is shown: what can be done has a place in the head.
  if (!data || !about) return <main id="main" class="run waiting" aria-busy="true" tabIndex={-1} />;
  const chosen = views.some(({ id }) => id === params.view) ? params.view : "steps";
  const View = VIEWS[chosen];
  const shared = { thread, run, data, steps, entries, selected: index, onSelect: select, onShow: show, onOpen: open, opened };
  const alone = !wide && params.step;
  return (
    <main id="main" class={`run${alone ? " alone" : ""}`} tabIndex={-1}>
      <Head data={data} trouble={error ?? lost} steps={steps} about={about} onChanged={renew} end={entries.ends[0]} onShow={show} />
      <Tabs label="Views of the run" tabs={views} selected={chosen} onSelect={setView} />
      <div class={`split${FULL.has(chosen) ? " full" : ""}`}>
        <section class={`view view-${chosen}`} id="panel" role="tabpanel" aria-labelledby={`tab-${chosen}`}>
          <Boundary what={`The view ${views.find(({ id }) => id === chosen).name}`} of={chosen}><View {...shared} /></Boundary>
        </section>
        {!FULL.has(chosen) && (
          <section class="detail" aria-label="Step" ref={pane}>
            {alone && <button type="button" class="back" onClick={close}>‹ Back to the list</button>}
            {entry ? (
              <Boundary what={`The step ${entry.id}`} of={entry.id}>
                <StepPane entry={entry} {...shared} about={about} onChanged={renew} />
              </Boundary>
            ) : (
              <p class="empty">Select a step.</p>
            )}
          </section>
        )}
      </div>
    </main>
  );
}

const VIEWS = {
  steps: StepsView,
  graph: GraphView,
  timeline: TimelineView,
  live: LiveView,
  items: ItemsView,
  conflicts: ConflictsView,
  stats: StatsView,
  repairs: RepairsView,
};
const FULL = new Set(["items", "stats", "repairs"]); // views without a step beside them

// A step that is in the address and not in the list yet: enough to read it.
const unread = (id) => (/^[!?]/.test(id) ? null : { kind: "commit", row: null, id });

function focusFilter(setView) {
  const filter = document.getElementById("filter");
  if (filter) return filter.focus();
  setView("steps");
  return requestAnimationFrame(() => document.getElementById("filter")?.focus());
}

// New rows of the store, as the server sees them: each is a reason to read the run again. Gives why there are none to see.
// While reading fails, it is read again every few seconds at most.
function useFollow(thread, run, data, renew, failing) {
  const latest = useRef(null);
  latest.current = { renew, pause: failing ? 5000 : 30 };
  const [lost, setLost] = useState(null);
  const ready = Boolean(data) && !embedded;
  useEffect(() => {
    if (!ready) return undefined;
    const stop = new AbortController();
    let waiting = null;
    const changed = () => {
      waiting ??= setTimeout(() => {
        waiting = null;
        latest.current.renew();
      }, latest.current.pause);
    };
    let broken = false;
    const linked = (error) => {
      if (broken && !error) changed(); // what was not read meanwhile
      broken = Boolean(error);
      setLost(error);
    };
    follow({ thread }, changed, linked, stop.signal);
    return () => {
      stop.abort();
      clearTimeout(waiting);
    };
  }, [thread, run, ready]);
  return lost;
}
