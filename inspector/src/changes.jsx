// What a step wrote, field by field, against what stood there before; the conflicts of a join; posts to live fields.

import { Diff } from "./diff.jsx";
import { duration } from "./format.js";
import { Boundary, Tag, useFew } from "./parts.jsx";
import { useValues } from "./record.js";
import { ValueOf } from "./value.jsx";

function Change({ record, name, before, wrote }) {
  const ids = [before?.value, wrote.value].filter(Boolean);
  const values = useValues(record, ids);
  const author = wrote.by ? record.step(wrote.by) : null;
  const there = ids.every((id) => values.get(id) !== undefined);
  const note = wrote.value === null ? "removed" : before === undefined ? "new" : before.value === wrote.value ? "same value" : null;
  return (
    <div class="field">
      <dt>{name}{note && <span class="k"> {note}</span>}{author && <span class="k by">by {author.node}</span>}</dt>
      <dd aria-busy={!there}>
        {!there ? <span class="soft">…</span> : <Diff before={before && values.get(before.value)} after={wrote.value === null ? undefined : values.get(wrote.value)} />}
      </dd>
    </div>
  );
}

function Conflict({ record, conflict }) {
  return (
    <div class="card conflict">
      <h3>{conflict.path.join(".")} <Tag tone="wait">{conflict.policy}</Tag></h3>
      <dl>
        {conflict.base && <div class="field"><dt>before</dt><dd><ValueOf record={record} vid={conflict.base} /></dd></div>}
        {conflict.values.map(([author, vid]) => (
          <div class="field" key={author}>
            <dt>{record.step(author)?.node ?? author}{conflict.winner === author && <span class="k"> won</span>}</dt>
            <dd>{vid ? <ValueOf record={record} vid={vid} /> : <span class="soft">removed it</span>}</dd>
          </div>
        ))}
        <div class="field"><dt>merged</dt><dd>{conflict.value ? <ValueOf record={record} vid={conflict.value} /> : <span class="soft">removed</span>}</dd></div>
      </dl>
    </div>
  );
}

function Post({ record, step, post }) {
  return (
    <div class="field">
      <dt>{post.field}<span class="k"> {post.operation}{post.at && step.started ? `, after ${duration(Math.max(0, post.at - step.started))}` : ""}</span></dt>
      <dd>{post.value ? <ValueOf record={record} vid={post.value} /> : <span class="soft">no value</span>}</dd>
    </div>
  );
}

export function Changes({ record, step }) {
  const before = record.before(step.id);
  const [wrote, more] = useFew(Object.entries(step.wrote));
  const [posts, morePosts] = useFew(step.posts);
  return (
    <>
      {step.conflicts.map((conflict) => <Conflict key={conflict.path.join("\n")} record={record} conflict={conflict} />)}
      {wrote.length > 0 && (
        <dl class="card">
          {wrote.map(([name, one]) => <Boundary key={name} what={name}><Change record={record} name={name} before={before.get(name)} wrote={one} /></Boundary>)}
        </dl>
      )}
      {more}
      {posts.length > 0 && (
        <>
          <h3 class="over">Posted while it ran</h3>
          <dl class="card">{posts.map((post) => <Post key={post.seq} record={record} step={step} post={post} />)}</dl>
          {morePosts}
        </>
      )}
      {!wrote.length && !posts.length && !step.conflicts.length && <p class="soft">{step.status === "done" ? "This step wrote nothing." : "This step has written nothing."}</p>}
    </>
  );
}
