// What is known of one step: its head, what went wrong or was asked, and its tabs.

import { useRef } from "preact/hooks";
import { canAct, Rerun } from "./acts.jsx";
import { embedded } from "./api.js";
import { Asked } from "./asked.jsx";
import { Changes } from "./changes.jsx";
import { agentOf, Conversation, InOut, Result } from "./conversation.jsx";
import { CopyEdited } from "./edit.jsx";
import { beginning, cost, count, duration, failureText, plural, sum, tokens, when } from "./format.js";
import { GraphView } from "./graph.jsx";
import { useKeys } from "./hooks.js";
import { Items } from "./items.jsx";
import { nameOf } from "./names.js";
import { Boundary, Button, Kind, Status, Tabs } from "./parts.jsx";
import { Prompt } from "./prompt.jsx";
import { useValues } from "./record.js";
import { href } from "./route.js";
import { State } from "./state.jsx";
import { span, times, worked } from "./times.js";
import { Text } from "./value.jsx";

const hasItems = (record, step) => step.kind === "map" || record.inside(step.id).some((one) => one.kind === "item");

const TABS = [
  { id: "conversation", name: "Conversation", fits: (record, step) => step.kind === "agent", View: Conversation },
  { id: "prompt", name: "Prompt", fits: (record, step) => step.lm.length > 0, count: (record, step) => step.lm.length > 1 && step.lm.length, View: Prompt },
  // A run whose graph is an agent has its conversation at each of its steps.
  { id: "conversation", name: "Conversation", fits: (record, step) => agentOf(record, step) === null, View: Conversation },
  { id: "items", name: "Items", fits: hasItems, count: (record, step) => record.inside(step.id).length, View: Items },
  { id: "changes", name: "Changes", fits: () => true, View: Changes },
  { id: "state", name: "State", fits: () => true, View: State },
  { id: "graph", name: "Graph", fits: (record) => Boolean(record.graph()?.drawing), View: GraphView },
];

function Summary({ record, step, now }) {
  const total = record.sums(step.id);
  const at = span(record, step, now);
  const parts = [step.kind];
  if (step.branch.length) parts.push(`branch ${step.branch.join(".")}`);
  if (total.calls) parts.push(plural(total.calls, "LM call"), sum(total.tokens) > 0 && tokens(total.tokens), total.cost == null ? "cost unknown" : cost(total.cost));
  if (at && step.kind !== "start" && step.kind !== "edit") parts.push(step.status === "waiting" && step.asked ? `asked ${when(step.asked?.at ?? at.from)}` : `${duration(worked(times(record, now), at.from, at.till))} of work`);
  if (step.waited >= 0.05) parts.push(`waited ${duration(step.waited)}`);
  const to = [...new Set(step.to)];
  if (to.length) parts.push(to.length === 1 && to[0] === "END" ? "then the end" : `then ${to.join(", ")}`);
  return <p class="summary num">{parts.filter(Boolean).join(" · ")}</p>;
}

const KEPT = 500; // characters of the message of a failure

function Failure({ record, failure, title }) {
  return (
    <div class="note bad">
      <b>{title}{failure.attempt > 1 ? ` in attempt ${failure.attempt}` : ""}: {failure.type}</b>
      <p><Text record={record} of={failure.message} />{beginning(failure.message).length === KEPT && <span class="soft">… the rest is in the traceback</span>}</p>
      {failure.traceback && <details><summary>Traceback</summary><div class="mono trace"><Text record={record} of={failure.traceback} /></div></details>}
    </div>
  );
}

const Attempts = ({ record, step }) => step.failed.length > 0 && (
  <details class="note bad">
    <summary><b>{plural(step.failed.length, "failed attempt")}</b> <span class="soft">{failureText(step.failed[0])}</span></summary>
    {step.failed.map((failure, i) => <Failure key={i} record={record} failure={failure} title={`Attempt ${failure.attempt ?? i + 1}`} />)}
  </details>
);

const Messages = ({ record, messages, words }) => messages?.length > 0 && (
  <div class="note">
    <b>{plural(messages.length, "message")} {words}</b>
    {messages.map((message) => <div key={message.number}><span class="k">{message.by ?? "sent"} {when(message.at)}</span><p><Text record={record} of={message.text} /></p></div>)}
  </div>
);

function Acts({ record, step, about }) {
  const { run } = record;
  if (embedded) return null;
  const committed = step.status === "done" && step.kind !== "item";
  const acts = canAct(about, run.graph) && committed && step.parent === null;
  const path = [...record.around(step.id).map((one) => one.node), step.node].join("/");
  return (
    <>
      {acts && <Rerun record={record} step={step} about={about} />}
      {acts && <CopyEdited record={record} step={step} about={about} />}
      {step.lm.length > 0 && step.status === "done" && <a class="btn small" href={href("data", { node: path, thread: run.thread, run: run.id, step: step.id })}>Add to data set</a>}
    </>
  );
}

export function Pane({ record, step, tab, onTab, onSelect, onBack, about, now }) {
  const tabs = TABS.filter(({ fits }) => fits(record, step)).map((one) => ({ ...one, count: one.count?.(record, step) || undefined }));
  const shown = tabs.find(({ id }) => id === tab) ?? tabs[0];
  const at = useRef(null); // a second press may come before the page is drawn again
  at.current = shown;
  const turn = (by) => () => onTab((at.current = tabs[(tabs.indexOf(at.current) + by + tabs.length) % tabs.length]).id);
  useKeys({ "]": turn(1), "[": turn(-1) });
  const around = record.around(step.id);
  // What stands above the tabs is read before they are drawn: nothing moves down.
  const above = [step.asked?.answer?.value, step.call?.result].filter(Boolean);
  const read = useValues(record, above).size === new Set(above).size;
  return (
    <div class="pane" data-step={step.id}>
      {around.length > 0 && <nav class="path" aria-label="Around this step">{around.map((one) => <span key={one.id}><button type="button" class="link" onClick={() => onSelect(one.id)}>{nameOf(one)}</button> / </span>)}</nav>}
      <div class="head">
        <Button small class="back" onClick={onBack}>‹ Steps</Button>
        <Kind kind={step.kind} large />
        <h2>{nameOf(step)}</h2>
        {step.visit > 1 && <span class="x">×{count(step.visit)}</span>}
        {step.status !== "done" && <Status status={step.status} />}
        <span class="grow" />
        <span class="acts"><Acts record={record} step={step} about={about} /></span>
      </div>
      <Summary record={record} step={step} now={now} />
      {step.status === "unreadable" && <div class="note bad"><b>This step cannot be read</b><p><Text record={record} of={step.reason ?? ""} /></p></div>}
      {step.reason && step.status !== "unreadable" && <div class="note"><span class="k">why it went on so</span><p><Text record={record} of={step.reason} /></p></div>}
      <Attempts record={record} step={step} />
      {step.failure && <Failure record={record} failure={step.failure} title="Failed" />}
      {step.call && step.kind !== "agent" && <div class="card"><InOut args={step.call.args}><Result record={record} step={step} /></InOut></div>}
      <Boundary what="The question" of={step.id}><Asked record={record} step={step} about={about} /></Boundary>
      {step.kind !== "agent" && <Messages record={record} messages={step.messages} words="taken here" />}
      {step.parent === null && step.id === record.inside(null).at(-1)?.id && <Messages record={record} messages={record.run.unread} words="not taken yet" />}
      {read && <Tabs label="What is shown of the step" tabs={tabs} selected={shown.id} onSelect={onTab} />}
      <div id="panel" role="tabpanel" aria-labelledby={`tab-${shown.id}`} tabIndex={0} hidden={!read}>
        <Boundary what={shown.name} of={`${step.id} ${shown.id} ${record.position}`}><shown.View {...{ record, step, about, onSelect }} /></Boundary>
      </div>
    </div>
  );
}
