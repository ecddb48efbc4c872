// Acting on a thread. Each action says first what will happen and what it may cost.

import { useState } from "preact/hooks";
import { post } from "./api.js";
import { cost, count, plural } from "./format.js";
import { announce } from "./hooks.js";
import { Dialog, Problem } from "./parts.jsx";
import { go } from "./route.js";

// A graph's runs are acted on by the program of its name.
export const canAct = (about, graph) => Boolean(about?.acts && about.programs?.includes(graph));

export const HOW_TO_ACT = "dspyer inspect STORE --program module:graph";

// Runs an action: {busy, error, act}.
export function useAction(work) {
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

export function Confirm({ title, verb, danger, onClose, work, children }) {
  const { busy, error, act } = useAction(work);
  return (
    <Dialog title={title} onClose={onClose}>
      <form class="confirm" onSubmit={act}>
        {children}
        {error && <Problem error={error} />}
        <footer>
          <button type="button" class="btn" onClick={onClose}>Cancel</button>
          <button type="submit" class={danger ? "btn danger" : "btn main"} disabled={busy} autofocus>{busy ? "…" : verb}</button>
        </footer>
      </form>
    </Dialog>
  );
}

const spent = (run) => (run.cost == null ? "an unknown amount: a model has no price" : cost(run.cost));

const RESUMABLE = new Set(["failed", "stopped", "crashed"]);

// Resume or stop, of a run whose graph has a program.
export function RunActs({ run, about, onChanged }) {
  const [asking, setAsking] = useState(null);
  if (!canAct(about, run.graph)) return null;
  const close = () => setAsking(null);
  const work = (path, words) => async () => {
    await post(path, { thread: run.thread });
    announce(words);
    close();
    onChanged?.();
  };
  return (
    <>
      {RESUMABLE.has(run.status) && <button type="button" class="btn" onClick={() => setAsking("resume")}>Resume</button>}
      {run.status === "running" && <button type="button" class="btn danger" onClick={() => setAsking("stop")}>Stop</button>}
      {asking === "resume" && (
        <Confirm title="Resume this run?" verb="Resume" onClose={close} work={work("resume", "The run was resumed")}>
          <p>
            The run goes on where it ended, with the program of the graph <b>{run.graph}</b>. What has finished is not called again; what failed is
            called again.
          </p>
          <p>Nodes that it calls may call language models and cost money. So far the run has cost {spent(run)}.</p>
        </Confirm>
      )}
      {asking === "stop" && (
        <Confirm title="Stop this run?" verb="Stop" danger onClose={close} work={work("stop", "The run was told to stop")}>
          <p>
            The run commits nothing more, in whatever process it is. What it has committed stays, and it can be resumed. Requests that are under way
            are paid for.
          </p>
        </Confirm>
      )}
    </>
  );
}

// What came after a step, and what it has cost: an estimate of what repeating it costs.
export function Estimate({ record, step, repeats }) {
  const at = record.steps.indexOf(step);
  const after = record.steps.slice(at + 1).filter((one) => one.started >= step.started);
  const calls = after.flatMap((one) => one.lm);
  const sum = calls.reduce((all, call) => (all == null || call.cost == null ? null : all + call.cost), 0);
  if (!after.length) return <p class="soft">Nothing came after this step yet.</p>;
  return (
    <p class="soft">
      After this step the run made {plural(after.length, "step")} with {plural(calls.length, "LM call")}
      {calls.length ? ` for ${sum == null ? "an unknown amount" : cost(sum)}` : ""}. {repeats}
    </p>
  );
}

// Repeats what came after a step, in a new run of the thread.
export function Rerun({ record, step, about }) {
  const [asking, setAsking] = useState(false);
  const { thread, graph, status } = record.run;
  if (!canAct(about, graph)) return null;
  return (
    <>
      <button type="button" class="btn small" disabled={status === "running"} onClick={() => setAsking(true)}>Rerun from here</button>
      {asking && (
        <Confirm
          title={`Rerun from ${step.node}?`}
          verb="Rerun"
          onClose={() => setAsking(false)}
          work={async () => {
            const { run } = await post("rerun", { thread, at: step.id });
            announce("The rerun has begun");
            setAsking(false);
            go("run", { thread, run });
          }}
        >
          <p>
            The thread <b>{thread}</b> goes back to the state after <code>{step.id}</code> and repeats what came after it, in a new run of {graph}:
            with new calls and new effects. What came after it leaves the history of the thread; it stays in the store.
          </p>
          <Estimate record={record} step={step} repeats="Repeating them may cost as much again." />
        </Confirm>
      )}
    </>
  );
}
