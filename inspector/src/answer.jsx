// The answer to an open question: an editor by the type of the answer, with who gives it and why. What was typed is a draft.

import { useId, useState } from "preact/hooks";
import { HOW_TO_ACT, canAct, useAction } from "./acts.jsx";
import { post } from "./api.js";
import { useDraft } from "./drafts.js";
import { announce, useAnswer } from "./hooks.js";
import { isRaw, parseValue, tried, typedNumber } from "./numbers.js";
import { Button, Line, Problem, Wrong } from "./parts.jsx";

const DEEPEST = 4; // objects and lists inside of each other that have fields of their own: a model may contain itself
const CHOSEN = new Set(["boolean", "enum"]);
const HINTS = { any: "text or JSON", json: "JSON", integer: "whole number", number: "number", string: "text" };

// What an optional type is besides None; null for any other schema.
function withoutNone(schema) {
  const parts = Array.isArray(schema?.anyOf) ? schema.anyOf : [];
  const others = parts.filter((part) => part.type !== "null");
  if (others.length === parts.length || !others.length) return null;
  const { anyOf: _anyOf, default: _default, ...said } = schema;
  return others.length === 1 ? { ...said, ...others[0] } : { ...said, anyOf: others };
}

const SAYS = new Set(["title", "description", "default"]);

function kindOf(schema = {}, depth = 0) {
  if (Object.keys(schema).every((key) => SAYS.has(key))) return "any";
  if (withoutNone(schema)) return "optional";
  if (Array.isArray(schema.enum) || "const" in schema) return "enum";
  if (["boolean", "string", "integer", "number"].includes(schema.type)) return schema.type;
  if (depth >= DEEPEST) return "json";
  if (schema.type === "object" && Object.keys(schema.properties ?? {}).length) return "object";
  return schema.type === "array" && schema.items && !schema.prefixItems ? "list" : "json";
}

function resolve(schema, root) {
  const found = /^#\/\$defs\/(.+)$/.exec(schema?.$ref ?? "");
  return found ? resolve({ ...root.$defs?.[found[1]], ...schema, $ref: undefined }, root) : schema;
}

const below = (path, name) => (path ? `${path}.${name}` : String(name));

// The value of what was typed; what is wrong with it is put into `problems` by its path.
export function readInput(given, input, root, problems, path = "", depth = 0) {
  const schema = resolve(given, root);
  const kind = kindOf(schema, depth);
  const wrong = (words) => void (problems[path] = words);
  if (kind === "optional") {
    if (input === null) return null;
    if (input === undefined) return wrong("an answer is needed, or None");
    return readInput(withoutNone(schema), input, root, problems, path, depth);
  }
  if (kind === "object") {
    const value = {};
    for (const [name, part] of Object.entries(schema.properties)) {
      const one = input?.[name];
      if ((one === undefined || one === "") && !(schema.required ?? []).includes(name)) continue;
      value[name] = readInput(part, one, root, problems, below(path, name), depth + 1);
    }
    return value;
  }
  if (kind === "list") return (input ?? []).map((one, i) => readInput(schema.items, one, root, problems, below(path, i), depth + 1));
  if (input === undefined || input === "") return kind === "string" ? "" : wrong("an answer is needed");
  if (CHOSEN.has(kind) || kind === "string") return input;
  if (kind === "integer" || kind === "number") {
    const value = typedNumber(input);
    return isRaw(value) || Number.isFinite(value) ? value : wrong("this is no number");
  }
  return tried(() => parseValue(input), (error) => (kind === "any" ? input : wrong(`no JSON: ${error.message}`)));
}

// What stands in the inputs for a value, as the arguments of a call that may be changed.
export function asTyped(given, value, root, depth = 0) {
  const schema = resolve(given, root);
  const kind = kindOf(schema, depth);
  if (kind === "optional") return value === null ? null : asTyped(withoutNone(schema), value, root, depth);
  if (kind === "object") {
    return Object.fromEntries(Object.entries(value ?? {}).map(([name, one]) => [name, asTyped(schema.properties[name], one, root, depth + 1)]));
  }
  if (kind === "list") return Array.isArray(value) ? value.map((one) => asTyped(schema.items, one, root, depth + 1)) : [];
  if (value === undefined || CHOSEN.has(kind)) return value;
  return typeof value === "string" && kind !== "json" ? value : JSON.stringify(value, null, 2);
}

const choice = (value) => (isRaw(value) ? value.rawJSON : value === null ? "None" : String(value));
const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

function Choices({ id, label, options, value, onValue, words }) {
  return (
    <fieldset class="choices" aria-describedby={words ? `${id}-wrong` : undefined}>
      <legend>{label}</legend>
      <div>
        {options.map(([text, option]) => (
          <label key={text} class="choice"><input type="radio" name={id} checked={value !== undefined && same(value, option)} onChange={() => onValue(option)} /><span>{text}</span></label>
        ))}
      </div>
      <Wrong id={id} words={words} />
    </fieldset>
  );
}

const Group = ({ label, hint, wrong, children }) => <fieldset class="inputs"><legend>{label} <span class="soft">{hint}</span></legend>{children}{wrong}</fieldset>;

function Items({ schema, part, value, onValue, label, wrong }) {
  const items = value ?? [];
  return (
    <Group label={label} hint="list" wrong={wrong}>
      {items.map((one, i) => (
        <div class="item" key={i}>
          <Input {...part(i, schema.items, `${label} ${i + 1}`)} value={one} onValue={(typed) => onValue(items.with(i, typed))} />
          <Button small aria-label={`Remove ${label} ${i + 1}`} onClick={() => onValue(items.toSpliced(i, 1))}>✕</Button>
        </div>
      ))}
      <Button small onClick={() => onValue([...items, ""])}>Add an item</Button>
    </Group>
  );
}

// An answer that may be None: one more choice, or a box beside the input.
function Optional({ schema, ...shared }) {
  const inner = resolve(withoutNone(schema), shared.root);
  const { value, onValue, label } = shared;
  if (CHOSEN.has(kindOf(inner))) return <Input {...shared} schema={inner} none />;
  return (
    <div class="optional">
      {value !== null && <Input {...shared} schema={inner} />}
      <label class="check"><input type="checkbox" checked={value === null} onChange={(event) => onValue(event.target.checked ? null : undefined)} />{value === null ? `${label}: None` : "None"}</label>
    </div>
  );
}

export function Input({ schema: given, none, ...shared }) {
  const { root, value, onValue, label, id, path = "", problems = {}, depth = 0 } = shared;
  const schema = resolve(given, root);
  const kind = kindOf(schema, depth);
  if (kind === "optional") return <Optional {...shared} schema={schema} />;
  const part = (name, inner, words) => ({ root, problems, depth: depth + 1, id: `${id}-${name}`, path: below(path, name), schema: inner, label: words });
  const wrong = <Wrong id={id} words={problems[path]} />;
  if (kind === "list") return <Items {...{ schema, part, value, onValue, label, wrong }} />;
  if (kind === "object") {
    const inputs = Object.entries(schema.properties).map(([name, inner]) => (
      <Input key={name} {...part(name, inner, inner.title ?? name)} value={value?.[name]} onValue={(one) => onValue({ ...value, [name]: one })} />
    ));
    return <Group label={label} wrong={wrong}>{inputs}</Group>;
  }
  const words = problems[path];
  if (CHOSEN.has(kind)) {
    const options = kind === "boolean" ? [["Yes", true], ["No", false]] : (schema.enum ?? [schema.const]).map((one) => [choice(one), one]);
    return <Choices {...{ id, label, value, onValue, words }} options={none ? [...options, ["None", null]] : options} />;
  }
  const shape = schema?.type === "array" ? "JSON, as [1, 2]" : schema?.type === "object" ? 'JSON, as {"a": 1}' : HINTS[kind];
  const numeric = { integer: "numeric", number: "decimal" }[kind];
  const lines = String(value ?? "").length > 80 ? 6 : kind === "string" ? (depth ? 1 : 2) : 4;
  const told = { id, label, hint: shape, wrong: words, value: value ?? "", placeholder: schema?.default == null ? undefined : String(schema.default), onText: onValue };
  return (
    <Line {...told} {...(numeric ? { inputMode: numeric } : { rows: lines, spellcheck: kind === "string" })}>
      {schema?.description && <span class="soft">{schema.description}</span>}
    </Line>
  );
}

const argsSchema = (call) => (call.schema?.properties ? call.schema : { type: "object", properties: call.schema ?? {} });

function readApproval(call, draft, problems) {
  if (draft.ok === undefined) return void (problems[""] = "approve the call or refuse it");
  if (!draft.ok) return draft.reason ? { ok: false, reason: draft.reason } : false;
  if (draft.args === undefined) return true;
  const schema = argsSchema(call);
  return { ok: true, args: readInput(schema, draft.args, schema, problems, "args") };
}

function Approve({ id, call, draft, onDraft, problems }) {
  const schema = argsSchema(call);
  const put = (changes) => onDraft({ ...draft, ...changes });
  const asks = { id: `${id}-ok`, label: `Call ${call.name}?`, options: [["Approve", true], ["Refuse", false]], value: draft.ok, words: problems[""] };
  return (
    <>
      <Choices {...asks} onValue={(ok) => put({ ok })} />
      {draft.ok === false && <Line id={`${id}-reason`} label="Reason" hint="the model is shown it" rows={2} value={draft.reason ?? ""} onText={(reason) => put({ reason })} />}
      {draft.ok && Object.keys(schema.properties).length > 0 && (
        <>
          <label class="check"><input type="checkbox" checked={draft.args !== undefined} onChange={({ target }) => put({ args: target.checked ? asTyped(schema, call.args, schema) : undefined })} />Call it with other arguments</label>
          {draft.args !== undefined && <Input {...{ schema, root: schema, problems, id: `${id}-args`, path: "args", label: "Arguments", value: draft.args }} onValue={(args) => put({ args })} />}
        </>
      )}
    </>
  );
}

// What the answer to an approval says; null to any other question.
export function verdict(asked, value) {
  const ok = value !== null && typeof value === "object" ? value.ok : value;
  if (!asked.call || typeof ok !== "boolean") return null;
  return `${ok ? "approved" : "refused"}${value.args ? " with other arguments" : ""}${value.reason ? `: ${value.reason}` : ""}`;
}

export const draftKey = (id) => `answer/${id}`;

// What a draft says, for a reader whose question was answered meanwhile.
export const draftText = ({ value, ok, reason, comment, args }) =>
  [ok === undefined ? value : ok ? "approve" : "refuse", reason, args, comment]
    .filter((part) => part !== undefined && part !== "")
    .map((part) => (typeof part === "string" ? part : JSON.stringify(part, null, 2)))
    .join("\n");

// A question of a record has no schema of its answer: what waits has it. The approval of a call needs none.
function useSchema(question) {
  const whole = question.call || question.key !== undefined;
  const { data, error } = useAnswer(whole ? null : "questions", {});
  const found = whole ? question : data?.items.find((one) => one.question.id === question.id)?.question;
  return { found, error, gone: !whole && data && !found };
}

export const ReadOnly = ({ graph }) => (
  <p class="soft readonly">This page only reads{graph ? ` runs of ${graph}` : ""}. To answer here, start it with the program: <code>{HOW_TO_ACT}</code></p>
);

// `question` is one of a record (`step.asked`, with `record`) or of `questions` (`waiting`).
export function AnswerForm({ record, waiting, question: asked, about, onDone }) {
  const given = asked ?? waiting.question;
  const thread = waiting?.thread ?? record.run.thread;
  const { found: question, error: lost, gone } = useSchema(given);
  const [draft, setDraft, clear] = useDraft(draftKey(given.id), {});
  const [by, setBy] = useDraft("by", "");
  const [problems, setProblems] = useState({});
  const id = useId(); // a conversation may have several forms
  const { busy, error, act } = useAction(async () => {
    const wrong = {};
    const root = question.answer ?? {};
    const permits = !question.call && question.answer === null; // it takes no answer: every resume goes on
    const value = question.call ? readApproval(question.call, draft, wrong) : permits ? null : readInput(root, draft.value, root, wrong);
    setProblems(wrong);
    if (Object.keys(wrong).length) return;
    const notes = { ...(by && { by }), ...(draft.comment && { comment: draft.comment }) };
    await (permits ? post("resume", { thread }) : post("answer", { thread, answers: { [question.id]: value }, ...notes }));
    clear();
    announce("The answer was given; the run goes on");
    onDone?.();
  });
  if (lost) return <Problem error={lost} />;
  if (gone) return <p class="soft">This question waits no longer.</p>;
  if (!question) return <p class="answer soft" aria-busy="true">…</p>;
  if (waiting ? !waiting.program || !about?.acts : !canAct(about, record.run.graph)) return <ReadOnly graph={record?.run.graph} />;
  const refused = error?.fields?.[question.id] ?? error?.message;
  const shown = refused && !Object.keys(problems).length ? { ...problems, "": refused } : problems;
  const schema = question.call ? {} : question.answer;
  const put = (changes) => setDraft({ ...draft, ...changes });
  return (
    <form class="answer" onSubmit={act} noValidate>
      {question.call && <Approve id={id} call={question.call} draft={draft} onDraft={put} problems={shown} />}
      {!question.call && schema && <Input {...{ id, schema, label: "Answer", value: draft.value, problems: shown }} root={schema} onValue={(value) => put({ value })} />}
      {schema !== null && (
        <div class="notes">
          <Line id={`${id}-by`} label="Given by" maxLength={500} value={by} onText={setBy} />
          <Line id={`${id}-comment`} label="Comment" hint="no model sees it" maxLength={500} value={draft.comment ?? ""} onText={(comment) => put({ comment })} />
        </div>
      )}
      {schema === null && <Wrong id={id} words={refused} />}
      <footer>
        <button type="submit" class="btn main" disabled={busy}>{busy ? "…" : schema === null ? "Go on" : "Answer and resume"}</button>
        <span class="soft">The run goes on with it, and calls what comes next.</span>
      </footer>
    </form>
  );
}
