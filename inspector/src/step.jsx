// One step: what it was, what it changed, read, asked and spent.

import { useEffect, useRef, useState } from "preact/hooks";
import { AnswerForm, CopyBefore, StepActions } from "./acts.jsx";
import { embedded } from "./embedded.js";
import { count, exact, failureText, moment, onBranch, plural, seconds, usd } from "./format.js";
import { announce, useAnswer } from "./hooks.js";
import { Clock, Facts, Problem, useFew } from "./parts.jsx";
import { own, shape } from "./shape.js";
import { Conflict } from "./tables.jsx";
import { Difference, Source, Text, Value, useRest } from "./value.jsx";

function Section({ title, note, children, open = true, id }) {
  const [shown, setShown] = useState(open);
  return (
    <section class="part" id={id}>
      <h3>
        <button type="button" aria-expanded={shown} onClick={() => setShown(!shown)}>
          {title}
          {note != null && <span class="quiet"> {note}</span>}
        </button>
      </h3>
      {shown && children}
    </section>
  );
}

// --- language models

const price = (cost) => (cost == null ? "no price" : usd(cost));

const sum = (calls, name) => calls.reduce((total, call) => total + (call[name] ?? 0), 0);

function LMCalls({ calls }) {
  const [shown, more] = useFew(calls);
  if (!calls.length) return null;
  const cost = calls.some((call) => call.cost == null) ? null : sum(calls, "cost");
  const note = `${count(calls.length)} · ${count(sum(calls, "prompt_tokens") + sum(calls, "response_tokens"))} tokens · ${price(cost)}`;
  return (
    <Section title="LM calls" note={note}>
      <ol class="calls">{shown.map((call, i) => <LMCall key={i} call={call} open={calls.length <= 3} />)}</ol>
      {more}
    </Section>
  );
}

function LMCall({ call, open: start }) {
  const [open, setOpen] = useState(start);
  const facts = [
    `${count(call.prompt_tokens)} in, ${count(call.response_tokens)} out`,
    price(call.cost),
    seconds(call.seconds),
    call.cached && "from the cache",
    call.attempt > 1 && `attempt ${call.attempt}`,
    call.finish_reason && call.finish_reason !== "stop" && `ended: ${call.finish_reason}`,
  ].filter(Boolean);
  const kept = call.messages != null || call.response != null;
  return (
    <li class={`call${call.failed ? " bad" : ""}`}>
      <div class="callhead">
        <b>{call.predictor || "LM"}</b>
        <span class="model">{call.response_model || call.model}</span>
        <span class="num quiet">{facts.join(" · ")}</span>
        {kept && (
          <button type="button" class="fold" aria-expanded={open} onClick={() => setOpen(!open)}>
            {open ? "hide texts" : "show texts"}
          </button>
        )}
      </div>
      {call.failed && <p class="bad"><Text text={call.failed} /></p>}
      {open && <Messages messages={call.messages} />}
      {open && call.response != null && <Message role="response" content={call.response} limit={1500} />}
    </li>
  );
}

function Messages({ messages }) {
  if (messages == null) return null;
  if (!Array.isArray(messages)) return <Message role="prompt" content={messages} />;
  return messages.map((message, i) => (
    <Message key={i} role={message?.role ?? "message"} content={message?.content ?? message} limit={i === messages.length - 1 ? 900 : 260} />
  ));
}

function Message({ role, content, limit }) {
  return (
    <div class={`message m-${role}`}>
      <span class="role">{role}</span>
      <div class="content">{typeof content === "string" ? <Text text={content} limit={limit} /> : <Value value={content} />}</div>
    </div>
  );
}

// --- states

const fieldsOf = (state) => (state && typeof state === "object" && !Array.isArray(state) ? state : {});

function Changes({ before, after, diff }) {
  const [old, now] = [fieldsOf(before), fieldsOf(after)];
  const names = [...new Set([...Object.keys(now), ...Object.keys(old)])];
  const changed = names.filter((name) => Object.hasOwn(diff, name));
  const [shown, more] = useFew(changed);
  return (
    <Section title="Changes" note={changed.length ? plural(changed.length, "field") : "none"} id="changes">
      {shown.map((name) => (
        <div class="field" key={name}>
          <h4><code>{name}</code></h4>
          <Difference before={own(old, name)} after={own(now, name)} />
        </div>
      ))}
      {more}
      {!changed.length && <p class="quiet">The state is the same as before.</p>}
    </Section>
  );
}

function State({ title, state, blame, onShow, note, open = true }) {
  const fields = Object.entries(fieldsOf(state));
  const [shown, more] = useFew(fields, 200);
  return (
    <Section title={title} note={note ?? plural(fields.length, "field")} open={open}>
      <dl class="state">
        {shown.map(([name, value]) => (
          <div key={name}>
            <dt>
              <code>{name}</code>
              {blame && Object.hasOwn(blame, name) && <Writer blame={blame[name]} onShow={onShow} />}
            </dt>
            <dd><Value value={value} /></dd>
          </div>
        ))}
      </dl>
      {more}
    </Section>
  );
}

const Writer = ({ blame, onShow }) => (
  <span class="writer">
    by <button type="button" class="link" onClick={() => onShow(blame.commit)} title={`written by ${blame.commit}`}>{blame.node}</button>
  </span>
);

function Attempts({ failures }) {
  const [shown, more] = useFew(failures);
  if (!failures.length) return null;
  return (
    <Section title="Failed attempts" note={count(failures.length)}>
      <ol class="attempts">{shown.map((failure, i) => <Failed key={i} failure={failure} />)}</ol>
      {more}
    </Section>
  );
}

function Failed({ failure }) {
  return (
    <li>
      <p class="bad">
        <b>Attempt {failure.attempt}</b>
        {failure.index != null && ` of item ${failure.index}`}: <Text text={failureText(failure)} />
      </p>
      {failure.traceback && <Traceback text={failure.traceback} />}
    </li>
  );
}

function Traceback({ text: given }) {
  const [open, setOpen] = useState(false);
  const { seen, rest } = useRest(shape(given));
  const { text, cut } = seen;
  return (
    <>
      <button type="button" class="fold" aria-expanded={open} onClick={() => setOpen(!open)}>
        {open ? "hide the traceback" : `show the traceback, ${cut ? plural(cut.length, "character") : plural(text.split("\n").length, "line")}`}
      </button>
      {open && <pre class="traceback">{text}</pre>}
      {open && rest}
    </>
  );
}

// --- the pane

function PaneHead({ sign, title, sub, index, size, onSelect, children }) {
  return (
    <header class="panehead">
      <div class="titles">
        <h2 tabIndex={-1} title={title}>{sign && <span class="sign">{sign} </span>}{title}</h2>
        <p class="quiet">{sub}</p>
      </div>
      <div class="buttons">
        {children}
        <button type="button" onClick={() => onSelect(index - 1)} disabled={index <= 0} aria-label="Previous step" title="Previous step (k)">↑</button>
        <button type="button" onClick={() => onSelect(index + 1)} disabled={index < 0 || index >= size - 1} aria-label="Next step" title="Next step (j)">↓</button>
      </div>
    </header>
  );
}

export function StepPane(props) {
  const { entry } = props;
  if (entry.kind === "failure") return <FailurePane {...props} />;
  if (entry.kind === "question") return <QuestionPane {...props} />;
  return <CommitPane {...props} />;
}

const asList = (found) => (Array.isArray(found) ? found : []);

function CommitPane({ entry, thread, run, selected, entries, onSelect, onShow, about, onChanged, data, steps }) {
  const { data: step, error, current } = useAnswer("commit", { thread, run, id: entry.id });
  const told = useRef(null);
  const body = useRef(null);
  useEffect(() => {
    if (!current || !step || told.current === entry.id) return;
    if (told.current) announce(`Step ${step.commit.node}, ${plural(Object.keys(fieldsOf(step.diff)).length, "change")}`);
    told.current = entry.id;
    body.current?.scrollTo?.(0, 0);
  }, [current, entry.id]);
  const nav = { index: selected, size: entries.size, onSelect };
  if (error && !current) return <div class="pane"><div class="panebody" aria-busy="true" /></div>;
  if (error) return <div class="pane"><PaneHead title={entry.id} sub="" {...nav} /><Problem error={error} /></div>;
  if (!step) return <div class="pane"><div class="panebody" aria-busy="true" /></div>;
  const { commit } = step;
  const calls = step.lm_calls ?? [];
  const conflicts = step.conflicts ?? [];
  const failures = asList(commit.failed_attempts);
  const parents = commit.parents ?? [];
  const join = commit.node.startsWith("join:");
  return (
    <Source.Provider value={{ of: "commit", thread, run, id: commit.id }}>
    <div class="pane" aria-busy={!current}>
      <PaneHead
        title={commit.node}
        sub={`${commit.id} · version ${commit.version ?? "open"} · ${onBranch(commit.branch)}${commit.visit > 1 ? ` · visit ${commit.visit}` : ""}`}
        {...nav}
      >
        {about?.acts && !embedded && <StepActions step={step} data={data} steps={steps} about={about} onChanged={onChanged} />}
      </PaneHead>
      <div class="panebody" ref={body} tabIndex={0} role="group" aria-label="Details of the step">
        {commit.failure && <p class="problem">Failed: <Text text={failureText(commit.failure)} /></p>}
        <Facts
          items={[
            ["Started", <Clock time={commit.started} />],
            ["Time", seconds(commit.duration)],
            ["Attempt", `${commit.attempt ?? 1}${failures.length ? `, ${failures.length} failed` : ""}`],
            calls.length > 0 && ["LM calls", count(calls.length)],
            commit.cached && ["Cached", "from the node's cache"],
            ["After", parents.length ? <Links ids={parents} onShow={onShow} /> : "nothing"],
            ["Then", (commit.route ?? []).join(", ") || "–"],
          ]}
        />
        {commit.reason && <p class="reason"><span class="quiet">Reason of the route: </span><Text text={commit.reason} /></p>}
        <Attempts failures={failures} />
        <Answers key={`q${commit.id}`} answers={step.answers} />
        {conflicts.length > 0 && (
          <Section title="Conflicts" note={count(conflicts.length)}>
            {conflicts.map((conflict, i) => <Conflict key={i} conflict={conflict} />)}
          </Section>
        )}
        <Changes key={`c${commit.id}`} before={step.before} after={step.after} diff={fieldsOf(step.diff)} />
        <LMCalls key={`l${commit.id}`} calls={calls} />
        <Events key={`e${commit.id}`} events={step.events} />
        {commit.live && <Exchange live={commit.live} />}
        <State key={`a${commit.id}`} title="State after" state={step.after} blame={step.blame} onShow={onShow} />
        <Sent key={`s${commit.id}`} values={step.sent} />
        {step.before && <State key={`b${commit.id}`} title={join ? "State before, of its first branch" : "State before: what it could read"} state={step.before} onShow={onShow} open={false} />}
      </div>
    </div>
    </Source.Provider>
  );
}

// Who has answered the questions of a step, when, and what was said with the answers.
function Answers({ answers }) {
  const [shown, more] = useFew(answers ?? []);
  if (!answers?.length) return null;
  return (
    <Section title="Answers" note={count(answers.length)}>
      <ol class="attempts">
        {shown.map(({ question, value, by, comment, at }) => (
          <li key={question.id}>
            <p><Text text={question.text} /></p>
            <p class="quiet">{by ? <>answered by <Text text={by} /> at </> : "answered at "}<Clock time={at} />{comment && <>: <Text text={comment} /></>}</p>
            <Value value={value} open />
          </li>
        ))}
      </ol>
      {more}
    </Section>
  );
}

// The events of a class that the page does not know, such as one of a layer of the program: what they say, and their fields.
function Events({ events }) {
  const [shown, more] = useFew(events ?? []);
  if (!events?.length) return null;
  return (
    <Section title="Events" note={count(events.length)}>
      <ol class="attempts">{shown.map(({ text, event }, i) => <li key={i}><p><Text text={text} /></p><Value value={event} /></li>)}</ol>
      {more}
    </Section>
  );
}

function Links({ ids, onShow }) {
  const [shown, more] = useFew(ids);
  return (
    <>
      {shown.map((id, i) => (
        <span key={id}>{i > 0 && ", "}<button type="button" class="link" onClick={() => onShow(id)}>{id.split("/").pop()}</button></span>
      ))}
      {more}
    </>
  );
}

const Exchange = ({ live }) => (
  <Section title="Live fields" note="posts and reads" open={false}><Value value={live} open /></Section>
);

// What a Send has brought to this execution alone.
const Sent = ({ values }) => (Object.keys(values ?? {}).length ? <State title="Sent to it" state={values} /> : null);

// What an execution without a commit could read, and the LM calls that it has made.
function Execution({ id, thread, run, answer, question, onShow }) {
  const { data: found, error, current } = answer;
  if (!current) return null;
  if (error) return <p class="quiet">{error.message}</p>;
  const { parents } = found;
  const joined = parents.length > 1;
  return (
    <Source.Provider value={{ of: "execution", thread, run, id }}>
      {parents.length > 0 && <Facts items={[["After", <Links ids={parents} onShow={onShow} />]]} />}
      <LMCalls calls={found.lm_calls} />
      <Events events={found.events} />
      <Sent values={found.sent} />
      <State
        title={joined ? "State of its first branch" : question?.key === "after" ? "State after its node" : "What it could read"}
        note={question && question.node !== found.node ? `the state of ${found.node}, around it` : undefined}
        state={found.state}
        blame={found.blame}
        onShow={onShow}
      />
    </Source.Provider>
  );
}

function FailurePane({ entry, thread, run, selected, entries, onSelect, onShow, about, data, steps }) {
  const { failure } = entry;
  const answer = useAnswer("execution", { thread, run, id: failure.execution });
  const parents = answer.current ? answer.data?.parents : null;
  const attempts = asList(failure.failed_attempts);
  return (
    <div class="pane">
      <PaneHead
        sign="✕"
        title={`${failure.node} failed`}
        sub={`${failure.execution} · attempt ${failure.attempt} · ${onBranch(failure.branch)} · nothing of it was committed`}
        index={selected}
        size={entries.size}
        onSelect={onSelect}
      >
        {about?.acts && !embedded && <CopyBefore key={entry.id} parents={parents} run={run} data={data} steps={steps} />}
      </PaneHead>
      <div class="panebody" tabIndex={0} role="group" aria-label="Details of the failure">
        <div class="problem">
          <strong>{failure.type}</strong>
          {failure.index != null && <span> in item {failure.index}</span>}
          <p><Text text={failure.message || "without a text"} limit={900} /></p>
          {failure.retryable && <p class="quiet">Another attempt may succeed.</p>}
        </div>
        {failure.traceback && (
          <Source.Provider value={{ of: "run", thread, run }}>
            <Traceback key={entry.id} text={failure.traceback} />
          </Source.Provider>
        )}
        <Attempts failures={attempts} />
        <Execution key={entry.id} id={failure.execution} thread={thread} run={run} answer={answer} onShow={onShow} />
      </div>
    </div>
  );
}

function QuestionPane({ entry, thread, run, selected, entries, onSelect, onShow, about, onChanged, data }) {
  const { question } = entry;
  const answer = useAnswer("execution", { thread, run, id: question.id });
  return (
    <div class="pane">
      <PaneHead
        sign="?"
        title={`${question.node} asks`}
        sub={`${question.execution} · ${question.key} · ${onBranch(question.branch)}`}
        index={selected}
        size={entries.size}
        onSelect={onSelect}
      />
      <div class="panebody" tabIndex={0} role="group" aria-label="Details of the question">
        <div class="question">
          <Source.Provider value={{ of: "run", thread, run }}><Text key={entry.id} text={question.text} limit={2000} /></Source.Provider>
        </div>
        {question.expires != null && <p class="quiet">Expires at {exact(moment(question.expires)).slice(0, 19)}</p>}
        {about?.acts && !embedded ? (
          <AnswerForm key={entry.id} question={question} thread={thread} data={data} onDone={onChanged} />
        ) : (
          <p class="quiet">
            {embedded ? "Nothing can be answered in a file." : "Answering needs the program: "}
            {!embedded && <code>dspyer inspect STORE --program module:graph</code>}
          </p>
        )}
        <Execution key={entry.id} id={question.id} thread={thread} run={run} answer={answer} question={question} onShow={onShow} />
      </div>
    </div>
  );
}
