// Acting on a thread. Each action says first what will happen and what it may cost.

import { useState } from "preact/hooks";
import { post } from "./api.js";
import { cost } from "./format.js";
import { announce } from "./hooks.js";
import { Button, Dialog, Problem } from "./parts.jsx";
import { go } from "./route.js";

// A graph's runs are acted on by the program of its name.
export const canAct = (about, graph) => Boolean(about?.acts && about.programs?.includes(graph));

export const HOW_TO_ACT = "dspyer inspect STORE --program module:graph";

export function useAction(work) {
  const [state, setState] = useState({ busy: false, error: null });
  const act = (event) => {
    event.preventDefault();
    setState({ busy: true, error: null });
    return work().then(() => setState({ busy: false, error: null }), (error) => setState({ busy: false, error }));
  };
  return { ...state, act };
}

// Asks before an action: [title, verb, what will happen and cost].
export function Confirm({ of: [title, verb, words], onClose, work }) {
  const { busy, error, act } = useAction(work);
  return (
    <Dialog title={title} onClose={onClose}>
      <form class="confirm" onSubmit={act}>
        <p>{words}</p>
        {error && <Problem error={error} />}
        <footer>
          <Button onClick={onClose}>Cancel</Button>
          <button type="submit" class={verb === "Stop" ? "btn danger" : "btn main"} disabled={busy} autofocus>{busy ? "…" : verb}</button>
        </footer>
      </form>
    </Dialog>
  );
}

const paid = ({ cost: dollars }) => `Nodes that it calls may call language models and cost money. So far the run has cost ${dollars == null ? "an unknown amount: a model has no price" : cost(dollars)}.`;

const RESUMABLE = new Set(["failed", "stopped", "crashed"]);

export function RunActs({ run, about, onChanged }) {
  const [asking, setAsking] = useState(null);
  if (!canAct(about, run.graph)) return null;
  const work = async () => {
    await post(asking, { thread: run.thread });
    announce(asking === "stop" ? "The run was told to stop" : "The run was resumed");
    setAsking(null);
    onChanged?.();
  };
  const asked = {
    resume: ["Resume this run?", "Resume", `The run goes on where it ended, with the program of the graph ${run.graph}. What has finished is not called again; what failed is called again. ${paid(run)}`],
    stop: ["Stop this run?", "Stop", "The run commits nothing more, in whatever process it is. What it has committed stays, and it can be resumed. Requests that are under way are paid for."],
  };
  return (
    <>
      {RESUMABLE.has(run.status) && <Button onClick={() => setAsking("resume")}>Resume</Button>}
      {run.status === "running" && <Button danger onClick={() => setAsking("stop")}>Stop</Button>}
      {asking && <Confirm of={asked[asking]} onClose={() => setAsking(null)} work={work} />}
    </>
  );
}

// Repeats what came after a step, in a new run of the thread.
export function Rerun({ record, step, about }) {
  const [asking, setAsking] = useState(false);
  const { thread, graph, status } = record.run;
  if (!canAct(about, graph)) return null;
  const work = async () => {
    const { run } = await post("rerun", { thread, at: step.id });
    announce("The rerun has begun");
    setAsking(false);
    go("run", { thread, run });
  };
  const words = `The thread ${thread} goes back to the state after ${step.id} and repeats what came after it, in a new run of ${graph}: with new calls and new effects. What came after it leaves the history of the thread; it stays in the store. ${paid(record.run)}`;
  return (
    <>
      <Button small disabled={status === "running"} onClick={() => setAsking(true)}>Rerun from here</Button>
      {asking && <Confirm of={[`Rerun from ${step.node}?`, "Rerun", words]} onClose={() => setAsking(false)} work={work} />}
    </>
  );
}
