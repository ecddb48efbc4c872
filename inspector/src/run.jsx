import { Bar } from "./bar.jsx";
import { Conversation } from "./conversation.jsx";
import { Problem, Status } from "./parts.jsx";
import { Prompt } from "./prompt.jsx";
import { useRecord } from "./record.js";

export function RunPage({ params, about }) {
  const { record, error } = useRecord(params);
  return (
    <>
      <Bar trail={[record?.run.graph ?? "", <h1>{record?.run.thread || params.thread}</h1>]} />
      <main id="main">
        {error && <Problem error={error} />}
        {record?.steps.map((step) => <p key={step.id}>{step.node} <Status status={step.status} /></p>)}
        {record?.steps.filter((step) => step.kind === "agent").map((step) => <Conversation key={step.id} record={record} step={step} />)}
        {record?.steps.filter((step) => step.lm.length).map((step) => <Prompt key={step.id} record={record} step={step} about={about} />)}
      </main>
    </>
  );
}
