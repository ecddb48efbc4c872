// What an agent did as a conversation: its task, its turns with their calls and results, and what people and checks said.

import { Asked } from "./asked.jsx";
import { Diff, same } from "./diff.jsx";
import { Content } from "./fields.jsx";
import { cost, duration, plural, tokens, when } from "./format.js";
import { tried } from "./numbers.js";
import { Boundary, Field, Fold, Kind, Tag } from "./parts.jsx";
import { useValues } from "./record.js";
import { href, parse } from "./route.js";
import { Text, Value, ValueOf, usePages } from "./value.jsx";

const TURNS = 25; // of a page
const DEEPEST = 4; // conversations inside of conversations
const REASONS = { max_turns: "it was the last turn", parse_error: "the answer before could not be read", empty_tool_calls: "it called nothing", context_window_exceeded: "the prompt was too long" };

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

const argsOf = ({ function: { arguments: text } }) => tried(() => JSON.parse(text || "{}"), () => ({ arguments: text }));

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
  return Object.keys(args ?? {}).length ? <Value of={args} /> : <span class="soft">{args ? "none" : "–"}</span>;
}

export const InOut = ({ args, edited, children }) => (
  <div class="io">
    <div><div class="k">{edited ? "arguments, edited" : "arguments"}</div><Args args={args} edited={edited} /></div>
    <div><div class="k">result</div>{children}</div>
  </div>
);

const Posts = ({ record, posts }) => posts.map((post) => (
  <div key={`${post.field} ${post.seq}`} class="posted"><span class="k">posted to <code>{post.field}</code></span><ValueOf record={record} vid={post.value} /></div>
));

const asText = (value) => (value !== null && typeof value === "object" && value.text === undefined ? JSON.stringify(value) : value);

export function Result({ record, step, result }) {
  if (result?.error || step?.status === "failed") {
    return <div class="bad">{step?.failure?.type && `${step.failure.type}: `}<Text record={record} of={asText(step?.failure?.message ?? result?.value ?? result?.content)} /></div>;
  }
  if (result) return <Value of={result.value !== undefined ? result.value : result.content} />;
  const status = { waiting: "waits for an answer", running: "is at work", stopped: "was stopped" }[step?.status];
  if (status || !step?.call?.result) return <span class="soft">{status ?? "no result"}</span>;
  return <div class={step.call.error ? "bad" : ""}><ValueOf record={record} vid={step.call.result} /></div>;
}

const waitsInside = (record, step) => record.all(step.id).some((one) => one.asked && !one.asked.answer);

function Inside({ record, step, about, depth }) {
  const turns = turnsOf(record, step.id).length - 1;
  if (!turns || depth >= DEEPEST) return <div class="inside"><a class="btn small" href={stepLink(step.id)}>Open what it did</a></div>;
  const words = (open) => (open ? "Hide its conversation" : `Show its conversation · ${plural(turns, "turn")}`);
  const waits = step.status === "waiting" && waitsInside(record, step);
  return <div class="inside"><Fold look="btn small" words={words} open={waits}>{() => <Talk record={record} agent={step.id} about={about} depth={depth + 1} />}</Fold></div>;
}

// What a step used: of a turn with its cost, of a call with the number of LM calls.
function figures(record, step, isTurn) {
  const { calls, tokens: used, cost: dollars } = record.sums(step.id);
  const work = step.seconds != null && duration(step.seconds - step.waited);
  return [calls > 0 && !isTurn && plural(calls, "LM call"), calls > 0 && tokens(used), calls > 0 && isTurn && dollars != null && cost(dollars), work].filter(Boolean).join(" · ");
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
      {submits && !failed ? <div class="io one"><div><Args args={args} /></div></div> : <InOut args={args} edited={result?.args}><Result {...{ record, step, result }} /></InOut>}
      {result?.problems?.length > 0 && <div class="note wait beneath"><b>Its check found</b><Problems of={result.problems} /></div>}
      {step?.asked && <Asked record={record} step={step} about={about} place="beneath" />}
      {step?.posts.length > 0 && <Posts record={record} posts={step.posts} />}
      {inner && <Inside record={record} step={step} about={about} depth={depth} />}
    </div>
  );
}

const isRefused = (step) => Boolean(step?.asked?.answer) && !step.failure;

const Problems = ({ of }) => <ul class="problems">{of.map((one, at) => <li key={at}><Text of={one} /></li>)}</ul>;

const Entry = ({ kind, who, step, visit, tags, meta, children }) => (
  <div class="turn">
    <Kind kind={kind} large />
    <div class="who">{step ? <a href={stepLink(step.id)}>{who}</a> : <b>{who}</b>}{visit > 1 && <span class="faint">×{visit}</span>}{tags}<span class="meta num" key={`meta ${meta}`}>{meta}</span></div>
    {children}
  </div>
);

// The inputs of a task: the text alone if there is one.
const Task = ({ given: { ...given } }) => Object.keys(given).length === 1 ? (
  <div class="say"><Value of={Object.values(given)[0]} /></div>
) : (
  <dl class="card fields">{Object.entries(given).map(([name, value]) => <Field key={name} name={name}><Value of={value} /></Field>)}</dl>
);

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
      <div class="note wait"><b>Refused the submitted output.</b>{Array.isArray(problems) && problems.length ? <Problems of={problems} /> : <div><Content of={message.content} /></div>}</div>
    </Entry>
  );
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
  const forced = message?.forced && <Tag tone="wait">had to submit: {REASONS[message.forced] ?? message.forced}</Tag>;
  return (
    <>
      {said(before)}
      {(head || message) && (
        <Entry kind="module" who={head?.node ?? message.name ?? "assistant"} step={head} visit={head?.visit} tags={<>{failures}{forced}</>} meta={head && figures(record, head, true)}>
          {message?.content ? <div class="say"><Content of={message.content} /></div> : null}
          {!message && (loading ? <p class="soft" aria-busy="true">…</p> : <Silent record={record} step={head} />)}
          {callsOf(message, others, results).map((call, i) => <Call key={i} {...{ record, call, refused, about, depth }} />)}
        </Entry>
      )}
      {said(after)}
    </>
  );
}

function Silent({ record, step }) {
  if (step.failure) return <div class="note bad"><b>{step.failure.type}</b><div class="whole"><Text record={record} of={step.failure.message} /></div></div>;
  if (step.status === "running") return <p class="soft live">The model is asked…</p>;
  if (step.status === "waiting" || step.status === "stopped") return <p class="soft">Not taken yet.</p>;
  if (step.status === "unreadable") return <p class="bad"><Text record={record} of={step.reason} /></p>;
  return <p class="soft">{record.run.hidden ? "What it said is hidden." : "It said nothing."}</p>;
}

// What was said in earlier runs, of which there are no steps.
function Earlier({ record, messages }) {
  const turns = [[]];
  for (const one of messages) {
    if (one.tool_calls) turns.push([]);
    turns.at(-1).push(one);
  }
  const words = (open) => `${open ? "Hide" : "Show"} ${plural(messages.length, "message")} of earlier runs`;
  const said = () => turns.map((said, at) => <Turn key={at} record={record} turn={{ head: null, steps: [] }} messages={said} depth={DEEPEST} />);
  return <div class="earlier"><Fold look="btn small" words={words}>{said}</Fold></div>;
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
        <Boundary key={turn.head?.id ?? "task"} what="This turn" of={record.position}><Turn {...{ record, turn, about, depth }} messages={messages.get(turn)} loading={missing(turn)} /></Boundary>
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
