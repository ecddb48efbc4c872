// A copy of a thread that goes on from the state after a step, with fields that were edited.

import { useEffect, useState } from "preact/hooks";
import { useAction } from "./acts.jsx";
import { asTyped, Input, readInput } from "./answer.jsx";
import { get, post } from "./api.js";
import { same } from "./diff.jsx";
import { useDraft } from "./drafts.js";
import { plural } from "./format.js";
import { announce } from "./hooks.js";
import { Button, Dialog, Line, Problem, Tag } from "./parts.jsx";
import { useValues } from "./record.js";
import { go } from "./route.js";
import { gist } from "./value.jsx";

const MOST = 20; // items of a list that has an input for each
const SIMPLE = { str: "string", int: "integer", float: "number", bool: "boolean", None: "null" };

// The parts of a type's text at one level: `str | list[int | None]` in two.
function split(text, by) {
  const parts = [""];
  let depth = 0;
  for (const sign of text) {
    if ("[(".includes(sign)) depth += 1;
    if ("])".includes(sign)) depth -= 1;
    if (sign === by && !depth) parts.push("");
    else parts[parts.length - 1] += sign;
  }
  return parts.map((part) => part.trim());
}

// The JSON schema of an editor for a field by the text of its type. What has none of its own is edited as JSON.
export function schemaOf(type, value) {
  const parts = split(type ?? "", "|");
  if (parts.length > 1) return { anyOf: parts.map((part) => schemaOf(part, value)) };
  const [, name, inner] = /^([\w.]+)(?:\[(.*)\])?$/.exec(type ?? "") ?? [];
  if (SIMPLE[name] && !inner) return { type: SIMPLE[name] };
  if (name === "list" && inner && (!Array.isArray(value) || value.length <= MOST)) return { type: "array", items: schemaOf(inner) };
  return { type: name === "list" || name === "tuple" || name === "set" ? "array" : "object" };
}

function FieldEditor({ name, type, schema, value, draft, problems, onDraft }) {
  const [open, setOpen] = useState(false);
  const changed = draft !== undefined;
  const shown = open || changed || problems[name] !== undefined;
  return (
    <div class="edit">
      <button type="button" class="twist" aria-expanded={shown} onClick={() => setOpen(!open)}>
        <code>{name}</code> <span class="faint">{type}</span> {changed && <Tag tone="wait">changed</Tag>}{!shown && <span class="soft">{gist(value)}</span>}
      </button>
      {shown && (
        <Input {...{ schema, problems }} id={`edit-${name}`} path={name} label={name} root={schema} value={changed ? draft.typed : asTyped(schema, value, schema)} onValue={(typed) => onDraft({ typed })} />
      )}
      {changed && <Button small onClick={() => onDraft(undefined)}>Undo</Button>}
    </div>
  );
}

// `thread-try-1`, or the next number that no thread has; the server refuses one that was taken meanwhile.
function useFreeName(thread) {
  const base = thread.replace(/-try-\d+$/, "");
  const [number, setNumber] = useState(1);
  useEffect(() => {
    const stop = new AbortController();
    const next = ({ items }) => items.length && number < 99 && setNumber(number + 1);
    get("runs", { thread: `${base}-try-${number}`, limit: 1 }, stop.signal).then(next, () => undefined);
    return () => stop.abort();
  }, [number]);
  return `${base}-try-${number}`;
}

function CopyForm({ record, step, onClose }) {
  const { thread } = record.run;
  const state = record.state(step.id);
  const values = useValues(record, [...state.values()].map((one) => one.value));
  const free = useFreeName(thread);
  const [draft, setDraft, clear] = useDraft(`copy/${record.run.id}/${step.id}`, {});
  const [resume, setResume] = useState(true);
  const [problems, setProblems] = useState({});
  const types = new Map((record.graph("")?.fields ?? []).map((field) => [field.name, field.type]));
  const fields = [...state].filter(([, one]) => values.has(one.value)).map(([name, one]) => {
    const value = values.get(one.value);
    return { name, value, type: types.get(name) ?? "", schema: schemaOf(types.get(name), value) };
  });
  const edits = draft.fields ?? {};
  const to = draft.to ?? free;
  const { busy, error, act } = useAction(async () => {
    const wrong = {};
    const patch = {};
    for (const { name, value, schema } of fields) {
      if (edits[name] === undefined) continue;
      const read = readInput(schema, edits[name].typed, schema, wrong, name);
      if (!same(read, value)) patch[name] = { $type: "replace", value: read };
    }
    setProblems(wrong);
    if (Object.keys(wrong).length) throw new Error("Nothing was copied: mend the fields that are marked.");
    await post("copy", { thread, to, at: step.id, ...(Object.keys(patch).length && { patch }) }).catch((refused) => {
      setProblems(refused.fields ?? {});
      throw refused;
    });
    clear();
    if (resume) await post("resume", { thread: to });
    announce(`The thread ${to} was made`);
    const { items } = await get("runs", { thread: to, limit: 1 });
    onClose();
    go("run", { thread: to, run: items[0]?.run_id });
  });
  const change = (name) => (one) => {
    const { [name]: _old, ...rest } = edits;
    setDraft({ ...draft, fields: one ? { ...rest, [name]: one } : rest });
  };
  const changed = Object.keys(edits).length;
  return (
    <form class="answer copying" onSubmit={act} noValidate>
      <p>Makes another thread that goes on from the state after <code>{step.id}</code>, changed as below. <b>{thread}</b> stays as it is, and the two can be compared.</p>
      <Line id="copy-to" label="Name of the new thread" value={to} spellcheck={false} required onText={(text) => setDraft({ ...draft, to: text })} />
      <div class="edits">
        {fields.map((one) => <FieldEditor key={one.name} {...one} draft={edits[one.name]} problems={problems} onDraft={change(one.name)} />)}
        {fields.length < state.size && <p class="soft" aria-busy="true">…</p>}
      </div>
      <label class="check"><input type="checkbox" checked={resume} onChange={(event) => setResume(event.target.checked)} />Run it at once: its nodes may call models, which costs money</label>
      {error && <Problem error={error} />}
      <footer>
        <span class="soft">{changed ? `${plural(changed, "field")} changed` : "nothing changed"}</span><span class="grow" />
        <Button onClick={onClose}>Cancel</Button><Button main type="submit" disabled={busy}>{busy ? "…" : resume ? "Copy and run" : "Copy"}</Button>
      </footer>
    </form>
  );
}

export function CopyEdited({ record, step }) {
  const [open, setOpen] = useState(false);
  const close = () => setOpen(false);
  return (
    <>
      <Button small onClick={() => setOpen(true)}>Copy with edit</Button>
      {open && <Dialog title={`A copy from ${step.node} on`} onClose={close} wide><CopyForm record={record} step={step} onClose={close} /></Dialog>}
    </>
  );
}
