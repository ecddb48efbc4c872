// The state after a step, with the author of each field. Of a step without a commit: that from which it began.

import { nameOf } from "./names.js";
import { Boundary, useFew } from "./parts.jsx";
import { ValueOf } from "./value.jsx";

export function State({ record, step, onSelect }) {
  const state = record.state(step.id);
  const order = (record.graph(record.path(step.id))?.fields ?? []).map((field) => field.name);
  const place = (name) => (order.includes(name) ? order.indexOf(name) : order.length);
  const types = new Map((record.graph(record.path(step.id))?.fields ?? []).map((field) => [field.name, field.type]));
  const [fields, more] = useFew([...state].sort(([a], [b]) => place(a) - place(b)));
  if (!fields.length) return <p class="soft">{step.parent === null ? "The state is empty." : "No field is known here: of graphs inside of nodes, what their steps wrote is stored."}</p>;
  return (
    <>
      <dl class="card">
        {fields.map(([name, { value, by }]) => {
          const author = record.step(by);
          return (
            <div class="field" key={name}>
              <dt title={types.get(name)}>
                {name}
                <span class="k by">
                  by {author && author.id !== step.id ? <button type="button" class="link" onClick={() => onSelect(author.id)}>{nameOf(author)}{author.visit > 1 ? ` ×${author.visit}` : ""}</button> : author ? "this step" : "an earlier run"}
                </span>
              </dt>
              <dd><Boundary what={name} of={value}><ValueOf record={record} vid={value} /></Boundary></dd>
            </div>
          );
        })}
      </dl>
      {more}
    </>
  );
}
