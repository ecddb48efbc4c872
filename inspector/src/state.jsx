// The state after a step, with the author of each field. Of a step without a commit: that from which it began.

import { nameOf } from "./names.js";
import { Boundary, Field, useFew } from "./parts.jsx";
import { ValueOf } from "./value.jsx";

export function State({ record, step, onSelect }) {
  const types = new Map((record.graph(record.path(step.id))?.fields ?? []).map((field) => [field.name, field.type]));
  const place = (name) => [...types.keys(), name].indexOf(name);
  const [fields, more] = useFew([...record.state(step.id)].sort(([a], [b]) => place(a) - place(b)));
  if (!fields.length) return <p class="soft">{step.parent === null ? "The state is empty." : "No field is known here: of graphs inside of nodes, what their steps wrote is stored."}</p>;
  const author = (one) => {
    if (!one || one.id === step.id) return one ? "this step" : "an earlier run";
    return <button type="button" class="link" onClick={() => onSelect(one.id)}>{nameOf(one)}{one.visit > 1 ? ` ×${one.visit}` : ""}</button>;
  };
  return (
    <>
      <dl class="card">
        {fields.map(([name, { value, by }]) => (
          <Field key={name} title={types.get(name)} name={<>{name}<span class="k by">by {author(record.step(by))}</span></>}><Boundary what={name} of={value}><ValueOf record={record} vid={value} /></Boundary></Field>
        ))}
      </dl>
      {more}
    </>
  );
}
