// Two runs side by side: figures, and their steps in pairs; what is equal folds to one line.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { verdict } from "./answer.jsx";
import { Bar } from "./bar.jsx";
import { Diff } from "./diff.jsx";
import { amount, beginning, cost, count, duration, plural } from "./format.js";
import { announce, useAnswer, useTitle } from "./hooks.js";
import { isBookkeeping, nameOf } from "./names.js";
import { Boundary, Kind, Problem, Status, Tag, Time, useListKeys } from "./parts.jsx";
import { partsOf } from "./parse.js";
import { useRecord, useValues } from "./record.js";
import { href } from "./route.js";

const MANY = 200; // lines that are shown at once
const NAMES = 8; // of equal steps, in their line

const textIn = (content) => partsOf(content).map((part) => (typeof part === "string" ? part : JSON.stringify(part))).join("\n");

// --- figures

const SHOWN = { seconds: ["work", duration], waited: ["waited", duration], requests: ["LM calls", count], cost: ["cost", cost] };

// [name, show, before, after] of each figure; tokens are two.
function figuresOf(figures) {
  const found = Object.entries(figures).flatMap(([name, [a, b]]) => {
    if (Array.isArray(a) || Array.isArray(b)) return [[`${name} in`, amount, a?.[0], b?.[0]], [`${name} out`, amount, a?.[1], b?.[1]]];
    const [words, show] = SHOWN[name] ?? [name, count];
    return [[words, show, a, b]];
  });
  return found.filter(([name, , a, b]) => name !== "waited" || a || b);
}

function Figure({ name, show, a, b }) {
  const share = a && b != null ? Math.round((100 * (b - a)) / a) : 0;
  const tone = share < 0 ? "down" : share > 0 ? "up" : "soft";
  return (
    <div class="kpi">
      <span class="faint">{name}</span>
      <p class="num"><b>{show(b)}</b> {share !== 0 && <span class={tone}>{share < 0 ? "−" : "+"}{count(Math.abs(share))} %</span>}</p>
      <span class="soft num">{a === b ? "the same" : `was ${show(a)}`}</span>
    </div>
  );
}

// --- the two runs

function RunCard({ letter, run, other, at }) {
  const { origin } = run ?? {};
  const isCopy = origin && (origin.run === other?.id || origin.run === other?.run_id);
  return (
    <section class="card runcard" aria-label={`Run ${letter}`}>
      <h2>
        <span class={`ab ${letter.toLowerCase()}`}>{letter}</span>
        <span class="one">{run?.thread || run?.id || "…"}</span>
        {run && <Status status={run.status} />}
      </h2>
      <p class="soft">
        {!run && " "}
        {run && !origin && <>{run.graph}, <Time time={run.started} /></>}
        {origin && <>copy of {isCopy ? (letter === "B" ? "A" : "B") : origin.run} after <b>{at ?? origin.at}</b></>}
        {origin?.wrote?.length > 0 && <>, with {origin.wrote.map((name, i) => <>{i > 0 && ", "}<code>{name}</code></>)} edited</>}
      </p>
    </section>
  );
}

// --- lines

const isEqual = ({ a, b, changed }) => a != null && b != null && !changed.length;

// What is shown of the pairs: [pair], or [first, ..., last] of equal ones that fold to one line.
function linesOf(pairs) {
  const differs = new Set();
  const path = [];
  pairs.forEach((pair, i) => {
    path.length = pair.depth;
    path[pair.depth] = i;
    if (!isEqual(pair)) for (const place of path) if (place !== undefined) differs.add(place);
  });
  const lines = [];
  pairs.forEach((pair, i) => {
    const last = lines.at(-1);
    if (differs.has(i)) lines.push({ at: [i], equal: false });
    else if (last?.equal && pair.depth >= pairs[last.at[0]].depth) last.at.push(i);
    else lines.push({ at: [i], equal: true });
  });
  return lines;
}

// --- what differs in a pair

const SECTION = /^\[\[ ## (\w+) ## \]\][ \t]*\n?/m;

// The messages of the calls of a step that were answered, by the names that a comparison gives their parts.
function promptsOf(step, values) {
  const found = {};
  for (const call of step?.lm ?? []) {
    if (call.failed) continue;
    const messages = (call.messages ?? []).map((id) => values.get(id)).filter(Boolean);
    const users = messages.filter(({ role }) => role === "user");
    for (const one of messages) if (one.role === "system") found.instructions = textIn(one.content);
    if (!users.length) continue;
    const [before, ...parts] = textIn(users.at(-1).content).split(SECTION);
    if (!parts.length) found[""] = before;
    for (let i = 0; i < parts.length; i += 2) found[parts[i]] = parts[i + 1].trim();
  }
  return found;
}

function answerText(asked, values) {
  const { answer } = asked ?? {};
  if (!answer) return undefined;
  const value = values.get(answer.value);
  const words = verdict(asked, value) ?? (typeof value === "string" ? value : JSON.stringify(value));
  return `${words}${answer.by ? ` by ${answer.by}` : ""}${answer.comment ? `: “${beginning(answer.comment)}”` : ""}`;
}

// What was said in a step: the messages that it added, else the responses of its models.
function saysOf(record, step, values) {
  if (!step) return undefined;
  const after = values.get(step.wrote.messages?.value);
  if (Array.isArray(after)) {
    const before = values.get(record.before(step.id).get("messages")?.value) ?? [];
    const said = after.slice(Array.isArray(before) ? before.length : 0).filter(({ role }) => role === "assistant");
    const calls = (one) => (one.tool_calls ?? []).map((call) => `\n→ ${call.function?.name ?? call.name}(${call.function?.arguments ?? ""})`).join("");
    if (said.length) return said.map((one) => `${textIn(one.content)}${calls(one)}`).join("\n");
  }
  const responses = step.lm.filter((call) => !call.failed && call.response).map((call) => values.get(call.response));
  return responses.length ? responses.map((one) => (typeof one === "string" ? withoutMarks(one) : JSON.stringify(one, null, 2))).join("\n") : undefined;
}

// A response without the marks of DSPy's adapter.
const withoutMarks = (text) => text.replace(/^\[\[ ## completed ## \]\]\s*$/m, "").replace(/^\[\[ ## (\w+) ## \]\]\s*/gm, "$1: ").trim();

// The value of a changed name in a step.
function partOf(record, step, name, values) {
  if (!step) return undefined;
  if (name in step.wrote) return values.get(step.wrote[name].value);
  if (name.startsWith("prompt")) return promptsOf(step, values)[name.slice("prompt: ".length)];
  const special = {
    result: () => step.call?.error ?? values.get(step.call?.result),
    args: () => step.call?.args,
    question: () => beginning(step.asked?.text),
    answer: () => answerText(step.asked, values),
    says: () => saysOf(record, step, values),
    status: () => step.status,
    failure: () => step.failure && `${step.failure.type}: ${beginning(step.failure.message)}`,
  };
  return special[name]?.();
}

// The ids of the values that a pair's changes are made of.
function idsOf(record, step, names) {
  if (!step) return [];
  const ids = names.map((name) => step.wrote[name]?.value);
  if (names.includes("says")) ids.push(step.wrote.messages?.value, record.before(step.id).get("messages")?.value, ...step.lm.map((call) => call.response));
  if (names.some((name) => name.startsWith("prompt"))) ids.push(...step.lm.flatMap((call) => call.messages ?? []));
  return [...ids, step.call?.result, step.asked?.answer?.value].filter((id) => id != null);
}

// An edit that one run has alone is compared with the values before it.
const earlier = (record, step, names) =>
  step?.kind === "edit" ? names.map((name) => record.before(step.id).get(name)?.value).filter((id) => id != null) : [];

const allIds = (record, id, { changed }) => (id == null ? [] : [...idsOf(record, record.step(id), changed), ...earlier(record, record.step(id), changed)]);

// The values of pairs in one of the runs, and whether all are there.
function useSide(record, side, pairs) {
  const ids = pairs.flatMap((pair) => allIds(record, pair[side], pair));
  const values = useValues(record, ids);
  return [values, ids.every((id) => values.has(id))];
}

function Changes({ pair, a, b }) {
  const [left, right] = [pair.a && a.step(pair.a), pair.b && b.step(pair.b)];
  const [[valuesA, thereA], [valuesB, thereB]] = [useSide(a, "a", [pair]), useSide(b, "b", [pair])];
  if (!thereA || !thereB) return <p class="soft" aria-busy="true">…</p>;
  // What an edit has changed, if the other run has not edited it.
  const unedited = (record, step, values, name) => (step.kind === "edit" ? values.get(record.before(step.id).get(name)?.value) : undefined);
  const before = (name) => (left ? partOf(a, left, name, valuesA) : unedited(b, right, valuesB, name));
  const after = (name) => (right ? partOf(b, right, name, valuesB) : unedited(a, left, valuesA, name));
  return (
    <dl class="card">
      {pair.changed.map((name) => (
        <div class="field" key={name}>
          <dt>{name}</dt>
          <dd><Boundary what="This difference"><Diff before={before(name)} after={after(name)} /></Boundary></dd>
        </div>
      ))}
      {!pair.changed.length && <div class="field"><dt>equal</dt><dd class="soft">both did the same</dd></div>}
    </dl>
  );
}

// --- rows

const workOf = (step) => (step && step.kind !== "start" && step.kind !== "edit" ? Math.max(0, (step.seconds ?? 0) - (step.waited ?? 0)) : null);

function Row({ pair, a, b, most, open, onOpen }) {
  const [left, right] = [pair.a && a.step(pair.a), pair.b && b.step(pair.b)];
  const step = right || left;
  const [was, now] = [workOf(left), workOf(right)];
  const width = (seconds) => (seconds == null ? 0 : Math.max(2, (90 * seconds) / most));
  return (
    <li class={open ? "pairline on" : "pairline"}>
      <button type="button" class="pair" aria-expanded={open} onClick={onOpen}>
        <span class="faint" aria-hidden="true">{open ? "▾" : "▸"}</span>
        <span class="pairname">
          {Array.from({ length: Math.min(pair.depth, 8) }, (_, i) => <span class="guide" key={i} />)}
          <Kind kind={step?.kind} />
          <b class="one">{step ? nameOf(step) : pair.node}</b>
          {step?.visit > 1 && <span class="faint">×{step.visit}</span>}
          {pair.a == null && <Tag tone="ok">only in B</Tag>}
          {pair.b == null && <Tag tone="bad">only in A</Tag>}
        </span>
        <span class="what one">{pair.changed.join(", ")}</span>
        <svg class="twobars" viewBox="0 0 92 14" aria-hidden="true">
          <rect fill="var(--join)" y="1" width={width(was)} height="5" rx="2.5" />
          <rect fill="var(--accent)" y="8" width={width(now)} height="5" rx="2.5" />
        </svg>
        <span class="pairtimes num">
          {was != null && <span class={now == null ? "" : "faint"}>{duration(was)}</span>}
          {was != null && now != null && <span class="faint"> → </span>}
          {now != null && duration(now)}
        </span>
      </button>
      {open && <div class="pairbody"><Changes pair={pair} a={a} b={b} /></div>}
    </li>
  );
}

const keepsBooks = (record, id) => id != null && isBookkeeping(record, record.step(id));

// The first rows of a list, and more of them on request: thousands at once would stop the page.
function Rows({ items, children }) {
  const [most, setMost] = useState(MANY);
  return (
    <>
      {items.slice(0, most).map(children)}
      {items.length > most && (
        <li class="pairline morerows">
          <button type="button" class="btn small" onClick={() => setMost(most + MANY)}>Show {count(Math.min(MANY, items.length - most))} more of {count(items.length)}</button>
        </li>
      )}
    </>
  );
}

function Steps({ pairs: given, a, b }) {
  const pairs = useMemo(
    () => given.filter((pair) => (pair.a == null || a.step(pair.a)) && (pair.b == null || b.step(pair.b)) && !keepsBooks(a, pair.a) && !keepsBooks(b, pair.b)),
    [given, a, b],
  );
  const lines = useMemo(() => linesOf(pairs), [pairs]);
  const list = useRef(null);
  const keyOf = (pair) => `${pair.a}\n${pair.b}`;
  // The first changes stand open, as soon as their values are there; which ones, does not change when the runs go on.
  const [early] = useState(() => lines.filter(({ equal }) => !equal).map(({ at }) => pairs[at[0]]).filter(({ changed }) => changed.length).slice(0, 2));
  const [open, setOpen] = useState(() => new Set(early.map(keyOf)));
  const [[, thereA], [, thereB]] = [useSide(a, "a", early), useSide(b, "b", early)];
  const begun = useRef(false);
  begun.current ||= thereA && thereB;
  const most = useMemo(() => Math.max(1e-9, ...pairs.flatMap(({ a: x, b: y }) => [workOf(x && a.step(x)) ?? 0, workOf(y && b.step(y)) ?? 0]).slice(0, 50_000)), [pairs, a, b]);
  const toggle = (key) => {
    const now = new Set(open);
    if (!now.delete(key)) now.add(key);
    setOpen(now);
  };
  const fold = (wanted) => (event, typing) => {
    const on = document.activeElement;
    if (typing || on?.getAttribute("aria-expanded") !== String(!wanted) || !list.current.contains(on)) return false;
    on.click();
    return true;
  };
  useListKeys(list, ".pair, .equals", { ArrowRight: fold(true), ArrowLeft: fold(false) });
  const rows = lines.slice(0, MANY).filter(({ equal }) => !equal).map(({ at }) => keyOf(pairs[at[0]]));
  const all = rows.length > 0 && rows.every((key) => open.has(key));
  const row = (pair) => (
    <Row key={keyOf(pair)} {...{ pair, a, b, most }} open={open.has(keyOf(pair))} onOpen={() => toggle(keyOf(pair))} />
  );
  if (!begun.current) return null;
  return (
    <>
      <div class="legend">
        <h2>Steps</h2>
        <span class="soft"><i class="key-a" /> A <i class="key-b" /> B</span>
        <del>only in A</del> <ins>only in B</ins>
        <span class="room" />
        <button type="button" class="btn small" disabled={!rows.length} onClick={() => setOpen(all ? new Set() : new Set([...open, ...rows]))}>
          {all ? "Close all" : "Open all"}
        </button>
      </div>
      <ol class="table pairs" ref={list} aria-label="Steps in pairs">
        <Rows items={lines}>{({ at, equal }) => {
          if (!equal) return row(pairs[at[0]]);
          const key = `equal ${keyOf(pairs[at[0]])}`;
          const names = at.map((i) => pairs[i]).filter(({ depth }) => depth === pairs[at[0]].depth); // not those inside of them
          return (
            <>
              <li key={key} class="pairline">
                <button type="button" class="equals" aria-expanded={open.has(key)} onClick={() => toggle(key)}>
                  <span class="faint" aria-hidden="true">{open.has(key) ? "▾" : "▸"}</span>
                  {Array.from({ length: Math.min(names[0].depth, 8) }, (_, i) => <span class="guide" key={i} />)}
                  <span class="one">{plural(names.length, "equal step")}: {names.slice(0, NAMES).map(({ b: id }) => nameOf(b.step(id))).join(", ")}{names.length > NAMES && ", …"}</span>
                </button>
              </li>
              {open.has(key) && <Rows items={at}>{(i) => row(pairs[i])}</Rows>}
            </>
          );
        }}</Rows>
      </ol>
    </>
  );
}

// --- the view

// Without a second run: those of the same graph to choose from.
function ChooseOther({ params, record }) {
  const { graph, origin } = record?.run ?? {};
  const { data, error } = useAnswer(record ? "runs" : null, { graph, limit: 50 });
  const others = (data?.items ?? []).filter(({ thread, run_id: run }) => thread !== params.thread || (params.run && run !== params.run && run !== record.run.run_id));
  return (
    <section class="nothing" hidden={!data && !error}>
      <h2>Compare {params.thread} with…</h2>
      {error && <Problem error={error} />}
      {data && !others.length && <p>There is no other run of the graph {graph}. Copy this one with an edited state, from a step of it.</p>}
      <ul class="nodes others">
        {others.map(({ thread, run_id: run, status, started }) => (
          <li key={`${thread}\n${run}`}>
            <a class="btn" href={href("compare", { thread: params.thread, run: params.run, other_thread: thread, other_run: run })}>
              {thread} <Status status={status} /> <span class="soft"><Time time={started} /></span>
              {origin && origin.run.startsWith(`${thread}.`) && <Tag tone="ok">its origin</Tag>}
            </a>
          </li>
        ))}
      </ul>
    </section>
  );
}

function nodeOf(origin, ...records) {
  if (!origin) return undefined;
  for (const record of records) {
    const step = record?.step(origin.at);
    if (step) return nameOf(step);
  }
  return undefined;
}

export function ComparePage({ params }) {
  const { thread, run, other_thread: otherThread, other_run: otherRun } = params;
  useTitle(otherThread ? `${thread} and ${otherThread}` : `Compare ${thread}`);
  const first = useRecord({ thread, run });
  const second = useRecord({ thread: otherThread ?? thread, run: otherThread ? otherRun : run });
  const [a, b] = [first.record, otherThread ? second.record : null];
  const path = a?.complete && b?.complete ? "compare" : null; // once, and again when one of them goes on
  const { data, error, busy } = useAnswer(path, { thread, run, other_thread: otherThread, other_run: otherRun }, `${a?.position} ${b?.position}`);
  useEffect(() => {
    if (data) announce(`${plural(data.pairs.filter((pair) => !isEqual(pair)).length, "step differs", "steps differ")}`);
  }, [data]);
  const problem = error ?? first.error ?? (otherThread ? second.error : null);
  const ready = data && path;
  const [runA, runB] = [a?.run, b?.run];
  return (
    <>
      <Bar trail={[<h1>Compare</h1>]}>
        <a class="btn" href={href("run", { thread, run })}>Open A</a>
        {otherThread && <a class="btn main" href={href("run", { thread: otherThread, run: otherRun })}>Open B</a>}
      </Bar>
      <main id="main" class="lists" tabIndex={-1} aria-busy={busy}>
        <div class="sheet compare">
          {problem && <Problem error={problem} old={Boolean(data)} />}
          {!otherThread && <ChooseOther params={params} record={a} />}
          {otherThread && !ready && !problem && <p class="reads">Reading both runs…</p>}
          {ready && otherThread && (
            <>
              <div class="two">
                <RunCard letter="A" run={runA} other={runB} at={nodeOf(runA?.origin, b, a)} />
                <RunCard letter="B" run={runB} other={runA} at={nodeOf(runB?.origin, a, b)} />
              </div>
              <div class="kpis card">{figuresOf(data.figures).map(([name, show, x, y]) => <Figure key={name} {...{ name, show }} a={x} b={y} />)}</div>
              <Steps key={`${thread} ${run} ${otherThread} ${otherRun}`} pairs={data.pairs} a={a} b={b} />
            </>
          )}
        </div>
      </main>
    </>
  );
}
