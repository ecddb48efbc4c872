// Live fields over time: who posted what and when.

import { useMemo } from "preact/hooks";
import { epoch, plural, seconds } from "./format.js";
import { useAnswer } from "./hooks.js";
import { Empty } from "./parts.jsx";
import { Source, Value } from "./value.jsx";

const MOST = 400;

export function LiveView({ thread, run, data, onShow }) {
  const { data: answer, error } = useAnswer("posts", { thread, run }, data.count);
  const posts = answer?.items ?? [];
  const fields = useMemo(() => {
    const found = new Map((data.fields ?? []).filter((field) => field.live).map((field) => [field.name, []]));
    for (const post of posts) {
      if (!found.has(post.field)) found.set(post.field, []);
      found.get(post.field).push(post);
    }
    return [...found];
  }, [posts]);
  if (error) return <Empty><p>{error.message}</p></Empty>;
  if (!answer) return <div class="waiting" aria-busy="true" />;
  if (!posts.length) return <Empty><p>No node has posted to a live field yet.</p></Empty>;
  const times = posts.map((post) => epoch(post.time)).filter((time) => time != null);
  const from = Math.min(...times);
  const width = Math.max(Math.max(...times) - from, 0.001);
  const shown = posts.slice(-MOST);
  return (
    <div class="liveview">
      <div class="lanes">
        {fields.map(([name, found]) => (
          <div class="lane" key={name}>
            <span class="key">{name}</span>
            <span class="quiet num">{plural(found.length, "post")}</span>
            <span class="track" aria-hidden="true">
              {found.slice(-MOST).map((post) => (
                <span
                  key={post.seq}
                  class="dot"
                  title={`${post.node}, ${seconds(epoch(post.time) - from)}`}
                  style={{ left: `${((epoch(post.time) - from) / width) * 100}%` }}
                />
              ))}
            </span>
          </div>
        ))}
      </div>
      {shown.length < posts.length && <p class="note">The last {plural(shown.length, "post")} of {posts.length}.</p>}
      <ol class="posts">
        {shown.map((post) => (
          <li key={post.seq}>
            <span class="num quiet">{seconds(epoch(post.time) - from)}</span>
            <span class="key">{post.field}</span>
            <button type="button" class="link" onClick={() => onShow(post.execution)}>{post.node}</button>
            <span class="quiet">{post.operation}</span>
            <span class="said">
              <Source.Provider value={{ of: "posts", thread, run }}><Value value={post.value} open={false} /></Source.Provider>
            </span>
          </li>
        ))}
      </ol>
    </div>
  );
}
