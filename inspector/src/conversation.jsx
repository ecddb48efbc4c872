// What an agent did as a conversation: its task, its turns with their calls and results, and what people and checks said.

import { useState } from "preact/hooks";
import { Asked } from "./asked.jsx";
import { Diff, same } from "./diff.jsx";
import { Content } from "./fields.jsx";
import { cost, duration, plural, tokens, when } from "./format.js";
import { Boundary, Button, Kind, Tag } from "./parts.jsx";
import { useValues } from "./record.js";
import { href, parse } from "./route.js";
import { Text, Value, ValueOf, usePages } from "./value.jsx";

const TURNS = 25; // of a page
const DEEPEST = 4; // conversations inside of conversations
const REASONS = {
  max_turns: "had to submit: it was the last turn",
  parse_error: "had to submit: the answer before could not be read",
  empty_tool_calls: "had to submit: it called nothing",
  context_window_exceeded: "had to submit: the prompt was too long",
};

const modesOf = (graph) => new Set((graph?.nodes ?? []).filter((node) => node.label === "mode").map((node) => node.name));

// The step around the conversation that a step belongs to: itself, or null for the run if its graph is an agent; undefined for none.
export function agentOf(record, step) {
  if (step.kind === "agent") return step.id;
  return step.parent === null && modesOf(record.graph("")).size ? null : undefined;
}

export const stepLink = (id) => href("run", { ...parse(location.hash).params, step: id, tab: undefined });

// Steps in turns, each of which begins with that of a mode: [{head, steps}]. What comes before the first one has no head.
function turnsOf(record, agent) {
  const modes = modesOf(record.graph(agent === null ? "" : record.inner(agent)));
  const takes = (step) => (modes.size ? modes.has(step.node) : step.kind === "module" && step.wrote.messages); // a graph that is not known
  const turns = [{ head: null, steps: [] }];
  for (const step of record.inside(agent)) {
    if (takes(step)) turns.push({ head: step, steps: [step] });
    else if (step.kind !== "join") turns.at(-1).steps.push(step); // a join repeats what its branches said
  }
  return turns;
}

// The ids of the values with the messages. Inside of a node a step wrote those that it added, and in the run the whole list.
function listsOf(agent, turns) {
  const wrote = turns.flatMap((turn) => turn.steps).filter((step) => step.wrote.messages?.value);
  if (agent !== null) return wrote.map((step) => step.wrote.messages.value);
  const last = wrote.findLastIndex((step) => turns.some((turn) => turn.head === step));
  return wrote.slice(Math.max(0, last)).map((step) => step.wrote.messages.value);
}

// The id of a message is that of its step and a number.
const stepOf = (message) => String(message.id).replace(/\/\d+$/, "");

// The messages by turn; under null those of earlier runs, which come first.
function messagesOf(agent, turns, lists) {
  const seen = new Set();
  const places = new Map(turns.flatMap((turn) => turn.steps.map((step) => [step.id, turn])));
  const found = new Map([[null, []], ...turns.map((turn) => [turn, []])]);
  let turn = agent === null ? null : turns[0];
  for (const message of lists.flat()) {
    if (message === null || typeof message !== "object" || seen.has(message.id)) continue;
    if (message.id != null) seen.add(message.id);
    turn = places.get(stepOf(message)) ?? turn;
    found.get(turn).push(message);
  }
  return found;
}

const isTask = (message) => message.role === "user" && message.turn;

function argsOf(call) {
  try {
    return JSON.parse(call.function.arguments || "{}");
  } catch {
    return { arguments: call.function.arguments };
  }
}

// The calls of a turn with their steps and results. What has no message yet, or a hidden one, is known from its step.
function callsOf(message, steps, results) {
  const left = steps.filter((step) => step.call || step.kind === "tool" || step.kind === "agent");
  const take = (fits) => {
    const at = left.findIndex(fits);
    return at < 0 ? undefined : left.splice(at, 1)[0];
  };
  const calls = (message?.tool_calls ?? []).map((call) => {
    const name = call.function?.name ?? "?";
    const step = take((one) => one.call?.id === call.id) ?? take((one) => one.node === name && !one.call);
    return { name, step, args: argsOf(call), result: results.get(call.id) };
  });
  return [...calls, ...left.map((step) => ({ name: step.node, step, args: step.call?.args, result: undefined }))];
}

function Args({ args, edited }) {
  if (edited && !same(edited, args)) return <Diff before={args} after={edited} />;
  if (args === undefined || args === null) return <span class="soft">–</span>;
  return Object.keys(args).length ? <Value of={args} /> : <span class="soft">none</span>;
}

function Posts({ record, posts }) {
  return posts.map((post) => (
    <div key={`${post.field} ${post.seq}`} class="posted">
      <span class="k">posted to <code>{post.field}</code></span>
      <ValueOf record={record} vid={post.value} />
    </div>
  ));
}

function Result({ record, call }) {
  const { step, result } = call;
  const status = result ? null : { waiting: "waits for an answer", running: "is at work", stopped: "was stopped" }[step?.status];
  if (result?.error || step?.status === "failed") {
    const message = step?.failure?.message ?? result?.value ?? result?.content;
    return <div class="bad">{step?.failure?.type && `${step.failure.type}: `}<Text record={record} of={typeof message === "object" && message?.text === undefined ? JSON.stringify(message) : message} /></div>;
  }
  if (result) return <Value of={result.value !== undefined ? result.value : result.content} />;
  if (!status && step?.call?.result) return <ValueOf record={record} vid={step.call.result} />;
  return <span class="soft">{status ?? "no result"}</span>;
}

const countTurns = (record, id) => turnsOf(record, id).length - 1;

const waitsInside = (record, step) => record.all(step.id).some((one) => one.asked && !one.asked.answer);

function Inside({ record, step, about, depth }) {
  const turns = countTurns(record, step.id);
  const [open, setOpen] = useState(() => turns > 0 && step.status === "waiting" && waitsInside(record, step));
  if (!turns || depth >= DEEPEST) return <div class="inside"><a class="btn small" href={stepLink(step.id)}>Open what it did</a></div>;
  return (
    <div class="inside">
      <Button small aria-expanded={open} onClick={() => setOpen(!open)}>{open ? "Hide its conversation" : `Show its conversation · ${plural(turns, "turn")}`}</Button>
      {open && <Talk record={record} agent={step.id} about={about} depth={depth + 1} />}
    </div>
  );
}

function figures(record, step) {
  const sums = record.sums(step.id);
  return [sums?.calls > 0 && `${plural(sums.calls, "LM call")} · ${tokens(sums.tokens)}`, step.seconds != null && duration(step.seconds - step.waited)].filter(Boolean).join(" · ");
}

function Call({ record, call, refused, about, depth }) {
  const { name, step, args, result } = call;
  const submits = name === "submit" && !step;
  const inner = step && record.inside(step.id).length > 0;
  const failed = result?.error || step?.status === "failed";
  const kind = submits ? "check" : step?.kind === "agent" ? "agent" : "tool";
  return (
    <div role="group" class={`card call${submits && !refused && !failed ? " final" : ""}`} aria-label={`call of ${name}`}>
      <header>
        <Kind kind={kind} />
        {step ? <a class="mono name" href={stepLink(step.id)}>{name}</a> : <span class="mono name">{name}</span>}
        {step?.kind === "agent" && <Tag>sub-agent</Tag>}
        {name.startsWith("to_") && !step && <Tag>hands over</Tag>}
        {step?.asked && !step.asked.answer && <Tag tone="wait">waits</Tag>}
        {step?.status === "running" && <Tag tone="live">at work</Tag>}
        {step?.failed.length > 0 && <Tag tone="bad">{plural(step.failed.length, "failed attempt")}</Tag>}
        {failed && <Tag tone="bad">{result && isRefused(step) ? "refused" : "error"}</Tag>}
        {submits && !failed && (refused ? <Tag tone="wait">refused by the check</Tag> : <Tag tone="ok">final output</Tag>)}
        <span class="meta num">{step && figures(record, step)}</span>
      </header>
      {submits && !failed ? (
        <div class="io one"><div><Args args={args} /></div></div>
      ) : (
        <div class="io">
          <div><div class="k">{result?.args ? "arguments, edited" : "arguments"}</div><Args args={args} edited={result?.args} /></div>
          <div><div class="k">result</div><Result record={record} call={call} /></div>
        </div>
      )}
      {result?.problems?.length > 0 && <div class="note wait beneath"><b>Its check found</b><Problems of={result.problems} /></div>}
      {step?.asked && <Asked record={record} step={step} about={about} place="beneath" />}
      {step?.posts.length > 0 && <Posts record={record} posts={step.posts} />}
      {inner && <Inside record={record} step={step} about={about} depth={depth} />}
    </div>
  );
}

const isRefused = (step) => Boolean(step?.asked?.answer) && !step.failure;

const Problems = ({ of }) => <ul class="problems">{of.map((one, at) => <li key={at}><Text of={one} /></li>)}</ul>;

function Entry({ kind, who, step, visit, tags, meta, children }) {
  return (
    <div class="turn">
      <Kind kind={kind} large />
      <div class="who">
        {step ? <a href={stepLink(step.id)}>{who}</a> : <b>{who}</b>}
        {visit > 1 && <span class="faint">×{visit}</span>}
        {tags}
        <span class="meta num">{meta}</span>
      </div>
      {children}
    </div>
  );
}

// The inputs of a task: the text alone if there is one.
function Task({ given }) {
  const names = Object.keys(given);
  if (names.length === 1) return <div class="say"><Value of={given[names[0]]} /></div>;
  return (
    <dl class="card fields">
      {names.map((name) => <div class="field" key={name}><dt>{name}</dt><dd><Value of={given[name]} /></dd></div>)}
    </dl>
  );
}

// A message that is neither a turn nor the result of a call.
function Said({ record, message, step }) {
  if (isTask(message)) return <Entry kind="user" who="task"><Task given={message.turn} /></Entry>;
  const text = <div class="say"><Content of={message.content} /></div>;
  if (message.covers) return <Entry kind="join" who={message.name ?? "summary"} tags={<Tag>a summary of what came before</Tag>}>{text}</Entry>;
  if (message.sent) return <Entry kind="user" who={message.name || "user"} tags={<Tag>sent</Tag>} meta={when(message.sent.time)}>{text}</Entry>;
  if (message.posted) return <Entry kind="agent" who={message.name || "another agent"} tags={<Tag>post</Tag>}>{text}</Entry>;
  if (message.role === "user" && step?.kind === "check") return <Refusal record={record} message={message} step={step} />;
  if (message.role === "tool") return <Entry kind="tool" who={message.name ?? "tool"} tags={<Tag>result</Tag>}>{text}</Entry>;
  return <Entry kind={message.role === "assistant" ? "module" : "user"} who={message.name ?? message.role}>{text}</Entry>;
}

function Refusal({ record, message, step }) {
  const vid = step.wrote.problems?.value;
  const problems = useValues(record, vid ? [vid] : []).get(vid);
  return (
    <Entry kind="check" who={step.node} step={step} visit={step.visit} meta={figures(record, step)}>
      <div class="note wait">
        <b>Refused the submitted output.</b>
        {Array.isArray(problems) && problems.length ? <Problems of={problems} /> : <div><Content of={message.content} /></div>}
      </div>
    </Entry>
  );
}

function turnMeta(record, step) {
  const sums = record.sums(step.id);
  if (!sums?.calls) return step.seconds == null ? "" : duration(step.seconds);
  return [tokens(sums.tokens), sums.cost != null && cost(sums.cost), duration(step.seconds)].filter(Boolean).join(" · ");
}

// A turn: what stands before the model's message, the thought, its calls, and what came after.
function Turn({ record, turn, messages, loading, about, depth }) {
  const { head, steps } = turn;
  const calling = (message) => message.role === "assistant" && (head ? message.name === head.node : message.tool_calls) && !message.covers;
  const results = new Map(messages.filter((one) => one.role === "tool").map((one) => [one.tool_call_id, one]));
  const at = messages.findIndex(calling);
  const before = at < 0 ? (head ? [] : messages) : messages.slice(0, at);
  const message = messages[at];
  const known = new Set((message?.tool_calls ?? []).map((call) => call.id));
  const after = (at < 0 ? (head ? messages : []) : messages.slice(at + 1)).filter((one) => one.role !== "tool" || !known.has(one.tool_call_id));
  const byId = new Map(steps.map((step) => [step.id, step]));
  const said = (list) => list.map((one, i) => <Said key={one.id ?? i} record={record} message={one} step={byId.get(stepOf(one))} />);
  const refused = after.some((one) => one.role === "user" && byId.get(stepOf(one))?.kind === "check");
  const others = head ? steps.filter((step) => step !== head) : steps.filter((step) => step.kind === "tool" || (step.kind === "agent" && step.call));
  const failures = head?.failed.length > 0 && <Tag tone="bad">{plural(head.failed.length, "failed attempt")}</Tag>;
  const forced = message?.forced && <Tag tone="wait">{REASONS[message.forced] ?? message.forced}</Tag>;
  return (
    <>
      {said(before)}
      {(head || message) && (
        <Entry kind="module" who={head?.node ?? message.name ?? "assistant"} step={head} visit={head?.visit} tags={<>{failures}{forced}</>} meta={head && turnMeta(record, head)}>
          {message?.content ? <div class="say"><Content of={message.content} /></div> : null}
          {!message && (loading ? <p class="soft" aria-busy="true">…</p> : <Silent record={record} step={head} />)}
          {callsOf(message, others, results).map((call, i) => <Call key={i} {...{ record, call, refused, about, depth }} />)}
        </Entry>
      )}
      {said(after)}
    </>
  );
}

// A turn without a message: why.
function Silent({ record, step }) {
  if (step.failure) return <div class="note bad"><b>{step.failure.type}</b><div class="whole"><Text record={record} of={step.failure.message} /></div></div>;
  if (step.status === "running") return <p class="soft live">The model is asked…</p>;
  if (step.status === "waiting" || step.status === "stopped") return <p class="soft">Not taken yet.</p>;
  if (step.status === "unreadable") return <p class="bad"><Text record={record} of={step.reason} /></p>;
  return <p class="soft">{record.run.hidden ? "What it said is hidden." : "It said nothing."}</p>;
}

// What was said in earlier runs, of which there are no steps.
function Earlier({ record, messages }) {
  const [open, setOpen] = useState(false);
  const turns = [[]];
  for (const one of messages) {
    if (one.tool_calls) turns.push([]);
    turns.at(-1).push(one);
  }
  return (
    <div class="earlier">
      <Button small aria-expanded={open} onClick={() => setOpen(!open)}>{open ? "Hide" : "Show"} {plural(messages.length, "message")} of earlier runs</Button>
      {open && turns.map((said, at) => <Turn key={at} record={record} turn={{ head: null, steps: [] }} messages={said} depth={DEEPEST} />)}
    </div>
  );
}

function Talk({ record, agent, about, depth = 0 }) {
  const [begin, ...turns] = turnsOf(record, agent);
  const [page, first, pages] = usePages(turns, TURNS, "turn");
  const shown = first ? page : [begin, ...page];
  const all = [begin, ...turns];
  const ids = listsOf(agent, agent === null ? all : shown);
  const values = useValues(record, ids);
  const lists = ids.map((id) => values.get(id)).filter(Array.isArray);
  if (ids.length && !ids.some((id) => values.has(id))) return <p class="soft" aria-busy="true">…</p>;
  const missing = (turn) => agent !== null && turn.steps.some((step) => step.wrote.messages?.value && !values.has(step.wrote.messages.value));
  const messages = messagesOf(agent, agent === null ? all : shown, lists);
  const earlier = messages.get(null);
  return (
    <div class="talk">
      {pages && <div class="pager">{pages}</div>}
      {earlier.length > 0 && !first && <Earlier record={record} messages={earlier} />}
      {shown.map((turn) => (
        <Boundary key={turn.head?.id ?? "task"} what="This turn" of={record.position}>
          <Turn record={record} turn={turn} messages={messages.get(turn)} loading={missing(turn)} about={about} depth={depth} />
        </Boundary>
      ))}
      {!turns.length && !lists.length && <p class="soft">The agent has not begun yet.</p>}
    </div>
  );
}

// The conversation of an agent's step; of another step that of the run, whose graph is an agent.
export function Conversation({ record, step, about }) {
  const agent = agentOf(record, step);
  if (agent === undefined) return <p class="soft">No agent took part in this step.</p>;
  return <Talk key={agent} record={record} agent={agent} about={about} />;
}
