// A prompt that is sent again, edited or not, and its answer beside the first one. Nothing of it is stored.

import { useState } from "preact/hooks";
import { HOW_TO_ACT, canAct, useAction } from "./acts.jsx";
import { embedded, post } from "./api.js";
import { Diff, same } from "./diff.jsx";
import { useDraft } from "./drafts.js";
import { Answers, answersOf, fieldsOf } from "./fields.jsx";
import { cost, duration, tokens } from "./format.js";
import { announce } from "./hooks.js";
import { valueOf } from "./parse.js";
import { Button, Fold, Problem, rowsFor, Tag } from "./parts.jsx";
import { gist } from "./value.jsx";

const known = new Map(); // the last answers by call, as long as the page is open

const isText = (part) => typeof part?.text === "string";

// Messages with their texts changed by `change(name, text, role)`; what has other parts keeps them.
function withTexts(messages, change) {
  return messages.map((message, at) => {
    const { content, role } = message ?? {};
    if (typeof content === "string") return { ...message, content: change(String(at), content, role) };
    return Array.isArray(content) ? { ...message, content: content.map((part, i) => (isText(part) ? { ...part, text: change(`${at}.${i}`, part.text, role) } : part)) } : message;
  });
}

function Message({ role, text, value, last, onText }) {
  const shown = value ?? text;
  const words = (open) => <>{role} {value !== undefined && value !== text && <Tag tone="wait">edited</Tag>} {!open && <span class="soft">{gist(shown)}</span>}</>;
  const editor = () => <textarea aria-label={`message of ${role}`} rows={rowsFor(shown)} spellcheck={false} value={shown} onInput={(event) => onText(event.target.value)} />;
  return <div class="edited"><Fold words={words} open={last}>{editor}</Fold></div>;
}

const Figures = ({ of }) => (
  <span class="meta num">{[of.tokens && tokens(of.tokens), of.cost != null && cost(of.cost), of.seconds != null && duration(of.seconds)].filter(Boolean).join(" · ")}</span>
);

const byName = (response, prompt) => Object.fromEntries(answersOf(response).flatMap((one) => fieldsOf(one, prompt)).map(([name, value]) => [name || "text", valueOf(value)]));

// What the server gives as a text was several answers, or one with parts.
function partsIn(text) {
  const found = valueOf(text);
  return Array.isArray(found) && found.length && found.every((one) => one?.text !== undefined || one?.tool_calls) ? found : text;
}

function Beside({ call, sent, response, found }) {
  const answer = partsIn(found.text);
  const [first, now] = [response, answer].map((one) => (one == null ? null : byName(one, sent.parsed)));
  return (
    <div class="beside" role="group" aria-label="both answers">
      {[["First answer", call, response], ["This answer", found, answer]].map(([words, of, said]) => (
        <div key={words}>
          <header><b>{words}</b> <Tag>{of.model}</Tag><Figures of={of} /></header>
          {said == null ? <p class="soft">none</p> : <Answers response={said} prompt={sent.parsed} />}
        </div>
      ))}
      {first && (
        <div class="both">
          <header><b>{same(first, now) ? "The answers are equal." : "Difference"}</b></header>
          {!same(first, now) && <div class="card differing"><Diff before={first} after={now} /></div>}
        </div>
      )}
    </div>
  );
}

function lacks(record, about) {
  if (embedded) return "This page is one run as a file: open the store with dspyer inspect to send a prompt again.";
  if (!canAct(about, record.run.graph)) return `Its program is needed, which knows the language model: ${HOW_TO_ACT}`;
  return "";
}

function Form({ record, step, index, sent, response }) {
  const call = step.lm[index];
  const key = `again/${record.run.id}/${step.id}/${index}`;
  const [draft, setDraft, clear] = useDraft(key, {});
  const [found, setFound] = useState(known.get(key));
  const { busy, error, act } = useAction(async () => {
    const params = { thread: record.run.thread, run: record.run.id, step: step.id, call: index };
    const changed = Object.keys(draft).some((name) => name !== "model");
    const answer = await post("again", { ...params, ...(changed && { messages: withTexts(sent.messages, (name, text) => draft[name] ?? text) }), ...(draft.model?.trim() && { model: draft.model.trim() }) });
    known.set(key, answer);
    setFound(answer);
    announce("The model has answered");
  });
  const all = [];
  withTexts(sent.messages, (name, text, role) => all.push({ name, role, text }));
  const put = (name, text, first) => {
    const { [name]: _old, ...rest } = draft;
    setDraft(text === first ? rest : { ...rest, [name]: text });
  };
  return (
    <form class="again card" onSubmit={act}>
      {all.map(({ name, role, text }, place) => (
        <Message key={name} last={place === all.length - 1} {...{ role, text }} value={draft[name]} onText={(typed) => put(name, typed, text)} />
      ))}
      <div class="send">
        <label for={`again-${index}-model`}>Model</label>
        <input id={`again-${index}-model`} value={draft.model ?? ""} placeholder={call.model} autocomplete="off" spellcheck={false} onInput={(event) => put("model", event.target.value, "")} />
        {Object.keys(draft).length > 0 && <Button onClick={clear}>Reset</Button>}
        <button type="submit" class="btn main" disabled={busy}>{busy ? "Sending…" : "Send"}</button>
      </div>
      <p class="soft">The model of the program is asked{call.cost ? `, which may cost about ${cost(call.cost)}` : ""}. The answer is shown here and not stored.</p>
      {error && <Problem error={error} />}
      {found && <Beside call={call} sent={sent} response={response} found={found} />}
    </form>
  );
}

export function Again({ record, step, about, index, sent, response }) {
  const missing = lacks(record, about);
  return <Fold look="btn small" words="Run this prompt again">{() => (missing ? <p class="note">{missing}</p> : <Form {...{ record, step, index, sent, response }} />)}</Fold>;
}
