// What a step wrote, field by field, against what stood there before; the conflicts of a join; posts to live fields.

import { Diff } from "./diff.jsx";
import { duration } from "./format.js";
import { Boundary, Field, Tag, useFew } from "./parts.jsx";
import { useValues } from "./record.js";
import { ValueOf } from "./value.jsx";

function Change({ record, step, name, wrote }) {
  const before = record.added(step, name) ? undefined : record.before(step.id).get(name);
  const ids = [before?.value, wrote.value].filter(Boolean);
  const values = useValues(record, ids);
  const author = wrote.by ? record.step(wrote.by) : null;
  const there = ids.every((id) => values.has(id));
  const note = wrote.value === null ? "removed" : record.added(step, name) ? "added" : before === undefined ? "new" : before.value === wrote.value ? "same value" : "";
  return (
    <Field name={<>{name}<span class="k"> {note}</span>{author && <span class="k by">by {author.node}</span>}</>}>
      {there ? <Diff before={values.get(before?.value)} after={values.get(wrote.value)} /> : <span class="soft" aria-busy="true">…</span>}
    </Field>
  );
}

const Removed = ({ record, vid }) => (vid ? <ValueOf record={record} vid={vid} /> : <span class="soft">removed</span>);

const Conflict = ({ record, conflict: { path, policy, base, values, winner, value } }) => (
  <div class="card conflict">
    <h3>{path.join(".")} <Tag tone="wait">{policy}</Tag></h3>
    <dl>
      {base && <Field name="before"><ValueOf record={record} vid={base} /></Field>}
      {values.map(([author, vid]) => (
        <Field key={author} name={<>{record.step(author)?.node ?? author}{winner === author && <span class="k"> won</span>}</>}><Removed record={record} vid={vid} /></Field>
      ))}
      <Field name="merged"><Removed record={record} vid={value} /></Field>
    </dl>
  </div>
);

export function Changes({ record, step }) {
  const [wrote, more] = useFew(Object.entries(step.wrote));
  const [posts, morePosts] = useFew(step.posts);
  return (
    <>
      {step.conflicts.map((conflict) => <Conflict key={conflict.path.join("\n")} record={record} conflict={conflict} />)}
      {wrote.length > 0 && <dl class="card">{wrote.map(([name, one]) => <Boundary key={name} what={name}><Change {...{ record, step, name }} wrote={one} /></Boundary>)}</dl>}
      {more}
      {posts.length > 0 && <h3 class="over">Posted while it ran</h3>}
      {posts.length > 0 && (
        <dl class="card">
          {posts.map(({ seq, field, operation, at, value }) => (
            <Field key={seq} name={<>{field}<span class="k"> {operation}{at && step.started ? `, after ${duration(Math.max(0, at - step.started))}` : ""}</span></>}><ValueOf record={record} vid={value} /></Field>
          ))}
        </dl>
      )}
      {morePosts}
      {!wrote.length && !posts.length && !step.conflicts.length && <p class="soft">This step wrote nothing.</p>}
    </>
  );
}
