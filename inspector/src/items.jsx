// The items of a map: what became of each.

import { useState } from "preact/hooks";
import { count, duration, failureText, plural } from "./format.js";
import { Boundary, Button, Field, Status, useFew } from "./parts.jsx";
import { ValueOf } from "./value.jsx";

const STATES = ["failed", "waiting", "running", "stopped", "unreadable"];

function Item({ record, item, onSelect }) {
  const results = Object.entries(item.wrote);
  return (
    <Field name={<><button type="button" class="link" onClick={() => onSelect(item.id)}>{item.node}</button><span class="k by num">{duration(item.seconds)}</span></>}>
      {item.status !== "done" && <Status status={item.status} />}
      {item.failure && <p class="bad">{failureText(item.failure)}</p>}
      {results.map(([name, { value }]) => <div key={name}>{results.length > 1 && <span class="k">{name}</span>}{value && <ValueOf record={record} vid={value} />}</div>)}
    </Field>
  );
}

export function Items({ record, step, onSelect }) {
  const [only, setOnly] = useState(null);
  const items = record.inside(step.id).filter((one) => one.kind === "item" || one.kind === "trial");
  const numbers = STATES.map((status) => [status, items.filter((item) => item.status === status).length]).filter(([, number]) => number);
  const [shown, more] = useFew(only ? items.filter((item) => item.status === only) : items, 50);
  const done = items.filter((item) => item.status === "done").length;
  return (
    <>
      <p class="filters">
        <span class="soft">{count(done)} of {plural(items.length, "item")} done</span>
        {numbers.map(([status, number]) => (
          <Button key={status} small aria-pressed={only === status} onClick={() => setOnly(only === status ? null : status)}>{count(number)} {status}</Button>
        ))}
      </p>
      <dl class="card">{shown.map((item) => <Boundary key={item.id} what={item.node}><Item record={record} item={item} onSelect={onSelect} /></Boundary>)}</dl>
      {more}
    </>
  );
}
