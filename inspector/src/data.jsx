// A data set: the examples of a node from all runs, chosen, corrected and exported.

import { useEffect, useRef, useState } from "preact/hooks";
import { get } from "./api.js";
import { useDraft } from "./drafts.js";
import { count, plural } from "./format.js";
import { announce, useAnswer, useListed, useTitle } from "./hooks.js";
import { parseValue, tried } from "./numbers.js";
import { Button, Field, Line, Problem, rowsFor, Tag, useListKeys } from "./parts.jsx";
import { href } from "./route.js";
import { Filters, query } from "./runs.jsx";
import { gist, Value } from "./value.jsx";

// A value as it is typed: short lists and mappings in one line.
function typed(value) {
  if (typeof value === "string") return value;
  const text = JSON.stringify(value);
  return text.length > 60 ? JSON.stringify(value, null, 2) : text;
}

// An example with its corrections, {outputs, corrected, problems}: a text stays one, anything else is JSON.
function read(example, texts = {}) {
  const [outputs, problems] = [{ ...example.outputs }, {}];
  const changed = Object.keys(outputs).filter((name) => texts[name] !== undefined && texts[name] !== typed(outputs[name]));
  for (const name of changed) {
    const wrong = (error) => (problems[name] = `no JSON: ${error.message}`) && outputs[name];
    outputs[name] = typeof outputs[name] === "string" ? texts[name] : tried(() => parseValue(texts[name]), wrong);
  }
  return { outputs, changed, corrected: changed.length > 0, problems, wrong: Object.keys(problems).length > 0 };
}

const Gists = ({ values }) => (
  <span class="gists">{Object.entries(values).slice(0, 4).map(([name, value]) => <span class="one" key={name}><code>{name}</code> {gist(value, 200)}</span>)}</span>
);

function Editor({ id, outputs, texts, changed, problems, onTexts }) {
  return Object.entries(outputs).map(([name, value]) => {
    const text = texts[name] ?? typed(value);
    const put = (now) => onTexts({ ...texts, [name]: now });
    return (
      <Line
        key={name} {...{ id: `out-${id}-${name}`, rows: rowsFor(text), value: text, wrong: problems[name], onText: put, spellcheck: typeof value === "string" }}
        label={<><code>{name}</code> {changed.includes(name) && <Tag tone="ok">corrected</Tag>}</>}
      >
        {changed.includes(name) && <Button small onClick={() => put(undefined)}>Put back what the run gave</Button>}
      </Line>
    );
  });
}

function Example({ example, index, chosen, onChoose, texts = {}, onTexts, open, onOpen }) {
  const { outputs, problems, corrected, changed, wrong } = read(example, texts);
  const { run, step, thread = String(run).replace(/\.\d+$/, "") } = example;
  return (
    <li class={chosen ? "example on" : "example"} id={`example-${index}`}>
      <div class="exampleline">
        <label class="pick"><input type="checkbox" checked={chosen} onChange={onChoose} aria-label={`Choose example ${index + 1}`} /></label>
        <button type="button" class="exampleopen" aria-expanded={open} onClick={onOpen}>
          <Gists values={example.inputs} />
          <Gists values={outputs} />
          <span class="one">{corrected && <Tag tone={wrong ? "bad" : "ok"}>corrected</Tag>} <span class="soft">{thread}</span></span>
        </button>
      </div>
      {open && (
        <div class="examplebody">
          <section aria-label="Inputs">
            <h2>Inputs</h2>
            <dl class="card">{Object.entries(example.inputs).map(([name, value]) => <Field key={name} name={name}><Value of={value} /></Field>)}</dl>
          </section>
          <section aria-label="Outputs">
            <h2>Outputs <span class="soft">what an optimizer shall learn: correct them here</span></h2>
            <Editor id={index} outputs={example.outputs} {...{ texts, changed, problems, onTexts }} />
          </section>
          <p class="soft">From the step <a href={href("run", { thread, run, step })}>{step}</a></p>
        </div>
      )}
    </li>
  );
}

function download(name, text) {
  const href = URL.createObjectURL(new Blob([text], { type: "application/jsonl" }));
  Object.assign(document.createElement("a"), { href, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(href), 1000);
}

const GRAPHS = 6;

// The nodes that have examples, [[graph, [path]]], as the newest run of each graph has them.
function useNodes(graphs = []) {
  const [nodes, setNodes] = useState(null);
  const key = graphs.slice(0, GRAPHS).map(({ name }) => name);
  useEffect(() => {
    const stop = new AbortController();
    const read = async (graph) => {
      const { items: [last] } = await get("runs", { graph, limit: 1 }, stop.signal);
      const { graphs: found } = await get("record", { thread: last.thread, run: last.run_id }, stop.signal);
      return [graph, Object.entries(found).flatMap(([path, { examples }]) => examples.map((name) => (path ? `${path}/${name}` : name)))];
    };
    Promise.all(key.map((graph) => read(graph).catch(() => [graph, []]))).then((all) => stop.signal.aborted || setNodes(all.filter(([, names]) => names.length)));
    return () => stop.abort();
  }, [key.join("\n")]);
  return nodes;
}

function Choose({ graphs }) {
  const nodes = useNodes(graphs);
  return (
    <div class="nothing">
      <h2>Choose a node</h2>
      <p>Examples are made of the steps of a node with one predictor: what went in, and what came out. Correct them, and export them to train with.</p>
      {graphs && nodes && !nodes.length && <p>The runs of this store have no such node.</p>}
      {nodes?.map(([graph, names]) => (
        <section key={graph} aria-label={graph}>
          <h3>{graph}</h3>
          <ul class="nodes">{names.map((node) => <li key={node}><a class="btn" href={href("data", { node, graph })}>{node}</a></li>)}</ul>
        </section>
      ))}
    </div>
  );
}

const toggle = (list, one) => (list.includes(one) ? list.filter((other) => other !== one) : [...list, one]);

export function DataPage({ params }) {
  useTitle("Data sets");
  const { node, run, step: given } = params;
  const { node: _, ...filters } = query(params);
  const filter = { ...filters, node, run, limit: 100 };
  const overview = useAnswer("overview", { since: filter.since, until: filter.until, graph: params.graph });
  const first = useAnswer(node ? "examples" : null, filter);
  const { items: found, next, left_out: leftOut, error, busy, more } = useListed("examples", filter, first, ({ step }) => step);
  const items = node ? found : [];
  const [draft, setDraft] = useDraft(`data/${node}`, { chosen: [], texts: {} });
  const list = useRef(null);
  const [open, setOpen] = useState(given ? [given] : []);
  // From a step of a run: it is chosen, and stands open.
  const place = items.findIndex(({ step }) => step === given);
  useEffect(() => {
    if (given && !draft.chosen.includes(given)) setDraft({ ...draft, chosen: [...draft.chosen, given] });
  }, [given]);
  useEffect(() => void document.getElementById(`example-${place}`)?.scrollIntoView({ block: "nearest" }), [place >= 0, given]);
  const chosen = items.filter(({ step }) => draft.chosen.includes(step));
  const taken = (chosen.length ? chosen : items).map((example) => ({ ...example, ...read(example, draft.texts[example.step]) }));
  const [wrong, corrected] = ["wrong", "corrected"].map((what) => taken.filter((one) => one[what]).length);
  const all = chosen.length === items.length;
  const put = (step, texts) => setDraft({ chosen: [...new Set([...draft.chosen, step])], texts: { ...draft.texts, [step]: texts } });
  const save = () => {
    const lines = taken.map((one) => `${JSON.stringify({ inputs: one.inputs, outputs: one.outputs, run: one.run, step: one.step, corrected: one.corrected })}\n`);
    download(`${String(node).replace(/[^\w-]+/g, "-")}.jsonl`, lines.join(""));
    announce(`${plural(taken.length, "example")} exported`);
  };
  useListKeys(list, ".exampleopen", { x: () => document.activeElement?.closest(".exampleline")?.querySelector("input").click() });
  return (
    <main id="main" class="lists" tabIndex={-1}>
      <div class="sheet">
        <div class={items.length ? "datahead" : "datahead unread"}>
          <h1>Data set{node && <> of <code>{node}</code></>}</h1>
          <span class="grow" />
          {node && (
            <>
              <span class="soft num">
                {chosen.length ? `${count(chosen.length)} of ${count(items.length)} chosen` : plural(items.length, "example")}{corrected > 0 && `, ${count(corrected)} corrected`}
              </span>
              <Button onClick={() => setDraft({ ...draft, chosen: all ? [] : items.map(({ step }) => step) })}>{all ? "Choose none" : "Choose all"}</Button>
              <Button main disabled={wrong > 0} onClick={save}>Export {count(taken.length)} as JSONL</Button>
            </>
          )}
        </div>
        <Filters page="data" params={params} names={overview.data} />
        {error && <Problem error={error} />}
        {wrong > 0 && <p class="bad" role="alert">Mend {plural(wrong, "example")} before the export: a correction is no JSON.</p>}
        {node && leftOut > 0 && <p class="note wait">{plural(leftOut, "example")} left out, of which a value is hidden, of an unknown class, or not stored.</p>}
        {(!node || error?.status === 404) && <Choose graphs={overview.data?.graphs} />}
        {node && !busy && !error && !items.length && !next && (
          <div class="nothing"><h2>No examples</h2><p>No step of {node} in these runs is done. <a href={href("data", { node })}>Look at all runs</a></p></div>
        )}
        {items.length > 0 && (
          <section class="card examples" aria-label="Examples" aria-busy={busy}>
            <div class="examplehead" aria-hidden="true"><span>Inputs</span><span>Outputs</span><span>From</span></div>
            <ol ref={list}>
              {items.map((example, index) => {
                const { step } = example;
                const on = { onChoose: () => setDraft({ ...draft, chosen: toggle(draft.chosen, step) }), onTexts: (texts) => put(step, texts), onOpen: () => setOpen(toggle(open, step)) };
                return <Example key={step} {...{ example, index, ...on }} chosen={draft.chosen.includes(step)} texts={draft.texts[step]} open={open.includes(step)} />;
              })}
            </ol>
          </section>
        )}
        {next && <p><Button onClick={more}>{items.length ? "Look in older runs" : "Look further: no run so far has an example"}</Button></p>}
      </div>
    </main>
  );
}
