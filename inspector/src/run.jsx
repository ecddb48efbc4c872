// One run: its figures in the header, the strip, the tree of its steps, and beside it what is selected.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { RunActs } from "./acts.jsx";
import { embedded } from "./api.js";
import { Bar } from "./bar.jsx";
import { amount, cost, count, duration, sum } from "./format.js";
import { announce, useKeys, useMedia, useNow, useStored, useTitle } from "./hooks.js";
import { nameOf } from "./names.js";
import { Pane } from "./pane.jsx";
import { Boundary, Problem, Status, Tag } from "./parts.jsx";
import { rulesOf, useRecord } from "./record.js";
import { go, href } from "./route.js";
import { Strip } from "./strip.jsx";
import { isOwn, times } from "./times.js";
import { Tree } from "./tree.jsx";

const Figure = ({ value, words, title, extra = "" }) => <span class={`figure ${extra}`} title={title}><b>{value}</b>{words && ` ${words}`}</span>;

// What a run used is in the row of its end; until then it is what its steps have used.
function used(record) {
  const { run } = record;
  if (run.ended != null) return { calls: run.requests, tokens: run.tokens, dollars: run.cost };
  const all = record.inside(null).filter((step) => isOwn(record, step)).map((step) => record.sums(step.id));
  const add = (pick) => all.reduce((sum, one) => (sum === null || pick(one) === null ? null : sum + pick(one)), 0);
  return { calls: add((one) => one.calls), tokens: [add((one) => one.tokens[0]), add((one) => one.tokens[1])], dollars: add((one) => one.cost) };
}

function Figures({ record, now }) {
  const all = times(record, now);
  const { calls, tokens, dollars } = used(record);
  return (
    <div class="figs num" key={duration(all.seconds)}>
      <Figure value={duration(all.seconds)} words="of work" title="without pauses" />
      {all.waited >= 0.05 && <Figure value={duration(all.waited)} words="waited" title="for answers" extra="wide" />}
      {calls > 0 && <Figure value={count(calls)} words={calls === 1 ? "LM call" : "LM calls"} title={(record.run.models ?? []).join("\n")} />}
      {sum(tokens) > 0 && <Figure value={amount(sum(tokens))} words="tokens" title={`${count(tokens[0])} in, ${count(tokens[1])} out`} extra="either" />}
      {calls > 0 && dollars !== null && <Figure value={cost(dollars)} title="cost" />}
    </div>
  );
}

// What a reader wants to see first: what failed, what asks, the first agent, the last step.
function firstOf(record) {
  const deepest = (status) => record.steps.findLast((step) => step.status === status && !record.inside(step.id).some((one) => one.status === status));
  const failed = record.run.status === "completed" ? undefined : record.steps.findLast((step) => step.parent === null && step.status === "failed");
  return failed ? (deepest("failed") ?? failed) : (record.waiting.at(-1) ?? record.inside(null).find((step) => step.kind === "agent") ?? record.inside(null).at(-1));
}

const WIDE = "(min-width: 761px)";
function Split({ share, onMove }) {
  const down = (event) => {
    event.preventDefault();
    event.currentTarget.setPointerCapture(event.pointerId);
  };
  const move = ({ currentTarget, pointerId, clientX }) => {
    const box = currentTarget.parentElement.getBoundingClientRect();
    if (currentTarget.hasPointerCapture(pointerId)) onMove(((clientX - box.left) / box.width) * 100);
  };
  const pressed = (event) => {
    const by = { ArrowLeft: -2, ArrowRight: 2, Home: -100, End: 100 }[event.key];
    if (!by) return;
    event.preventDefault();
    onMove(share + by);
  };
  const told = { "aria-orientation": "vertical", "aria-label": "Width of the steps", "aria-valuenow": Math.round(share), "aria-valuemin": 24, "aria-valuemax": 70 };
  return <div class="split" role="separator" tabIndex={0} {...told} onPointerDown={down} onPointerMove={move} onKeyDown={pressed} onDblClick={() => onMove(44)} />;
}

// With its origin, of a copy; else the reader chooses.
function Compare({ run: { origin, id, thread } }) {
  if (!thread) return null;
  const from = origin?.run.replace(/\.\d+$/, ""); // the name of a run is that of its thread and a number
  const params = origin ? { thread: from, run: origin.run, other_thread: thread, other_run: id } : { thread, run: id };
  return <a class="btn" href={href("compare", params)} title={origin ? `with ${origin.run}` : "with another run"}>Compare</a>;
}

export function RunPage({ params, about }) {
  const { thread, run, step: wanted, tab } = params;
  const { record, error, busy, again } = useRecord({ thread, run });
  const wide = useMedia(WIDE);
  const now = useNow(Boolean(record) && record.run.status === "running", 500);
  const [kept, keep] = useStored("dspyer-split", 44);
  const share = Number(kept);
  const [query, setQuery] = useState("");
  const side = useRef(null);
  // What was shown first stays selected when the run goes on.
  const auto = useRef(null);
  if (record?.complete && (!auto.current || !record.step(auto.current))) auto.current = firstOf(record)?.id ?? null;
  const fallback = record && !record.complete && !wanted ? firstOf(record)?.id : auto.current;
  const selected = wanted && record?.step(wanted) ? wanted : wide && !(wanted && busy) ? fallback : null;
  const step = selected ? record.step(selected) : null;
  const page = !wide && step; // on a phone, a step is a page of its own
  useTitle(record && `${thread || record.run.graph} · ${record.run.status}`);

  const { page: _, ...rest } = params;
  const select = (id) => id !== wanted && go("run", { ...rest, step: id }, { replace: Boolean(wanted) && wide });
  const back = () => go("run", { ...rest, step: undefined, tab: undefined });
  const setTab = (id) => go("run", { ...rest, step: selected, tab: id }, { replace: true });

  const status = record?.run.status;
  const before = useRef(null);
  useEffect(() => {
    if (status && before.current && before.current !== status) announce(`The run is now ${status}`);
    before.current = status;
  }, [status]);
  useKeys({ Escape: (event, typing) => (typing ? typing.blur() : page ? back() : document.querySelector("[role=tree]")?.focus()) });
  const strip = useMemo(() => record && <Strip record={record} selected={selected} onSelect={select} now={now} lanes={wide ? 5 : 4} />, [record, selected, now, wide, wanted, tab]);
  const rule = record?.run.hidden;
  const hidden = rule && <Tag title={rule === "function" ? "Its program hides values by a function: none are shown" : `What matches ${rulesOf(rule)} is hidden`}>redacted</Tag>;
  const trail = record ? [record.run.graph, <><h1>{thread || record.run.graph}</h1><Status status={status} />{hidden}</>] : [];
  return (
    <>
      <Bar trail={trail} deep>
        {record && <Figures record={record} now={now} />}
        {record && !embedded && <span class="acts" key={status}><RunActs run={record.run} about={about} onChanged={again} /><Compare run={record.run} /></span>}
      </Bar>
      {error && <div class="trouble"><Problem error={error} old={Boolean(record)} onRetry={again} /></div>}
      <div class="stripline"><Boundary what="The strip" of={record}>{strip}</Boundary></div>
      <main id="main" tabIndex={-1} class={page ? "run page" : "run"} style={{ "--share": `${share}%` }} aria-busy={busy}>
        {record && (
          <>
            <Boundary what="The tree" of={record}><Tree {...{ record, selected, query, setQuery, now }} onSelect={select} onEnter={() => side.current?.focus()} /></Boundary>
            <Split share={share} onMove={(to) => keep(Math.round(Math.max(24, Math.min(70, to)) * 10) / 10)} />
            <section class="right" ref={side} tabIndex={-1} aria-label={step ? `Step ${nameOf(step)}` : "Step"}>
              {step && <Boundary what="This step" of={`${selected} ${record.position}`}><Pane key={selected} {...{ record, step, tab, about, now }} onTab={setTab} onSelect={select} onBack={back} /></Boundary>}
              {!step && <p class="empty">{record.steps.length ? "Choose a step." : "The run has no step yet."}</p>}
            </section>
          </>
        )}
      </main>
    </>
  );
}
