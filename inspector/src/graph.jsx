// The graph that a step is part of, with the path taken: elements made here from the positions in the record.

import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { count, plural } from "./format.js";
import { Button, hue } from "./parts.jsx";
import { useWidth } from "./strip.jsx";

const KINDS = { subgraph: "graph", interrupt: "question", end: "start" };

// How often each node ran, each edge was taken, and the last step of each node, among the steps right inside of one.
function taken(steps) {
  const [nodes, edges, last] = [new Map(), new Map(), new Map()];
  const add = (map, key) => map.set(key, (map.get(key) ?? 0) + 1);
  for (const step of steps) {
    if (step.kind === "join" || step.kind === "edit") continue;
    if (step.status !== "stopped") add(nodes, step.node);
    last.set(step.node, step);
    for (const target of step.to) add(edges, `${step.node}\n${target}`);
    if (step.to.includes("END")) add(nodes, "END");
  }
  return { nodes, edges, last };
}

function Shape({ node }) {
  const { x, y, w, h, shape } = node;
  const [left, top] = [x - w / 2, y - h / 2];
  if (shape === "interrupt") return <path d={`M${left} ${y} l12 ${-h / 2} h${w - 24} l12 ${h / 2} l-12 ${h / 2} h${24 - w} z`} class="box" />;
  return (
    <>
      {shape === "map" && <rect x={left + 5} y={top + 5} width={w} height={h} rx="6" class="box" />}
      <rect x={left} y={top} width={w} height={h} rx={shape === "end" ? h / 2 : 7} class="box" />
      {shape === "subgraph" && <rect x={left + 4} y={top + 4} width={w - 8} height={h - 8} rx="4" class="inner" />}
    </>
  );
}

function GraphNode({ node, kind, visits, step, current, onPick, onOpen }) {
  const state = { failed: "bad", waiting: "asks", running: "runs" }[step?.status];
  const classes = ["gnode", visits ? "ran" : "idle", current && "current", state].filter(Boolean).join(" ");
  const facts = [node.word ? `${node.label} ${node.word}` : node.label, visits ? `ran ${plural(visits, "time")}` : "did not run", step?.status !== "done" && step?.status];
  const words = facts.filter(Boolean).join(", ");
  const right = node.x + node.w / 2;
  const pressed = (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    onPick();
  };
  return (
    <g class={classes} style={{ color: hue(kind) }}>
      <g data-node={node.name} role="button" tabindex={0} aria-label={words} aria-pressed={Boolean(current)} onClick={onPick} onKeyDown={pressed} onDblClick={onOpen}>
        <title>{node.label === node.name ? words : `${node.name}: ${words}`}</title>
        <Shape node={node} />
        <text x={node.x} y={node.word ? node.y - 3 : node.y + 4}>{node.label}</text>{" "}
        {node.word && <text x={node.x} y={node.y + 13} class="word" aria-hidden="true">{node.word}</text>}
      </g>
      {visits > 1 && (
        <g class="times" aria-hidden="true">
          <rect x={right - 12} y={node.y - node.h / 2 - 9} width={16 + 6.5 * count(visits).length} height="17" rx="8.5" />
          <text x={right - 4 + 3.25 * count(visits).length} y={node.y - node.h / 2 + 3.5}>×{count(visits)}</text>
        </g>
      )}
      {onOpen && (
        <g
          class="opens"
          role="button"
          tabindex={0}
          aria-label={`Open the graph of ${node.name}`}
          onClick={onOpen}
          onKeyDown={(event) => event.key === "Enter" && onOpen()}
        >
          <title>Open its graph</title>
          <circle cx={right} cy={node.y + node.h / 2} r="8.5" />
          <path d={`M${right - 4} ${node.y + node.h / 2}h8m-4 -4v8`} />
        </g>
      )}
    </g>
  );
}

function Edge({ edge, times }) {
  const classes = ["edge", edge.back && "back", edge.on_error && "error", times ? "taken" : "idle"].filter(Boolean).join(" ");
  const words = `${edge.source} to ${edge.target}${edge.on_error ? ", after a failure" : ""}${edge.back ? ", the next round" : ""}: ${times ? `taken ${plural(times, "time")}` : "not taken"}`;
  return (
    <g>
      <path d={edge.path} class={classes} marker-end={times ? "url(#tip-on)" : "url(#tip)"}><title>{words}</title></path>
      {edge.label && edge.x != null && (
        <text x={edge.x} y={edge.y + 4} class={`elabel ${times ? "taken" : "idle"}`} text-anchor={edge.anchor ?? "middle"}>
          <title>{edge.whole ?? edge.label}</title>
          {edge.label}
        </text>
      )}
    </g>
  );
}

const Tip = ({ id, on }) => (
  <marker id={id} viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" markerUnits="userSpaceOnUse" orient="auto-start-reverse">
    <path d="M0 0.8 L7.5 4 L0 7.2 z" class={on ? "tiphead on" : "tiphead"} />
  </marker>
);

export function GraphView({ record, step, onSelect }) {
  const [ref, width] = useWidth();
  const [inside, setInside] = useState(null); // the step of which the graph inside is shown, if another
  const [zoom, setZoom] = useState(null);
  const around = inside ?? step.parent;
  const path = around === null ? "" : record.inner(around);
  const graph = record.graph(path);
  const drawing = graph?.drawing;
  const way = useMemo(() => taken(record.inside(around)), [record, around]);
  const kinds = useMemo(() => new Map((graph?.nodes ?? []).map(({ name, kind }) => [name, kind])), [graph]);
  const current = around === step.parent ? step.node.replace(/^join:/, "") : null;
  const fits = drawing && width ? Math.min(1, Math.max(0.4, (width - 24) / drawing.width)) : 1;
  const scale = zoom ?? fits;
  useLayoutEffect(() => {
    const node = drawing?.nodes.find((one) => one.name === current);
    const box = ref.current;
    if (!node || !box) return;
    box.scrollLeft = node.x * scale - box.clientWidth / 2;
    box.scrollTop = node.y * scale - box.clientHeight / 2;
  }, [drawing, current, width, scale]);
  const trail = inside ? [...record.around(inside).map((one) => one.id), inside] : [];
  const open = (name) => {
    const last = way.last.get(name);
    if (!last || !record.inside(last.id).length || !record.graph(record.inner(last.id))?.drawing) return undefined;
    return () => {
      setInside(last.id);
      setZoom(null);
    };
  };
  const pick = (name) => () => {
    const steps = record.inside(around).filter((one) => one.node === name);
    const before = steps.findLastIndex((one) => one.id === step.id);
    const target = before > 0 ? steps[before - 1] : steps.at(-1); // round again from its last visit
    if (target && target.id !== step.id) onSelect(target.id);
  };
  return (
    <div class="graphview">
      <div class="graphbar">
        {trail.length > 0 && <Button small onClick={() => setInside(null)}>{record.graph("")?.name ?? record.run.graph}</Button>}
        {trail.map((id) => <span key={id}><span class="faint"> / </span><b>{record.step(id).node}</b></span>)}
        {!trail.length && <span class="soft">A node leads to its last visit.</span>}
        <span class="grow" />
        <Button small aria-label="Smaller" onClick={() => setZoom(Math.max(0.15, scale / 1.25))}>−</Button>
        <Button small onClick={() => setZoom(null)}>{Math.round(scale * 100)} %</Button>
        <Button small aria-label="Larger" onClick={() => setZoom(Math.min(3, scale * 1.25))}>+</Button>
      </div>
      <div class="canvas card" ref={ref} tabIndex={0} role="group" aria-label={`Graph ${graph?.name ?? ""}`}>
        {drawing ? (
          <svg width={drawing.width * scale} height={drawing.height * scale} viewBox={`0 0 ${drawing.width} ${drawing.height}`}>
            <defs><Tip id="tip" /><Tip id="tip-on" on /></defs>
            {drawing.edges.map((edge) => <Edge key={`${edge.source}\n${edge.target}`} edge={edge} times={way.edges.get(`${edge.source}\n${edge.target}`) ?? 0} />)}
            {drawing.nodes.map((node) => (
              <GraphNode
                key={node.name}
                node={node}
                kind={kinds.get(node.name) ?? KINDS[node.shape] ?? node.shape}
                visits={way.nodes.get(node.name) ?? 0}
                step={way.last.get(node.name)}
                current={node.name === current}
                onPick={pick(node.name)}
                onOpen={open(node.name)}
              />
            ))}
          </svg>
        ) : <p class="empty">The store has no picture of this graph.</p>}
      </div>
    </div>
  );
}
