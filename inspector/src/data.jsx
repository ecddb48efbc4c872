// A data set: the examples of a node from all runs, chosen, corrected and exported.

import { useEffect, useRef, useState } from "preact/hooks";
import { get } from "./api.js";
import { useDraft } from "./drafts.js";
import { count, plural } from "./format.js";
import { announce, useAnswer, useTitle } from "./hooks.js";
import { parseValue } from "./numbers.js";
import { Problem, Tag, useListKeys } from "./parts.jsx";
import { go, href } from "./route.js";
import { Filters, times, query } from "./runs.jsx";
import { gist, Value } from "./value.jsx";

const LIMIT = 100;

// A value as it is typed: short lists and mappings in one line.
function typed(value) {
  if (typeof value === "string") return value;
  const text = JSON.stringify(value);
  return text.length > 60 ? JSON.stringify(value, null, 2) : text;
}

// What was typed for a field, as its value: a text stays one, anything else is JSON.
function corrected(value, text) {
  if (typeof value === "string") return { value: text };
  try {
    return { value: parseValue(text) };
  } catch (error) {
    return { value, problem: `no JSON: ${error.message}` };
  }
}

function useExamples(params) {
  const filter = { ...query({ ...params, node: undefined }), node: params.node, run: params.run, limit: LIMIT };
  const key = JSON.stringify(filter);
  const { data, error, busy } = useAnswer(params.node ? "examples" : null, filter);
  const [more, setMore] = useState({ key: null, items: [], next: null, problem: null });
  const rest = more.key === key ? more : { items: [], next: data?.next, problem: null, left: 0 };
  const load = async () => {
    try {
      const page = await get("examples", { ...filter, after: rest.next });
      setMore({ key, items: [...rest.items, ...page.items], next: page.next, problem: null, left: rest.left + page.left_out });
      announce(`${plural(page.items.length, "more example")} loaded`);
    } catch (problem) {
      setMore({ ...rest, key, problem });
    }
  };
  // Runs on several pages may share a step: it counts once.
  const all = data && params.node ? [...data.items, ...rest.items] : [];
  const items = [...new Map(all.map((example) => [example.step, example])).values()];
  return { items, next: rest.next, leftOut: (data?.left_out ?? 0) + (rest.left ?? 0), error: error ?? rest.problem, busy, load };
}

function Fields({ values }) {
  return (
    <span class="gists">
      {Object.entries(values).slice(0, 4).map(([name, value]) => (
        <span class="one" key={name}><code>{name}</code> {gist(value, 200)}</span>
      ))}
    </span>
  );
}

function Editor({ id, outputs, texts, problems, onTexts }) {
  return Object.entries(outputs).map(([name, value]) => {
    const text = texts[name] ?? typed(value);
    const changed = texts[name] !== undefined && texts[name] !== typed(value);
    const field = `out-${id}-${name}`;
    return (
      <div class="inputline" key={name}>
        <label for={field}><code>{name}</code> {changed && <Tag tone="ok">corrected</Tag>}</label>
        {typeof value === "boolean" && (
          <select id={field} value={text} onChange={(event) => onTexts({ ...texts, [name]: event.target.value })}>
            <option value="true">True</option>
            <option value="false">False</option>
          </select>
        )}
        {typeof value !== "boolean" && <textarea
          id={field}
          rows={Math.min(12, Math.max(2, text.split("\n").length + Math.floor(text.length / 90)))}
          value={text}
          spellcheck={typeof value === "string"}
          aria-invalid={Boolean(problems[name])}
          aria-describedby={problems[name] ? `${field}-wrong` : undefined}
          onInput={(event) => onTexts({ ...texts, [name]: event.target.value })}
        />}
        {problems[name] && <p id={`${field}-wrong`} class="bad" role="alert">{problems[name]}</p>}
        {changed && (
          <button type="button" class="btn small" onClick={() => onTexts({ ...texts, [name]: undefined })}>Put back what the run gave</button>
        )}
      </div>
    );
  });
}

// An example with its corrections: {outputs, corrected, problems}.
function read(example, texts = {}) {
  const [outputs, problems] = [{}, {}];
  let changed = false;
  for (const [name, value] of Object.entries(example.outputs)) {
    const text = texts[name];
    if (text === undefined || text === typed(value)) {
      outputs[name] = value;
      continue;
    }
    const found = corrected(value, text);
    outputs[name] = found.value;
    if (found.problem) problems[name] = found.problem;
    changed = true;
  }
  return { outputs, corrected: changed, problems };
}

function Example({ example, index, chosen, onChoose, texts, onTexts, open, onOpen }) {
  const { outputs, corrected: isCorrected, problems } = read(example, texts);
  return (
    <li class={chosen ? "example on" : "example"} id={`example-${index}`}>
      <div class="exampleline">
        <label class="pick"><input type="checkbox" checked={chosen} onChange={onChoose} aria-label={`Choose example ${index + 1}`} /></label>
        <button type="button" class="exampleopen" aria-expanded={open} onClick={onOpen}>
          <Fields values={example.inputs} />
          <Fields values={outputs} />
          <span class="one">
            {isCorrected && <Tag tone={Object.keys(problems).length ? "bad" : "ok"}>corrected</Tag>}
            <span class="soft one">{example.thread ?? example.run}</span>
          </span>
        </button>
      </div>
      {open && (
        <div class="examplebody">
          <section aria-label="Inputs">
            <h2>Inputs</h2>
            <dl class="card">
              {Object.entries(example.inputs).map(([name, value]) => (
                <div class="field" key={name}><dt>{name}</dt><dd><Value of={value} /></dd></div>
              ))}
            </dl>
          </section>
          <section aria-label="Outputs">
            <h2>Outputs <span class="soft">what an optimizer shall learn: correct them here</span></h2>
            <Editor id={index} outputs={example.outputs} texts={texts ?? {}} problems={problems} onTexts={onTexts} />
          </section>
          <p class="soft">From the step <a href={href("run", { thread: threadOf(example), run: example.run, step: example.step })}>{example.step}</a></p>
        </div>
      )}
    </li>
  );
}

const threadOf = ({ thread, run }) => thread ?? String(run).replace(/\.\d+$/, "");

// A file that the reader saves.
function download(name, text) {
  const href = URL.createObjectURL(new Blob([text], { type: "application/jsonl" }));
  const link = Object.assign(document.createElement("a"), { href, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(href), 1000);
}

const GRAPHS = 6;

// The nodes that have examples, by path, as the newest run of each graph has them.
function useNodes(graphs) {
  const [nodes, setNodes] = useState(null);
  const key = (graphs ?? []).slice(0, GRAPHS).map(({ name }) => name);
  useEffect(() => {
    const stop = new AbortController();
    const read = async (graph) => {
      const { items: [last] } = await get("runs", { graph, limit: 1 }, stop.signal);
      if (!last) return [];
      const { graphs: found } = await get("record", { thread: last.thread, run: last.run_id }, stop.signal);
      return Object.entries(found).flatMap(([path, { examples }]) => examples.map((name) => ({ graph, name: path ? `${path}/${name}` : name })));
    };
    if (graphs) Promise.all(key.map((graph) => read(graph).catch(() => []))).then((all) => stop.signal.aborted || setNodes(all.flat()));
    return () => stop.abort();
  }, [key.join("\n")]);
  return nodes;
}

function Choose({ graphs }) {
  const nodes = useNodes(graphs);
  const names = [...new Set(nodes?.map(({ graph }) => graph))];
  return (
    <div class="nothing">
      <h2>Choose a node</h2>
      <p>Examples are made of the steps of a node with one predictor: what went in, and what came out. Correct them, and export them to train with.</p>
      {nodes && !nodes.length && <p>The runs of this store have no such node.</p>}
      {names.map((graph) => (
        <section key={graph} aria-label={graph}>
          <h3>{graph}</h3>
          <ul class="nodes">
            {nodes.filter((one) => one.graph === graph).map(({ name }) => <li key={name}><a class="btn" href={href("data", { node: name, graph })}>{name}</a></li>)}
          </ul>
        </section>
      ))}
    </div>
  );
}

export function DataPage({ params }) {
  useTitle("Data sets");
  const { node } = params;
  const { since, until } = times(params);
  const { data: overview } = useAnswer("overview", { since, until, graph: params.graph });
  const { items, next, leftOut, error, busy, load } = useExamples(params);
  const [draft, setDraft] = useDraft(`data/${node}`, { chosen: [], texts: {} });
  const list = useRef(null);
  const [open, setOpen] = useState(params.step ? [params.step] : []);
  // From a step of a run: it is chosen, and stands open.
  const given = params.step && items.some(({ step }) => step === params.step);
  useEffect(() => {
    if (params.step && !draft.chosen.includes(params.step)) setDraft({ ...draft, chosen: [...draft.chosen, params.step] });
  }, [params.step]);
  useEffect(() => {
    if (!given) return;
    document.getElementById(`example-${items.findIndex(({ step }) => step === params.step)}`)?.scrollIntoView({ block: "nearest" });
  }, [given, params.step]);
  const chosen = items.filter(({ step }) => draft.chosen.includes(step));
  const taken = (chosen.length ? chosen : items).map((example) => [example, read(example, draft.texts[example.step])]);
  const wrong = taken.filter(([, one]) => Object.keys(one.problems).length).length;
  const correctedOnes = taken.filter(([, one]) => one.corrected).length;
  const toggle = (list, one) => (list.includes(one) ? list.filter((other) => other !== one) : [...list, one]);
  const all = chosen.length === items.length;
  const put = (step, texts) => {
    const kept = Object.fromEntries(Object.entries(texts).filter(([, text]) => text !== undefined));
    setDraft({ chosen: draft.chosen.includes(step) ? draft.chosen : [...draft.chosen, step], texts: { ...draft.texts, [step]: kept } });
  };
  const save = () => {
    download(`${String(node).replace(/[^\w-]+/g, "-")}.jsonl`, taken.map(([{ inputs, run, step }, { outputs, corrected: is }]) => `${JSON.stringify({ inputs, outputs, run, step, corrected: is })}\n`).join(""));
    announce(`${plural(taken.length, "example")} exported`);
  };
  const names = overview ?? {};
  useListKeys(list, ".exampleopen", {
    x: (event, typing) => (typing ? false : document.activeElement?.closest(".exampleline")?.querySelector("input").click()),
  });
  return (
    <main id="main" class="lists" tabIndex={-1}>
      <div class="sheet">
        <div class={items.length ? "datahead" : "datahead unread"}>
          <h1>Data set{node && <> of <code>{node}</code></>}</h1>
          <span class="room" />
          {node && (
            <>
              <span class="soft num">
                {chosen.length ? `${count(chosen.length)} of ${count(items.length)} chosen` : plural(items.length, "example")}
                {correctedOnes > 0 && `, ${count(correctedOnes)} corrected`}
              </span>
              <button type="button" class="btn" onClick={() => setDraft({ ...draft, chosen: all ? [] : items.map(({ step }) => step) })}>
                {all ? "Choose none" : "Choose all"}
              </button>
              <button type="button" class="btn main" disabled={wrong > 0} onClick={save}>Export {count(taken.length)} as JSONL</button>
            </>
          )}
        </div>
        <Filters page="data" params={params} names={names} />
        {params.thread && <p class="soft">Of the thread <b>{params.thread}</b>. <a href={href("data", { ...params, thread: undefined, run: undefined, step: undefined })}>Of all threads</a></p>}
        {error && <Problem error={error} />}
        {wrong > 0 && <p class="bad" role="alert">Mend {plural(wrong, "example")} before the export: a correction is no JSON.</p>}
        {leftOut > 0 && <p class="note wait">{plural(leftOut, "example")} left out, of which a value is hidden, of an unknown class, or not stored.</p>}
        {(!node || error?.status === 404) && <Choose graphs={overview?.graphs} />}
        {node && !busy && !error && !items.length && !next && (
          <div class="nothing"><h2>No examples</h2><p>No step of {node} in these runs is done. <a href={href("data", { node })}>Look at all runs</a></p></div>
        )}
        {items.length > 0 && (
          <section class="table examples" aria-label="Examples" aria-busy={busy}>
            <div class="examplehead" aria-hidden="true"><span>Inputs</span><span>Outputs</span><span>From</span></div>
            <ol ref={list}>
              {items.map((example, index) => {
                const { step } = example;
                const shown = { example, index, chosen: draft.chosen.includes(step), texts: draft.texts[step], open: open.includes(step) };
                const choose = () => setDraft({ ...draft, chosen: toggle(draft.chosen, step) });
                return <Example key={step} {...shown} onChoose={choose} onTexts={(texts) => put(step, texts)} onOpen={() => setOpen(toggle(open, step))} />;
              })}
            </ol>
          </section>
        )}
        {next && <p><button type="button" class="btn" onClick={load}>{items.length ? "Look in older runs" : "Look further: no run so far has an example"}</button></p>}
      </div>
    </main>
  );
}
