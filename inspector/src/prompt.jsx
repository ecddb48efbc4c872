// The LM calls of a step: what was sent by instructions, examples and fields, what came back, and what attempts changed.

import { useMemo, useState } from "preact/hooks";
import { Again } from "./again.jsx";
import { Diff, same } from "./diff.jsx";
import { Answers, Calls, Content, Fields, fits } from "./fields.jsx";
import { beginning, cost, duration, plural, sum, tokens } from "./format.js";
import { parsePrompt, valueOf } from "./parse.js";
import { Field, Fold, Tag, useFew } from "./parts.jsx";
import { rulesOf, useValues } from "./record.js";
import { Copy, Scalar, Text, usePages, Value } from "./value.jsx";

const FEW = 6; // calls of which all are read at once: of more, those that are opened

const WHO = { user: "user", assistant: "the model", tool: "result" };

const Message = ({ message: { role, name, fields, content, calls }, prompt }) => (
  <div class="demo">
    <div class="k">{fields?.some(([field]) => field === "tool_call_results") ? "results" : (WHO[role] ?? role)} {name && <code>{name}</code>}</div>
    <dl class="card fields">
      {fields ? <Fields of={fields} known={[...prompt.inputs, ...prompt.outputs]} out={role === "assistant"} /> : content?.length > 0 && <Field name="text"><Content of={content} /></Field>}
      {calls?.length > 0 && <Calls of={calls} />}
    </dl>
  </div>
);

function Examples({ prompt }) {
  const [shown, more] = useFew(prompt.demos, 8);
  const demos = shown.map((demo, at) => (
    <div class="demo" key={at}>
      <div class="k">example {at + 1}{demo.incomplete && ", not complete"}</div>
      <dl class="card fields"><Fields of={demo.inputs} known={prompt.inputs} /><Fields of={demo.outputs} known={prompt.outputs} out /></dl>
    </div>
  ));
  return <>{demos}{more}</>;
}

// The messages before the last one, from the last page on: those count most.
function Before({ prompt }) {
  const [shown, first, pages] = usePages(prompt.talk, 12, "message", Infinity);
  return <>{pages}{shown.map((message, at) => <Message key={first + at} message={message} prompt={prompt} />)}</>;
}

function Sent({ prompt }) {
  return (
    <dl class="card fields">
      <Field name="instructions"><Scalar of={prompt.instructions} /></Field>
      {prompt.demos.length > 0 && <Field name="examples"><Fold words={plural(prompt.demos.length, "example")}>{() => <Examples prompt={prompt} />}</Fold></Field>}
      {prompt.talk.length > 0 && <Field name="conversation"><Fold words={`${plural(prompt.talk.length, "message")} before`}>{() => <Before prompt={prompt} />}</Fold></Field>}
      <Fields of={prompt.values} known={prompt.inputs} />
      {!prompt.values.length && !prompt.talk.length && <Field name="inputs"><span class="soft">none</span></Field>}
    </dl>
  );
}

function Raw({ messages }) {
  const [shown, more] = useFew(messages, 20);
  return (
    <div class="card raw">
      <Copy of={messages} />
      {shown.map((message, at) => (
        <div class="message" key={at}>
          <div class="k">{message?.role ?? "message"} <code>{message?.name} {message?.tool_call_id}</code></div>
          {message?.role ? <Content of={message.content} /> : <Value of={message} />}
          {message?.tool_calls?.length > 0 && <Value of={message.tool_calls} />}
        </div>
      ))}
      {more}
    </div>
  );
}

function partsOfPrompt(messages, prompt) {
  if (!prompt) return { messages };
  const named = (fields) => Object.fromEntries(fields.map(([name, value]) => [name || "text", valueOf(value)]));
  const found = { form: prompt.kind, instructions: prompt.instructions };
  if (prompt.demos.length) found.examples = prompt.demos.map((demo) => named([...demo.inputs, ...demo.outputs]));
  if (prompt.talk.length) found.conversation = prompt.talk.map((one) => (one.fields ? named(one.fields) : { [one.role]: one.content }));
  return { ...found, ...named(prompt.values.map(([name, value]) => [name in found ? `input ${name}` : name, value])) };
}

function Differs({ before, after, failed }) {
  const names = useMemo(() => [...new Set([...Object.keys(before), ...Object.keys(after)])].filter((name) => !same(before[name], after[name])), [before, after]);
  if (!names.length) return <p class="soft">It was sent the same prompt as the call before.</p>;
  return (
    <div class="differs">
      <Fold words={<>Differs from the call before in <b>{names.join(", ")}</b></>} open={failed}>
        {() => <dl class="card fields">{names.map((name) => <Field key={name} name={name}><Diff before={before[name]} after={after[name]} /></Field>)}</dl>}
      </Fold>
    </div>
  );
}

const label = (calls, call, at) => {
  const attempts = new Set(calls.map((one) => one.attempt));
  if (calls.length === 1) return call.attempt > 1 ? `Attempt ${call.attempt}` : "LM call";
  return attempts.size === calls.length ? `Attempt ${call.attempt}` : `Call ${at + 1}${attempts.size > 1 ? `, attempt ${call.attempt}` : ""}`;
};

function usePrompt(record, call, wanted) {
  const ids = wanted && call ? call.messages : [];
  const values = useValues(record, ids);
  const ready = ids.length > 0 && ids.every((id) => values.has(id));
  return useMemo(() => {
    if (!ready) return null;
    const messages = ids.map((id) => values.get(id));
    return { messages, parsed: parsePrompt(messages) };
  }, [values, ready]);
}

function Called({ record, step, about: known, calls, at, reads }) {
  const call = calls[at];
  const last = at === calls.length - 1;
  const [open, setOpen] = useState(last);
  const wanted = open || reads;
  const sent = usePrompt(record, call, wanted);
  const before = usePrompt(record, calls[at - 1], wanted);
  const response = useValues(record, wanted && call.response ? [call.response] : []).get(call.response);
  const [now, was] = [sent, before].map((one) => useMemo(() => one && partsOfPrompt(one.messages, one.parsed), [one]));
  const told = [step.failure, ...step.failed].some((one) => one && beginning(call.failed).includes(beginning(one.message))); // above the tabs
  const figures = [sum(call.tokens) > 0 && tokens(call.tokens), call.cost != null && (call.cost > 0 || !call.failed) && cost(call.cost), duration(call.seconds)];
  const words = label(calls, call, at);
  const answered = response !== undefined && response !== null;
  return (
    <section class="called" aria-label={words}>
      <header>
        <h3>{calls.length > 1 ? <button type="button" class="twist" aria-expanded={open} onClick={() => setOpen(!open)}>{words}</button> : words}</h3>
        <Tag>{call.model}</Tag>
        {call.failed ? <Tag tone="bad">failed</Tag> : call.finish && <Tag tone={call.finish === "length" ? "wait" : "ok"}>{call.finish === "length" ? "cut at the limit" : call.finish}</Tag>}
        {call.cached && <Tag>from the cache</Tag>}
        {sent?.parsed && answered && !fits(response, sent.parsed) && <Tag tone="wait">not in the form that was asked for</Tag>}
        <span class="meta num">{figures.filter(Boolean).join(" · ")}</span>
      </header>
      {call.failed && !told && <div class="note bad"><Text record={record} of={call.failed} /></div>}
      {now && was && <Differs before={was} after={now} failed={Boolean(calls[at - 1].failed) && last} />}
      {open && call.messages.length > 0 && !sent && <p class="soft" aria-busy="true">…</p>}
      {open && sent && (
        <>
          {sent.parsed ? <Sent prompt={sent.parsed} /> : <Raw messages={sent.messages} />}
          {answered && <Answers response={response} prompt={sent.parsed} />}
          <div class="under">
            {sent.parsed && <Fold words={`Raw messages · ${sent.messages.length}`}>{() => <Raw messages={answered ? [...sent.messages, typeof response === "string" ? { role: "response", content: response } : { response }] : sent.messages} />}</Fold>}
            <Again record={record} step={step} about={known} index={step.lm.indexOf(call)} sent={sent} response={response} />
          </div>
        </>
      )}
    </section>
  );
}

function Missing({ record: { run: { hidden, lm_calls: kept } } }) {
  const without = <>Programs that are compiled with <code>record_lm_calls="full"</code> keep them: <code>graph.compile(store=…, record_lm_calls="full")</code></>;
  const rule = hidden && (hidden === "function" ? "by a function" : rulesOf(hidden));
  const redacted = <>Its program redacts {rule}. A function as <code>record_lm_calls=</code> decides what of them may be shown.</>;
  const recorded = kept === "full" || kept === "function";
  const [title, why] = !recorded ? ["Prompts and responses of this run are not recorded.", without] : hidden ? ["Prompts and responses of this run are hidden.", redacted] : ["Of these calls no prompt is there."];
  return <div class="note"><b>{title}</b>{why && <p>{why}</p>}</div>;
}

function Predictor({ record, step, about: known, calls, name }) {
  const [shown, more] = useFew(calls, 40);
  return (
    <div class="predictor">
      {name && <h3 class="mono">{name}</h3>}
      {shown.map((call, at) => <Called key={at} {...{ record, step, calls, at }} about={known} reads={calls.length <= FEW} />)}
      {more}
    </div>
  );
}

export function Prompt({ record, step, about: known }) {
  const groups = Map.groupBy(step.lm, (call) => call.predictor);
  return (
    <div class="prompts">
      {!step.lm.some((call) => call.messages.length) && <Missing record={record} />}
      {[...groups].map(([name, calls]) => (
        <Predictor key={name} {...{ record, step, calls }} about={known} name={groups.size > 1 ? name || "no predictor" : ""} />
      ))}
    </div>
  );
}
