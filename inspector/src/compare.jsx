// Two runs side by side: figures, and their steps in pairs; what is equal folds to one line.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { verdict } from "./answer.jsx";
import { Bar } from "./bar.jsx";
import { Diff } from "./diff.jsx";
import { amount, beginning, cost, count, duration, plural } from "./format.js";
import { announce, useAnswer, useTitle } from "./hooks.js";
import { isBookkeeping, nameOf } from "./names.js";
import { Boundary, Button, Field, Kind, Problem, Status, Tag, Time, useFew, useListKeys } from "./parts.jsx";
import { partsOf } from "./parse.js";
import { useRecord, useValues } from "./record.js";
import { href } from "./route.js";

const MANY = 200; // lines that are shown at once
const NAMES = 8; // of equal steps, in their line

const textIn = (content) => partsOf(content).map((part) => (typeof part === "string" ? part : JSON.stringify(part))).join("\n");

const FIGURES = [
  ["work", duration, ({ seconds }) => seconds], ["waited", duration, ({ waited }) => (waited?.some(Boolean) ? waited : null)],
  ["cost", cost, ({ cost: both }) => both], ["LM calls", count, ({ requests }) => requests],
  ...["in", "out"].map((way, i) => [`tokens ${way}`, amount, ({ tokens }) => tokens?.map((one) => one?.[i])]),
];

function Figure({ words, show, of: [a, b] }) {
  const share = a && b != null ? Math.round((100 * (b - a)) / a) : 0;
  return (
    <div class="kpi">
      <span class="faint">{words}</span>
      <p class="num"><b>{show(b)}</b> {share !== 0 && <span class={share < 0 ? "down" : "up"}>{share < 0 ? "−" : "+"}{count(Math.abs(share))} %</span>}</p>
      <span class="soft num">{a === b ? "the same" : `was ${show(a)}`}</span>
    </div>
  );
}

function RunCard({ letter, run, other, records }) {
  const { origin } = run;
  const at = origin && records.map((record) => record.step(origin.at)).find(Boolean);
  const from = origin && (origin.run === (other.id ?? other.run_id) ? (letter === "B" ? "A" : "B") : origin.run);
  return (
    <section class="card runcard" aria-label={`Run ${letter}`}>
      <h2><span class={`ab ${letter.toLowerCase()}`}>{letter}</span><span class="one">{run.thread || run.id}</span><Status status={run.status} /></h2>
      <p class="soft">
        {origin ? <>copy of {from} after <b>{at ? nameOf(at) : origin.at}</b></> : <>{run.graph}, <Time time={run.started} /></>}
        {origin?.wrote?.length > 0 && <>, with {origin.wrote.map((name, i) => <>{i > 0 && ", "}<code>{name}</code></>)} edited</>}
      </p>
    </section>
  );
}

const isEqual = ({ a, b, changed }) => a != null && b != null && !changed.length;

// What is shown of the pairs: [pair], or [first, ..., last] of equal ones that fold to one line.
function linesOf(pairs) {
  const [differs, path, lines] = [new Set(), [], []];
  pairs.forEach((pair, i) => {
    path.length = pair.depth;
    path[pair.depth] = i;
    if (!isEqual(pair)) path.forEach((place) => differs.add(place));
  });
  pairs.forEach((pair, i) => {
    const last = lines.at(-1);
    if (!differs.has(i) && last?.equal && pair.depth >= pairs[last.at[0]].depth) last.at.push(i);
    else lines.push({ at: [i], equal: !differs.has(i) });
  });
  return lines;
}

const SECTION = /^\[\[ ## (\w+) ## \]\][ \t]*\n?/m;

// A part of the last prompt of a step that was answered, by the name that a comparison gives it.
function promptOf(step, name, values) {
  const call = step.lm.findLast((one) => !one.failed && one.messages?.length);
  const messages = (call?.messages ?? []).map((id) => values.get(id));
  if (name === "instructions") return textIn(messages.find(({ role }) => role === "system")?.content);
  const parts = textIn(messages.findLast(({ role }) => role === "user")?.content).split(SECTION);
  const at = parts.findIndex((one, i) => i % 2 && one === name);
  return name ? (at < 0 ? undefined : parts[at + 1].trim()) : parts[0];
}

function answerText(asked, values) {
  const { value: id, by, comment } = asked?.answer ?? {};
  if (!asked?.answer) return undefined;
  const value = values.get(id);
  return `${verdict(asked, value) ?? (typeof value === "string" ? value : JSON.stringify(value))}${by ? ` by ${by}` : ""}${comment ? `: “${beginning(comment)}”` : ""}`;
}

// What was said in a step: the messages that it added, else the responses of its models.
function saysOf(record, step, values) {
  const { value: id, before } = messagesOf(record, step);
  const said = Array.isArray(values.get(id)) ? values.get(id).slice(values.get(before)?.length ?? 0).filter(({ role }) => role === "assistant") : [];
  const calls = (one) => (one.tool_calls ?? []).map((call) => `\n→ ${call.function?.name ?? call.name}(${call.function?.arguments ?? ""})`).join("");
  if (said.length) return said.map((one) => `${textIn(one.content)}${calls(one)}`).join("\n");
  const responses = step.lm.filter((call) => !call.failed && call.response).map((call) => values.get(call.response));
  return responses.length ? responses.map((one) => (typeof one === "string" ? withoutMarks(one) : JSON.stringify(one, null, 2))).join("\n") : undefined;
}

// The ids of the messages after a step, and of those before it; inside of an agent's step they are those that it added.
const messagesOf = (record, step) => ({ value: step.wrote.messages?.value, before: record.added(step, "messages") ? null : record.before(step.id).get("messages")?.value });

const withoutMarks = (text) => text.replace(/^\[\[ ## completed ## \]\]\s*$/m, "").replace(/^\[\[ ## (\w+) ## \]\]\s*/gm, "$1: ").trim();

function partOf(record, step, name, values) {
  if (name in step.wrote) return values.get(step.wrote[name].value);
  if (name.startsWith("prompt")) return promptOf(step, name.slice("prompt: ".length), values);
  const found = {
    result: () => step.call?.error ?? values.get(step.call?.result), args: () => step.call?.args, says: () => saysOf(record, step, values), status: () => step.status,
    question: () => beginning(step.asked?.text), answer: () => answerText(step.asked, values), failure: () => step.failure && `${step.failure.type}: ${beginning(step.failure.message)}`,
  }[name];
  return found?.();
}

// The ids of the values that changes of a step are made of. An edit that one run has alone is compared with the values before it.
function idsOf(record, step, names) {
  if (!step) return [];
  const ids = [...names.map((name) => step.wrote[name]?.value), step.call?.result, step.asked?.answer?.value];
  if (names.includes("says")) ids.push(...Object.values(messagesOf(record, step)), ...step.lm.map((call) => call.response));
  if (names.some((name) => name.startsWith("prompt"))) ids.push(...step.lm.flatMap((call) => call.messages ?? []));
  if (step.kind === "edit") ids.push(...names.map((name) => record.before(step.id).get(name)?.value));
  return ids.filter((id) => id != null);
}

// The values of pairs in one of the runs, and whether all are there.
function useSide(record, side, pairs) {
  const ids = pairs.flatMap((pair) => idsOf(record, record.step(pair[side]), pair.changed));
  const values = useValues(record, ids);
  return [values, ids.every((id) => values.has(id))];
}

function Changes({ pair, a, b }) {
  const [left, right] = [a.step(pair.a), b.step(pair.b)];
  const [[valuesA, thereA], [valuesB, thereB]] = [useSide(a, "a", [pair]), useSide(b, "b", [pair])];
  if (!thereA || !thereB) return <p class="soft" aria-busy="true">…</p>;
  // What an edit has changed, if the other run has not edited it.
  const unedited = (record, step, values, name) => (step.kind === "edit" ? values.get(record.before(step.id).get(name)?.value) : undefined);
  const both = (name) => ({
    before: left ? partOf(a, left, name, valuesA) : unedited(b, right, valuesB, name),
    after: right ? partOf(b, right, name, valuesB) : unedited(a, left, valuesA, name),
  });
  return (
    <dl class="card">
      {pair.changed.map((name) => <Field key={name} name={name}><Boundary what="This difference"><Diff {...both(name)} /></Boundary></Field>)}
      {!pair.changed.length && <Field name="equal"><span class="soft">both did the same</span></Field>}
    </dl>
  );
}

const workOf = (step) => (step && step.kind !== "start" && step.kind !== "edit" ? Math.max(0, (step.seconds ?? 0) - (step.waited ?? 0)) : null);

const Guides = ({ depth }) => Array.from({ length: Math.min(depth, 8) }, (_, i) => <span class="guide" key={i} />);

function Row({ pair, a, b, most, open, onOpen }) {
  const [left, right] = [a.step(pair.a), b.step(pair.b)];
  const step = right ?? left;
  const both = [workOf(left), workOf(right)];
  return (
    <li class={open ? "pairline on" : "pairline"}>
      <button type="button" class="pair" aria-expanded={open} onClick={onOpen}>
        <span class="faint" aria-hidden="true">{open ? "▾" : "▸"}</span>
        <span class="pairname">
          <Guides depth={pair.depth} /><Kind kind={step.kind} /><b class="one">{nameOf(step)}</b>{step.visit > 1 && <span class="faint">×{step.visit}</span>}
          {!left && <Tag tone="ok">only in B</Tag>}{!right && <Tag tone="bad">only in A</Tag>}
        </span>
        <span class="what one">{pair.changed.join(", ")}</span>
        <svg class="twobars" viewBox="0 0 92 14" aria-hidden="true">
          {both.map((work, i) => work != null && <rect key={i} fill={i ? "var(--accent)" : "var(--join)"} y={1 + 7 * i} width={Math.max(2, (90 * work) / most)} height="5" rx="2.5" />)}
        </svg>
        <span class="pairtimes num">{both.filter((work) => work != null).map(duration).join(" → ")}</span>
      </button>
      {open && <div class="pairbody"><Changes pair={pair} a={a} b={b} /></div>}
    </li>
  );
}

// The first rows of a list, and more of them on request: thousands at once would stop the page.
function Rows({ items, children }) {
  const [shown, more] = useFew(items, MANY);
  return <>{shown.map(children)}{more && <li class="pairline morerows">{more}</li>}</>;
}

function Steps({ pairs: given, a, b }) {
  const shown = (record, id) => id == null || (record.step(id) && !isBookkeeping(record, record.step(id)));
  const pairs = useMemo(() => given.filter((pair) => shown(a, pair.a) && shown(b, pair.b)), [given, a, b]);
  const lines = useMemo(() => linesOf(pairs), [pairs]);
  const list = useRef(null);
  const keyOf = (pair) => `${pair.a}\n${pair.b}`;
  // The first changes stand open, as soon as their values are there; which ones, does not change when the runs go on.
  const [early] = useState(() => lines.filter(({ equal }) => !equal).map(({ at }) => pairs[at[0]]).filter(({ changed }) => changed.length).slice(0, 2));
  const [open, setOpen] = useState(() => new Set(early.map(keyOf)));
  const [[, thereA], [, thereB]] = [useSide(a, "a", early), useSide(b, "b", early)];
  const begun = useRef(false);
  begun.current ||= thereA && thereB;
  const most = useMemo(() => Math.max(1e-9, ...pairs.flatMap(({ a: x, b: y }) => [workOf(a.step(x)) ?? 0, workOf(b.step(y)) ?? 0]).slice(0, 50_000)), [pairs, a, b]);
  const toggle = (key) => setOpen(open.has(key) ? new Set([...open].filter((one) => one !== key)) : new Set([...open, key]));
  const fold = (wanted) => () => {
    const on = document.activeElement;
    if (on?.getAttribute("aria-expanded") !== String(!wanted) || !list.current.contains(on)) return false;
    return on.click();
  };
  useListKeys(list, ".pair, .equals", { ArrowRight: fold(true), ArrowLeft: fold(false) });
  const rows = lines.slice(0, MANY).filter(({ equal }) => !equal).map(({ at }) => keyOf(pairs[at[0]]));
  const all = rows.length > 0 && rows.every((key) => open.has(key));
  const row = (pair) => <Row key={keyOf(pair)} {...{ pair, a, b, most }} open={open.has(keyOf(pair))} onOpen={() => toggle(keyOf(pair))} />;
  if (!begun.current) return null;
  return (
    <>
      <div class="legend">
        <h2>Steps</h2>
        <span class="soft"><i class="key-a" /> A <i class="key-b" /> B</span>
        <del>only in A</del> <ins>only in B</ins>
        <span class="grow" />
        <Button small disabled={!rows.length} onClick={() => setOpen(new Set(all ? [] : [...open, ...rows]))}>{all ? "Close all" : "Open all"}</Button>
      </div>
      <ol class="card pairs" ref={list} aria-label="Steps in pairs">
        <Rows items={lines}>{({ at, equal }) => {
          if (!equal) return row(pairs[at[0]]);
          const key = `equal ${keyOf(pairs[at[0]])}`;
          const names = at.map((i) => pairs[i]).filter(({ depth }) => depth === pairs[at[0]].depth); // not those inside of them
          return (
            <>
              <li key={key} class="pairline">
                <button type="button" class="equals" aria-expanded={open.has(key)} onClick={() => toggle(key)}>
                  <span class="faint" aria-hidden="true">{open.has(key) ? "▾" : "▸"}</span>
                  <Guides depth={names[0].depth} />
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

// Without a second run: those of the same graph to choose from.
function ChooseOther({ params: { thread, run }, record }) {
  const { data, error } = useAnswer(record ? "runs" : null, { graph: record?.run.graph, limit: 50 });
  const others = (data?.items ?? []).filter((one) => one.thread !== thread || (run && run !== one.run_id));
  return (
    <section class="nothing" hidden={!data && !error}>
      <h2>Compare {thread} with…</h2>
      {error && <Problem error={error} />}
      {data && !others.length && <p>There is no other run of its graph. Copy this one with an edited state, from a step of it.</p>}
      <ul class="nodes">
        {others.map((one) => (
          <li key={one.run_id}>
            <a class="btn" href={href("compare", { thread, run, other_thread: one.thread, other_run: one.run_id })}>{one.thread} <Status status={one.status} /> <Time time={one.started} /></a>
          </li>
        ))}
      </ul>
    </section>
  );
}

export function ComparePage({ params }) {
  const { thread, run, other_thread: otherThread, other_run: otherRun } = params;
  useTitle(otherThread ? `${thread} and ${otherThread}` : `Compare ${thread}`);
  const first = useRecord({ thread, run });
  const second = useRecord({ thread: otherThread ?? thread, run: otherThread ? otherRun : run });
  const [a, b] = [first.record, otherThread ? second.record : null];
  const path = a?.complete && b?.complete ? "compare" : null; // once, and again when one of them goes on
  const { data, error, busy } = useAnswer(path, { thread, run, other_thread: otherThread, other_run: otherRun }, { version: `${a?.position} ${b?.position}` });
  useEffect(() => {
    if (data) announce(`${plural(data.pairs.filter((pair) => !isEqual(pair)).length, "step differs", "steps differ")}`);
  }, [data]);
  const problem = error ?? first.error ?? (otherThread ? second.error : null);
  const ready = data && path && otherThread;
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
          {ready && (
            <>
              <div class="two">
                <RunCard letter="A" run={a.run} other={b.run} records={[b, a]} />
                <RunCard letter="B" run={b.run} other={a.run} records={[a, b]} />
              </div>
              <div class="kpis card">{FIGURES.map(([words, show, pick]) => pick(data.figures) && <Figure key={words} {...{ words, show }} of={pick(data.figures)} />)}</div>
              <Steps key={`${thread} ${run} ${otherThread} ${otherRun}`} pairs={data.pairs} a={a} b={b} />
            </>
          )}
        </div>
      </main>
    </>
  );
}
