// Everything that waits for an answer, oldest first; each is answered in place.

import { useEffect, useRef, useState } from "preact/hooks";
import { AnswerForm, draftKey, draftText } from "./answer.jsx";
import { Given } from "./asked.jsx";
import { hasDraft, useDraft } from "./drafts.js";
import { beginning, duration, firstLine, moment, plural } from "./format.js";
import { announce, useAnswer, useMedia, useNow, useTitle } from "./hooks.js";
import { Boundary, Button, Field, Kind, Problem, Tag, Time, useListKeys } from "./parts.jsx";
import { useRecord } from "./record.js";
import { go, href } from "./route.js";
import { Text, Value } from "./value.jsx";

const SOON = 300; // milliseconds between two looks

const address = ({ thread, run_id: run, question }) => ({ thread, run, id: question.id });

const kindOf = (question) => (question.call ? "tool" : "question");

// What waits, and what has waited since the page was opened: an answer from elsewhere moves nothing under a reader's hand.
function useWaiting() {
  const { data, error, busy, renew } = useAnswer("questions", {}, { every: SOON });
  const [known, setKnown] = useState([]);
  useEffect(() => {
    if (!data) return;
    const open = new Map(data.items.map((item) => [item.question.id, item]));
    setKnown((old) => [
      ...old.map((item) => open.get(item.question.id) ?? (item.gone ? item : { ...item, gone: true })),
      ...data.items.filter((item) => !old.some((one) => one.question.id === item.question.id)),
    ]);
  }, [data]);
  return { items: known, error, busy, renew };
}

// "in 3 h", of a time to come in seconds since the epoch.
function Expires({ at }) {
  const left = at - useNow(at != null);
  if (at == null) return null;
  const words = duration(Math.floor(Math.abs(left)));
  return <Tag tone={left < 600 ? "bad" : "wait"} title={moment(at)?.toLocaleString()}>{left < 0 ? `expired ${words} ago` : `expires in ${words}`}</Tag>;
}

function Entry({ item, selected, onFocus }) {
  const { question, thread, since, gone } = item;
  return (
    <li>
      <a class={`ask${gone ? " gone" : ""}`} href={href("questions", address(item))} aria-current={selected ? "true" : undefined} onFocus={onFocus}>
        <Kind kind={kindOf(question)} />
        <span class="asktext">
          <span class="askhead"><b class="one">{thread}</b><span class="soft one">{question.node}</span><span class="grow" /><span class="faint"><Time time={since} /></span></span>
          <span class="askline"><span class="one">{firstLine(question.text) || "goes on with permission"}</span>{gone ? <Tag tone="ok">answered</Tag> : hasDraft(draftKey(question.id)) && <Tag>draft</Tag>}</span>
        </span>
      </a>
    </li>
  );
}

// A text of which `questions` gives the beginning alone: its run has the rest.
function LongText({ thread, run, of }) {
  const { record } = useRecord({ thread, run });
  return record ? <Text record={record} of={of} /> : <span class="text">{of.text}…</span>;
}

function Call({ call }) {
  const args = Object.entries(call.args ?? {});
  return (
    <section class="card askcall" aria-label="The call">
      <header><Kind kind="tool" /><code>{call.name}</code><span class="soft">{plural(args.length, "argument")}</span></header>
      <dl>{args.map(([name, value]) => <Field key={name} name={name}><Value of={value} /></Field>)}</dl>
    </section>
  );
}

// Who answered a question, and what; and what was typed here for it, if anything.
function Answered({ thread, run, id, mine }) {
  const { record, error } = useRecord({ thread, run });
  const [draft, , clear] = useDraft(draftKey(id), null);
  const step = record?.steps.find((one) => one.asked?.id === id);
  const answer = step?.asked.answer;
  if (error && !record) return <Problem error={error} />;
  return (
    <>
      <div role="status">
        {!answer && <p class="note ok">It waits no longer{record ? `: the run is ${record.run.status}` : ""}.</p>}
        {answer && <Given record={record} step={step} who={mine ? "You have answered" : "Answered elsewhere"} />}
        {step && <p><a href={href("run", { thread, run, step: step.id })}>Open the run</a></p>}
      </div>
      {draft && !mine && (
        <section class="card draft" aria-label="Your draft">
          <header>
            <b>Your draft</b><span class="soft">it was not sent</span><span class="grow" />
            <Button small onClick={() => navigator.clipboard?.writeText(draftText(draft))}>Copy</Button><Button small onClick={clear}>Throw away</Button>
          </header>
          <pre class="whole">{draftText(draft)}</pre>
        </section>
      )}
    </>
  );
}

function Asked({ item, about, onDone, mine, narrow }) {
  const { question, thread, run_id: run, since, gone } = item;
  const label = `${question.node} asks`;
  return (
    <article class="asking" aria-label={label}>
      <header class="askinghead">
        {narrow && <a class="btn small" href={href("questions")}>‹ All</a>}
        <Kind kind={kindOf(question)} large />
        <h2 tabIndex={-1}>{label}</h2>
        <Expires at={gone ? null : question.expires} />
      </header>
      <p class="soft about">
        <a href={href("run", { thread, run, step: question.id.replace(/\/[^/]*$/, "") })}>{thread}</a>
        <span>{gone ? "asked" : "waits since"} <Time time={since} /></span>
        <code>{question.key}</code>
      </p>
      {!question.call && beginning(question.text) && <div class="card quote">{typeof question.text === "string" ? <Text of={question.text} /> : <LongText {...{ thread, run }} of={question.text} />}</div>}
      {question.call && <Call call={question.call} />}
      {gone ? <Answered {...{ thread, run, mine }} id={question.id} /> : <AnswerForm waiting={item} about={about} onDone={onDone} />}
    </article>
  );
}

export function QuestionsPage({ params, about }) {
  useTitle("Questions");
  const narrow = useMedia("(max-width: 860px)");
  const list = useRef(null);
  const { items, error, busy, renew } = useWaiting();
  const [mine, setMine] = useState([]);
  const at = items.findIndex((item) => item.question.id === params.id);
  const open = items.filter((item) => !item.gone).length;
  // An address of a question that was answered before the page was opened: only the record knows it.
  const lost = params.id && at < 0 && !busy && params.thread;
  const item = items[at] ?? (narrow || lost ? null : items[0]);
  useListKeys(list, ".ask", { Escape: (event, typing) => (typing ? event.target.blur() : params.id ? go("questions") : false) });
  useEffect(() => {
    if (!busy) announce(`${plural(open, "question")} waiting`);
  }, [busy, open]);
  const done = () => {
    setMine([...mine, item.question.id]);
    renew();
  };
  const listed = !narrow || (!item && !lost);
  return (
    <main id="main" class="inbox" tabIndex={-1} aria-busy={busy}>
      {listed && (
        <nav class="asklist" aria-label="Questions">
          <h1>{open ? plural(open, "question") : busy ? "Questions" : "Nothing waits"}</h1>
          {error && <Problem error={error} />}
          <ol ref={list}>{items.map((one) => <Entry key={one.question.id} item={one} selected={one === item} onFocus={narrow ? undefined : () => go("questions", address(one), { replace: true })} />)}</ol>
        </nav>
      )}
      {(item || lost || !narrow) && (
        <div class="reading">
          <Boundary what="This question" of={params.id}>
            {item && <Asked key={item.question.id} {...{ item, about, narrow }} mine={mine.includes(item.question.id)} onDone={done} />}
            {lost && <article class="asking"><h2>A question that was answered</h2><Answered thread={params.thread} run={params.run} id={params.id} /></article>}
            {!item && !lost && !busy && !error && (
              <div class="nothing"><h2>Nothing waits for an answer</h2><p>When a node of any run asks something, or a tool needs approval, it is shown here at once.</p></div>
            )}
          </Boundary>
        </div>
      )}
    </main>
  );
}
