// The graph with the path taken: elements made here from the positions that the server sends.

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { count, plural } from "./format.js";
import { Empty } from "./parts.jsx";

// How often each node ran and each edge was taken, up to the selected step.
function taken(steps, until) {
  const nodes = new Map();
  const edges = new Map();
  const rows = until < 0 ? steps.count : Math.min(until + 1, steps.count);
  const add = (map, key) => map.set(key, (map.get(key) ?? 0) + 1);
  for (let i = 0; i < rows; i += 1) {
    const row = steps.at(i);
    if (!row || row.node.startsWith("join:")) continue;
    add(nodes, row.node);
    for (const target of row.route ?? []) add(edges, `${row.node}\n${target}`);
    if (row.route?.includes("END")) add(nodes, "END");
  }
  return { nodes, edges };
}

function Shape({ node }) {
  const { x, y, w, h, shape } = node;
  const [left, top] = [x - w / 2, y - h / 2];
  if (shape === "interrupt") {
    return <path d={`M${left} ${y} l12 ${-h / 2} h${w - 24} l12 ${h / 2} l-12 ${h / 2} h${24 - w} z`} class="box" />;
  }
  return (
    <>
      {shape === "map" && <rect x={left + 5} y={top + 5} width={w} height={h} rx="6" class="box" />}
      <rect x={left} y={top} width={w} height={h} rx={shape === "end" ? h / 2 : 7} class="box" />
      {shape === "subgraph" && <rect x={left + 4} y={top + 4} width={w - 8} height={h - 8} rx="4" class="inner" />}
    </>
  );
}

function GraphNode({ node, visits, current, failed, asks, onPick }) {
  const classes = ["gnode", visits || asks ? "ran" : "idle", current && "current", failed && "bad", asks && "asks"].filter(Boolean).join(" ");
  const facts = [node.word ? `${node.label} ${node.word}` : node.label, visits ? `ran ${plural(visits, "time")}` : "did not run", failed && "failed", asks && "waits for an answer"];
  const words = facts.filter(Boolean).join(", ");
  return (
    <g
      class={classes}
      data-node={node.name}
      role="button"
      tabIndex={0}
      aria-label={words}
      aria-pressed={Boolean(current)}
      onClick={onPick}
      onKeyDown={(event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        onPick();
      }}
    >
      <title>{node.label === node.name ? words : `${node.name}: ${words}`}</title>
      <Shape node={node} />
      <text x={node.x} y={node.word ? node.y - 3 : node.y + 4}>{node.label}</text>{" "}
      {node.word && <text x={node.x} y={node.y + 13} class="kind" aria-hidden="true">{node.word}</text>}
      {visits > 1 && (
        <g class="times" aria-hidden="true">
          <rect x={node.x + node.w / 2 - 12} y={node.y - node.h / 2 - 9} width={16 + 6.5 * count(visits).length} height="17" rx="8.5" />
          <text x={node.x + node.w / 2 - 4 + 3.25 * count(visits).length} y={node.y - node.h / 2 + 3.5}>×{count(visits)}</text>
        </g>
      )}
    </g>
  );
}

// A graph may be much wider than its view: the current node is brought into sight when another one is.
function useInSight(graph, name) {
  const ref = useRef(null);
  useLayoutEffect(() => {
    const node = graph?.nodes.find((one) => one.name === name);
    const box = ref.current?.getBoundingClientRect();
    const drawn = ref.current?.querySelector("svg").getBoundingClientRect();
    if (!node || !box) return;
    const [x, y] = [drawn.left - box.left + node.x, drawn.top - box.top + node.y];
    if (x - node.w / 2 < 0 || x + node.w / 2 > box.width) ref.current.scrollLeft += x - box.width / 2;
    if (y - node.h / 2 < 0 || y + node.h / 2 > box.height) ref.current.scrollTop += y - box.height / 2;
  }, [graph?.name, name]);
  return ref;
}

export function GraphView({ data, steps, entries, selected, onSelect }) {
  const { graph } = data;
  const [asOf, setAsOf] = useState(false);
  const [ready, setReady] = useState(steps.complete);
  useEffect(() => {
    let over = false;
    steps.all().then(() => over || setReady(true));
    return () => {
      over = true;
    };
  }, [steps.count]);
  const entry = selected >= 0 ? entries.at(selected) : null;
  const at = entry?.row?.node ?? entry?.failure?.node ?? entry?.question?.node;
  const current = at?.replace(/^join:/, "");
  const canvas = useInSight(graph, current);
  if (!graph) return <Empty><p>The store has no picture of this graph: the run was made by an older version.</p></Empty>;
  const path = taken(steps, asOf ? selected : -1);
  const failed = new Set((data.failures ?? []).map((failure) => failure.node));
  const asking = new Set((data.questions ?? []).map((question) => question.node));
  const pick = (name) => () => {
    const end = entries.ends.findIndex((one) => (one.failure ?? one.question).node === name);
    if (end >= 0) return onSelect(steps.count + end);
    const before = current === name && entry?.row ? selected - 1 : steps.count - 1;
    const find = (from) => {
      for (let i = from; i >= 0; i -= 1) if (steps.at(i)?.node === name) return i;
      return -1;
    };
    let i = find(before);
    if (i < 0) i = find(steps.count - 1); // round again from its last visit
    return i >= 0 ? onSelect(i) : undefined;
  };
  return (
    <div class="graphview">
      <div class="listbar">
        <span class="quiet">Bold: the path taken. A node leads to its last visit.</span>
        <label class="check">
          <input type="checkbox" checked={asOf} onChange={(event) => setAsOf(event.target.checked)} /> Up to the selected step
        </label>
      </div>
      <div class="canvas" ref={canvas} aria-busy={!ready} tabIndex={0} role="group" aria-label={`Graph ${graph.name ?? data.info.graph}`}>
        <svg width={graph.width} height={graph.height} viewBox={`0 0 ${graph.width} ${graph.height}`}>
          <defs>
            <marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto-start-reverse">
              <path d="M0 0.8 L7.5 4 L0 7.2 z" class="tip" />
            </marker>
          </defs>
          {graph.edges.map((edge) => {
            const times = path.edges.get(`${edge.source}\n${edge.target}`) ?? 0;
            const classes = ["edge", edge.back && "back", edge.on_error && "error", times ? "taken" : "idle"].filter(Boolean).join(" ");
            return (
              <g key={`${edge.source}\n${edge.target}`}>
                <path d={edge.path} class={classes} marker-end="url(#tip)">
                  <title>{`${edge.source} to ${edge.target}${edge.on_error ? ", after a failure" : ""}${edge.back ? ", the next round" : ""}: ${times ? `taken ${plural(times, "time")}` : "not taken"}`}</title>
                </path>
                {edge.label && edge.x != null && (
                  <text x={edge.x} y={edge.y + 4} class={`elabel ${times ? "taken" : "idle"}`} text-anchor={edge.anchor ?? "middle"}>
                    <title>{edge.whole ?? edge.label}</title>
                    {edge.label}
                  </text>
                )}
              </g>
            );
          })}
          {graph.nodes.map((node) => (
            <GraphNode
              key={node.name}
              node={node}
              visits={path.nodes.get(node.name) ?? 0}
              current={node.name === current}
              failed={failed.has(node.name)}
              asks={asking.has(node.name)}
              onPick={pick(node.name)}
            />
          ))}
        </svg>
      </div>
    </div>
  );
}
