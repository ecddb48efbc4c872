// Acting on a thread. Each action says first what will happen and what it may cost.

import { useEffect, useState } from "preact/hooks";
import { get, post } from "./api.js";
import { embedded } from "./embedded.js";
import { plural, usd } from "./format.js";
import { announce, useAnswer } from "./hooks.js";
import { isRaw, parseValue, typedNumber } from "./numbers.js";
import { Dialog } from "./parts.jsx";
import { go } from "./route.js";

// Runs an action: {busy, error, act}.
function useAction(work) {
  const [state, setState] = useState({ busy: false, error: null });
  const act = async (event) => {
    event?.preventDefault?.();
    setState({ busy: true, error: null });
    try {
      await work();
      setState({ busy: false, error: null });
    } catch (error) {
      setState({ busy: false, error });
    }
  };
  return { ...state, act };
}

function Confirm({ title, verb, danger, onClose, work, children }) {
  const { busy, error, act } = useAction(work);
  return (
    <Dialog title={title} onClose={onClose}>
      <form onSubmit={act}>
        {children}
        {error && <p class="problem" role="alert">{error.message}</p>}
        <footer>
          <button type="button" onClick={onClose}>Cancel</button>
          <button type="submit" class={danger ? "danger" : "primary"} disabled={busy} autofocus>{busy ? "…" : verb}</button>
        </footer>
      </form>
    </Dialog>
  );
}

const spent = (data) => (data.info.cost == null ? "an unknown amount: a model has no price" : usd(data.info.cost));

const RESUMABLE = new Set(["failed", "stopped", "crashed"]);

export function Actions({ data, about, onChanged }) {
  const [asking, setAsking] = useState(null);
  if (!about?.acts || embedded) return null;
  const { info } = data;
  const close = () => setAsking(null);
  const done = (words) => {
    announce(words);
    close();
    onChanged();
  };
  return (
    <>
      {RESUMABLE.has(info.status) && <button type="button" class="primary" onClick={() => setAsking("resume")}>Resume</button>}
      {info.status === "running" && <button type="button" class="danger" onClick={() => setAsking("stop")}>Stop</button>}
      {asking === "resume" && (
        <Confirm
          title="Resume this run?"
          verb="Resume"
          onClose={close}
          work={async () => {
            await post("resume", { thread: info.thread });
            done("The run was resumed");
          }}
        >
          <p>
            The run continues where it ended, with the program <code>{about.program}</code>. What has finished is not called again; what failed
            is called again.
          </p>
          <p>Nodes that it calls may call language models and cost money. So far the run has cost {spent(data)}.</p>
        </Confirm>
      )}
      {asking === "stop" && (
        <Confirm
          title="Stop this run?"
          verb="Stop"
          danger
          onClose={close}
          work={async () => {
            await post("stop", { thread: info.thread });
            done("The run was told to stop");
          }}
        >
          <p>
            The run commits nothing more, in whatever process it is. What it has committed stays, and it can be resumed. Requests that are under
            way are paid for.
          </p>
        </Confirm>
      )}
    </>
  );
}

// --- from a step on

// What the steps after an index have cost: an estimate of what repeating them costs.
async function costAfter(steps, index) {
  await steps.all();
  const sum = { steps: 0, calls: 0, cost: 0 };
  for (let i = index + 1; i < steps.count; i += 1) {
    const row = steps.at(i);
    sum.steps += 1;
    sum.calls += row?.lm?.calls ?? 0;
    if (row?.lm?.calls) sum.cost = row.lm.cost == null || sum.cost == null ? null : sum.cost + row.lm.cost;
  }
  return sum;
}

function Estimate({ steps, id, repeats }) {
  const [sum, setSum] = useState(null);
  useEffect(() => {
    costAfter(steps, steps.indexOf(id)).then(setSum);
  }, [id]);
  if (!sum) return <p class="estimate">Counting what came after it…</p>;
  if (!sum.steps) return <p class="estimate">Nothing came after this step yet.</p>;
  return (
    <p class="estimate">
      After this step the run made {plural(sum.steps, "step")} with {plural(sum.calls, "LM call")}
      {sum.calls ? ` for ${sum.cost == null ? "an unknown amount" : usd(sum.cost)}` : ""}. {repeats}
    </p>
  );
}

export function StepActions({ step, data, steps, about, onChanged }) {
  const [asking, setAsking] = useState(null);
  const { commit } = step;
  const { thread } = data.info;
  const close = () => setAsking(null);
  return (
    <>
      <button type="button" onClick={() => setAsking("rerun")} disabled={data.info.status === "running"}>Rerun from here</button>
      <button type="button" onClick={() => setAsking("copy")}>Copy…</button>
      {asking === "rerun" && (
        <Confirm
          title={`Rerun from ${commit.node}?`}
          verb="Rerun"
          onClose={close}
          work={async () => {
            const { run } = await post("rerun", { thread, at: commit.id });
            announce("The rerun has begun");
            close();
            onChanged();
            go("run", { thread, run });
          }}
        >
          <p>
            The thread <b>{thread}</b> goes back to the state after <code>{commit.id}</code> and repeats what came after it, in a new run of{" "}
            <code>{about.program}</code>: with new calls and new effects. What came after it leaves the history of the thread; it stays in the
            store.
          </p>
          <Estimate steps={steps} id={commit.id} repeats="Repeating them may cost as much again." />
        </Confirm>
      )}
      {asking === "copy" && <CopyDialog step={step} data={data} steps={steps} onClose={close} />}
    </>
  );
}

// The way on from a failure: a copy at the commit that the failed execution followed, with another state.
export function CopyBefore({ parents, run, data, steps }) {
  const [asking, setAsking] = useState(false);
  const { thread } = data.info;
  const id = parents?.length === 1 ? parents[0] : null;
  const { data: step } = useAnswer(asking && id ? "commit" : null, { thread, run, id });
  return (
    <>
      <button type="button" disabled={!id} onClick={() => setAsking(true)}>Copy…</button>
      {asking && step && <CopyDialog step={step} data={data} steps={steps} onClose={() => setAsking(false)} />}
    </>
  );
}

const pretty = (value) => JSON.stringify(value, null, 2) ?? "";

// Whether the server has left out a part of a value: what is shown of it cannot be sent back.
const isCut = (value) =>
  value !== null && typeof value === "object" && !isRaw(value) && (value.$type === "cut" || Object.values(value).some(isCut));

// A copy of the thread at a step, with a change of its state: each field is edited as JSON.
function CopyDialog({ step, data, steps, onClose }) {
  const { commit, after } = step;
  const { thread } = data.info;
  const [to, setTo] = useState(`${thread}-try-1`);
  const [texts, setTexts] = useState({});
  const [resume, setResume] = useState(true);
  const [problems, setProblems] = useState({});
  const fields = Object.keys(after ?? {});
  const { busy, error, act } = useAction(async () => {
    const patch = {};
    const wrong = {};
    for (const [name, text] of Object.entries(texts)) {
      if (text === pretty(after[name])) continue;
      try {
        patch[name] = { $type: "replace", value: parseValue(text) };
      } catch (bad) {
        wrong[name] = `no JSON: ${bad.message}`;
      }
    }
    setProblems(wrong);
    if (Object.keys(wrong).length) throw new Error("Nothing was copied: mend the fields that are marked.");
    try {
      const change = Object.keys(patch).length ? { patch } : {};
      await post("copy", { thread, to, at: commit.id, ...change });
    } catch (refused) {
      setProblems(refused.fields ?? {});
      throw refused;
    }
    if (resume) await post("resume", { thread: to });
    announce(`The thread ${to} was made`);
    const { items } = await get("runs", { thread: to, limit: 1 });
    onClose();
    go("run", { thread: to, run: items[0]?.run_id });
  });
  const changed = Object.entries(texts).filter(([name, text]) => text !== pretty(after[name])).length;
  return (
    <Dialog title={`Copy the thread at ${commit.node}`} onClose={onClose} wide>
      <form onSubmit={act}>
        <p>
          Makes another thread that continues from the state after <code>{commit.id}</code>, changed as below. The thread <b>{thread}</b> stays
          as it is.
        </p>
        <label class="line">
          <span>Name of the new thread</span>
          <input type="text" value={to} onInput={(event) => setTo(event.target.value)} required autofocus />
        </label>
        <div class="editor">
          {fields.map((name) => (
            <FieldEditor
              key={name}
              name={name}
              type={data.fields?.find((field) => field.name === name)?.type}
              value={after[name]}
              text={texts[name]}
              problem={problems[name]}
              onText={(text) => setTexts({ ...texts, [name]: text })}
            />
          ))}
        </div>
        <label class="check">
          <input type="checkbox" checked={resume} onChange={(event) => setResume(event.target.checked)} /> Run it at once
        </label>
        {resume && <Estimate steps={steps} id={commit.id} repeats="The copy may cost as much, or more on another path." />}
        {error && <p class="problem" role="alert">{error.message}</p>}
        <footer>
          <span class="quiet">{changed ? `${plural(changed, "field")} changed` : "nothing changed"}</span>
          <button type="button" onClick={onClose}>Cancel</button>
          <button type="submit" class="primary" disabled={busy}>{busy ? "…" : resume ? "Copy and run" : "Copy"}</button>
        </footer>
      </form>
    </Dialog>
  );
}

function FieldEditor({ name, type, value, text, problem, onText }) {
  const [open, setOpen] = useState(false);
  const shown = text ?? pretty(value);
  const changed = text !== undefined && text !== pretty(value);
  const id = `edit-${name}`;
  const rows = Math.min(14, Math.max(2, shown.split("\n").length + Math.floor(shown.length / 90)));
  return (
    <div class={`edit${problem ? " wrong" : ""}`}>
      <button type="button" class="twist" aria-expanded={open || changed} onClick={() => setOpen(!open)}>
        <code>{name}</code> <span class="tag">{type}{changed ? " · changed" : ""}</span>
        {!open && !changed && <span class="gist">{shown.replace(/\s+/g, " ").slice(0, 80)}</span>}
      </button>
      {(open || changed) && (
        <textarea
          id={id}
          aria-label={`${name}, as JSON`}
          readOnly={isCut(value)}
          aria-invalid={Boolean(problem)}
          aria-describedby={problem ? `${id}-problem` : undefined}
          spellcheck={false}
          rows={rows}
          value={shown}
          onInput={(event) => onText(event.target.value)}
        />
      )}
      {open && isCut(value) && <p class="quiet">It is too long to be edited here: the copy keeps it as it is.</p>}
      {problem && <p id={`${id}-problem`} class="bad">{problem}</p>}
    </div>
  );
}

// --- answers

const JSON_HINTS = { array: "JSON, as [1, 2]", object: 'JSON, as {"a": 1}' };

const CHOSEN = new Set(["boolean", "enum"]);

const DEEPEST = 4; // objects in objects that have fields of their own: a model may contain itself

// What an optional type is besides None; null for any other schema.
function withoutNone(schema) {
  const parts = Array.isArray(schema?.anyOf) ? schema.anyOf : [];
  const others = parts.filter((part) => part.type !== "null");
  if (others.length === parts.length || !others.length) return null;
  const { anyOf: _anyOf, default: _default, ...said } = schema;
  return others.length === 1 ? { ...said, ...others[0] } : { ...said, anyOf: others };
}

// A form for the JSON schema of an answer: what a form field can hold gets one, anything else is written as JSON.
function kindOf(schema, depth = 0) {
  if (!schema) return "any";
  if (withoutNone(schema)) return "optional";
  if (Array.isArray(schema.enum)) return "enum";
  if ("const" in schema) return "enum";
  if (["boolean", "string", "integer", "number"].includes(schema.type)) return schema.type;
  if (depth < DEEPEST && schema.type === "object" && schema.properties && Object.keys(schema.properties).length) return "object";
  return "json";
}

function resolve(schema, root) {
  const found = /^#\/\$defs\/(.+)$/.exec(schema?.$ref ?? "");
  return found ? { ...root.$defs?.[found[1]], ...schema, $ref: undefined } : schema;
}

// The value of what was typed: {value} or {problem}.
function readInput(schema, input, root, depth = 0) {
  const kind = kindOf(schema, depth);
  if (kind === "optional") {
    if (input === null) return { value: null };
    const inner = resolve(withoutNone(schema), root);
    return input === undefined ? { problem: "an answer is needed, or None" } : readInput(inner, input, root, depth);
  }
  if (kind === "object") {
    const value = {};
    for (const [name, part] of Object.entries(schema.properties)) {
      const inner = resolve(part, root);
      const given = input?.[name];
      const empty = given === undefined || given === "";
      if (empty && !(schema.required ?? []).includes(name)) continue;
      const found = readInput(inner, given, root, depth + 1);
      if (found.problem) return { problem: `${name}: ${found.problem}` };
      value[name] = found.value;
    }
    return { value };
  }
  if (input === undefined || input === "") return kind === "string" ? { value: "" } : { problem: "an answer is needed" };
  if (CHOSEN.has(kind) || kind === "string") return { value: input };
  if (kind === "integer" || kind === "number") {
    const value = typedNumber(input);
    return isRaw(value) || Number.isFinite(value) ? { value } : { problem: "this is no number" };
  }
  try {
    return { value: parseValue(input) };
  } catch (error) {
    return kind === "any" ? { value: input } : { problem: `no JSON: ${error.message}` };
  }
}

const choice = (value) => (isRaw(value) ? value.rawJSON : value === null ? "None" : String(value));

// An answer that may be None: one more choice, or a box beside the input.
function OptionalInput({ schema, ...shared }) {
  const { root, value, onValue } = shared;
  const inner = resolve(withoutNone(schema), root);
  if (CHOSEN.has(kindOf(inner))) return <Input {...shared} schema={inner} none />;
  return (
    <>
      {value !== null && <Input {...shared} schema={inner} />}
      <label class="check">
        <input type="checkbox" checked={value === null} onChange={(event) => onValue(event.target.checked ? null : undefined)} />
        {value === null ? `${shared.label}: None` : "None"}
      </label>
    </>
  );
}

function Input({ schema: given, root, value, onValue, label, id, required, none, depth = 0 }) {
  const schema = resolve(given, root);
  const kind = kindOf(schema, depth);
  if (kind === "optional") return <OptionalInput {...{ schema, root, value, onValue, label, id, required, depth }} />;
  if (kind === "object") {
    return (
      <fieldset>
        <legend>{label}</legend>
        {Object.entries(schema.properties).map(([name, part]) => (
          <Input
            key={name}
            id={`${id}-${name}`}
            schema={part}
            root={root}
            depth={depth + 1}
            label={part.title ?? name}
            required={(schema.required ?? []).includes(name)}
            value={value?.[name]}
            onValue={(one) => onValue({ ...value, [name]: one })}
          />
        ))}
      </fieldset>
    );
  }
  if (CHOSEN.has(kind)) {
    const options = kind === "boolean" ? [["Yes", true], ["No", false]] : (schema.enum ?? [schema.const]).map((one) => [choice(one), one]);
    if (none) options.push(["None", null]);
    return (
      <fieldset class="choices">
        <legend>{label}</legend>
        {options.map(([words, option]) => (
          <label key={words}>
            <input type="radio" name={id} checked={value === option} onChange={() => onValue(option)} required={required} /> {words}
          </label>
        ))}
      </fieldset>
    );
  }
  const text = { id, value: value ?? "", onInput: (event) => onValue(event.target.value), required: required && kind !== "string" };
  const hint = { any: "text or JSON", json: JSON_HINTS[schema?.type] ?? "JSON", integer: "whole number", number: "number", string: "text" }[kind];
  return (
    <label class="line">
      <span>{label} <span class="quiet">{hint}</span></span>
      {kind === "integer" || kind === "number" ? (
        <input type="number" step={kind === "integer" ? 1 : "any"} min={schema.minimum} max={schema.maximum} {...text} />
      ) : (
        <textarea rows={kind === "string" ? 2 : 4} spellcheck={kind === "string"} {...text} />
      )}
      {schema?.description && <span class="quiet">{schema.description}</span>}
    </label>
  );
}

export function AnswerForm({ question, thread, data, onDone }) {
  const [value, setValue] = useState(undefined);
  const [problem, setProblem] = useState(null);
  const [by, setBy] = useState("");
  const [comment, setComment] = useState("");
  const schema = question.answer;
  const { busy, error, act } = useAction(async () => {
    const root = schema ?? {};
    const found = readInput(resolve(schema, root), value, root);
    setProblem(found.problem ?? null);
    if (found.problem) return;
    const notes = { ...(by && { by }), ...(comment && { comment }) };
    await post("answer", { thread, answers: { [question.id]: found.value }, ...notes });
    announce("The answer was given; the run goes on");
    onDone();
  });
  const wrong = problem ?? error?.fields?.[question.id] ?? error?.message;
  return (
    <form class="answer" onSubmit={act}>
      <Input id="answer" schema={schema} root={schema ?? {}} label="Answer" value={value} onValue={setValue} required />
      <label class="line"><span>Given by <span class="quiet">text</span></span><input name="by" maxLength={500} value={by} onInput={(event) => setBy(event.target.value)} /></label>
      <label class="line"><span>Comment <span class="quiet">no model sees it</span></span><input name="comment" maxLength={500} value={comment} onInput={(event) => setComment(event.target.value)} /></label>
      {wrong && <p class="problem" role="alert">{wrong}</p>}
      <p class="quiet">The run goes on with your answer, and calls what comes next. So far it has cost {spent(data)}.</p>
      <button type="submit" class="primary" disabled={busy}>{busy ? "…" : "Answer and resume"}</button>
    </form>
  );
}
