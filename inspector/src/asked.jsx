// The question of a step: the form of its answer while it waits, and who answered what.

import { AnswerForm } from "./answer.jsx";
import { embedded } from "./api.js";
import { duration, when } from "./format.js";
import { Boundary } from "./parts.jsx";
import { useValues } from "./record.js";
import { Text, Value } from "./value.jsx";

// Whether an answer agrees: null for one that does not decide, as a text.
export function isApproval(value) {
  if (value === true || value === false) return value;
  return typeof value === "object" && value !== null && typeof value.ok === "boolean" ? value.ok : null;
}

// Who answered what; `who` says it in other words.
export function Given({ record, step, place = "", who }) {
  const { asked } = step;
  const { value: vid, by, comment, at } = asked.answer;
  const value = useValues(record, vid ? [vid] : []).get(vid);
  const ok = value === undefined && asked.call ? true : isApproval(value);
  const called = asked.call || step.call; // what was asked, and said, stands in the call
  return (
    <>
      {!called && !who && <div class={`note wait ${place}`}><span class="k">asked{asked.at ? ` ${when(asked.at)}` : ""}</span><p><Text record={record} of={asked.text} /></p></div>}
      <div class={`note ${ok === false ? "bad" : "ok"} ${place}`}>
        <b>{who ?? (ok === null ? "Answered" : ok ? "Approved" : "Refused")}</b>{by ? ` by ${by}` : ""}
        {at && asked.at ? <span class="soft" title={when(at)}> after {duration(at - asked.at)}</span> : null}
        {comment && <>: “<Text record={record} of={comment} />”</>}
        {who && asked.call && <p>{ok === false ? "refused" : "approved"}{value?.args ? " with other arguments" : ""}</p>}
        {value?.reason && <p><Text record={record} of={value.reason} /></p>}
        {(ok === null || (who && !asked.call)) && !step.call && <Value of={value} />}
      </div>
    </>
  );
}

export function Asked({ record, step, about, place = "" }) {
  const { asked } = step;
  if (!asked || asked.answer) return asked && <Given record={record} step={step} place={place} />;
  return (
    <div class={`asks note wait ${place}`}>
      <b>{asked.call ? "Waits for approval" : "Waits for an answer"}</b>
      {asked.at ? `, asked ${when(asked.at)}` : ""}{asked.expires ? `, until ${when(asked.expires)}` : ""}
      {!(asked.call && step.call) && <p><Text record={record} of={asked.text} /></p>}
      {!embedded && <Boundary what="The form" of={asked.id}><AnswerForm record={record} question={asked} about={about} /></Boundary>}
    </div>
  );
}
