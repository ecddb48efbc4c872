// The graph that a step is part of, with the path taken: elements made here from the positions in the record.

import { useLayoutEffect, useMemo, useState } from "preact/hooks";
import { count, plural } from "./format.js";
import { useWidth } from "./hooks.js";
import { Button, hue } from "./parts.jsx";
import { unfolded } from "./unfolded.js";

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

function GraphNode({ node, kind, visits, step, current, onPick, onOpen, children }) {
  const state = { failed: "bad", waiting: "asks", running: "runs" }[step?.status];
  const classes = ["gnode", visits ? "ran" : "idle", current && "current", state, node.inside && "open"].filter(Boolean).join(" ");
  const words = [[node.label, node.word].filter(Boolean).join(" "), visits ? `ran ${plural(visits, "time")}` : "did not run", step?.status !== "done" && step?.status].filter(Boolean).join(", ");
  const [left, top, right] = [node.x - node.w / 2, node.y - node.h / 2, node.x + node.w / 2];
  const pressed = (act) => (event) => (event.key === "Enter" || event.key === " ") && (event.preventDefault(), act());
  return (
    <g class={classes} style={{ color: hue(kind) }}>
      <g data-node={node.name} role="button" tabindex={0} aria-label={words} aria-pressed={Boolean(current)} onClick={onPick} onKeyDown={pressed(onPick)} onDblClick={onOpen}>
        <title>{node.label === node.name ? words : `${node.name}: ${words}`}</title>
        {node.inside ? <rect x={left} y={top} width={node.w} height={node.h} rx="10" class="box" /> : <Shape node={node} />}
        <text x={node.x} y={node.inside ? top + 17 : node.word ? node.y - 3 : node.y + 4}>{node.label}</text>{" "}
        {node.word && !node.inside && <text x={node.x} y={node.y + 13} class="word" aria-hidden="true">{node.word}</text>}
      </g>
      {children}
      {visits > 1 && (
        <g class="times" aria-hidden="true"><rect x={right - 12} y={top - 9} width={16 + 6.5 * count(visits).length} height="17" rx="8.5" /><text x={right - 4 + 3.25 * count(visits).length} y={top + 3.5}>×{count(visits)}</text></g>
      )}
      {onOpen && (
        <g class="opens" role="button" tabindex={0} aria-expanded={Boolean(node.inside)} aria-label={`${node.inside ? "Close" : "Open"} the graph of ${node.name}`} onClick={onOpen} onKeyDown={pressed(onOpen)}>
          <title>{node.inside ? "Close its graph" : "Open its graph"}</title>
          <circle cx={right} cy={node.y + node.h / 2} r="8.5" />
          <path d={`M${right - 4} ${node.y + node.h / 2}h8${node.inside ? "" : "m-4 -4v8"}`} />
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
        <text x={edge.x} y={edge.y + 4} class={`elabel ${times ? "taken" : "idle"}`} text-anchor={edge.anchor ?? "middle"}><title>{edge.whole ?? edge.label}</title>{edge.label}</text>
      )}
    </g>
  );
}

const Tip = ({ id, on }) => (
  <marker id={id} viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" markerUnits="userSpaceOnUse" orient="auto-start-reverse"><path d="M0 0.8 L7.5 4 L0 7.2 z" class={on ? "tiphead on" : "tiphead"} /></marker>
);

// What is drawn of the graph right inside of a step: {drawing, way, around}; of each node, the step that it stands for.
function layout(record, around, selected, isOpen) {
  const graph = record.graph(around === null ? "" : record.inner(around));
  if (!graph?.drawing) return null;
  const way = taken(record.inside(around));
  for (const one of [...record.around(selected.id), selected]) if (way.last.has(one.node) && (one.parent ?? null) === around) way.last.set(one.node, one);
  const [inner, opens] = [new Map(), new Map()];
  for (const [name, step] of way.last) {
    const inside = insideOf(record, step, selected);
    if (inside === null || !record.graph(record.inner(inside))?.drawing) continue;
    opens.set(name, step.id);
    const found = isOpen(step.id) && layout(record, inside, selected, isOpen);
    if (found) inner.set(name, found);
  }
  const drawing = unfolded(graph.drawing, new Map([...inner].map(([name, found]) => [name, found.drawing])));
  return { graph, drawing, way, around, inner, opens, kinds: new Map(graph.nodes.map(({ name, kind }) => [name, kind])) };
}

// The step of which the steps are shown inside of a node: of a map, an item.
function insideOf(record, step, selected) {
  const inside = record.inside(step.id);
  if (!inside.some((one) => one.kind === "item" || one.kind === "trial")) return inside.length ? step.id : null;
  const path = new Set([...record.around(selected.id).map((one) => one.id), selected.id]);
  return (inside.find((one) => path.has(one.id) && record.inside(one.id).length) ?? inside.find((one) => record.inside(one.id).length))?.id ?? null;
}

function Layer({ record, found, step, onSelect, onOpen }) {
  const { drawing, way, around, inner, opens, kinds } = found;
  const pick = (name) => () => {
    const steps = record.inside(around).filter((one) => one.node === name);
    const at = steps.findIndex((one) => one.id === step.id);
    const target = at > 0 ? steps[at - 1] : steps.at(-1); // round again from its last visit
    if (target && target.id !== step.id) onSelect(target.id);
  };
  return (
    <>
      {drawing.edges.map((edge) => <Edge key={`${edge.source}\n${edge.target}`} edge={edge} times={way.edges.get(`${edge.source}\n${edge.target}`) ?? 0} />)}
      {drawing.nodes.map((node) => (
        <GraphNode
          key={node.name} {...{ node, visits: way.nodes.get(node.name) ?? 0, step: way.last.get(node.name), onPick: pick(node.name) }}
          kind={kinds.get(node.name) ?? KINDS[node.shape] ?? node.shape}
          current={step.parent === around && node.name === step.node.replace(/^join:/, "")}
          onOpen={opens.has(node.name) ? () => onOpen(opens.get(node.name)) : undefined}
        >
          {inner.has(node.name) && (
            <g transform={`translate(${node.x - inner.get(node.name).drawing.width / 2} ${node.y - node.h / 2 + 24})`}>
              <Layer record={record} found={inner.get(node.name)} step={step} onSelect={onSelect} onOpen={onOpen} />
            </g>
          )}
        </GraphNode>
      ))}
    </>
  );
}

export function GraphView({ record, step, onSelect }) {
  const [ref, width] = useWidth();
  const [zoom, setZoom] = useState(null);
  const [toggled, setToggled] = useState(() => new Map());
  const around = useMemo(() => new Set(record.around(step.id).map((one) => one.id)), [record, step]);
  const isOpen = (id) => toggled.get(id) ?? around.has(id); // the graphs around what is selected are open
  const found = useMemo(() => layout(record, null, step, isOpen), [record, step, toggled]);
  const size = found?.drawing;
  const fits = size && width ? Math.min(1, Math.max(0.45, (width - 26) / size.width)) : 1;
  const scale = zoom ?? fits;
  useLayoutEffect(() => {
    const [box, node] = [ref.current, ref.current?.querySelector(".gnode.current .box")];
    if (!node) return;
    const [outer, at] = [box.getBoundingClientRect(), node.getBoundingClientRect()];
    box.scrollLeft += (at.left + at.right) / 2 - (outer.left + outer.right) / 2;
    if (at.bottom > outer.bottom || at.top < outer.top) box.scrollTop += (at.top + at.bottom) / 2 - (outer.top + outer.bottom) / 2;
  }, [found === null, step.id, width, scale]);
  if (!found) return <p class="soft">The store has no picture of this graph.</p>;
  return (
    <div class="graphview">
      <div class="graphbar">
        <span class="soft">A node leads to its last visit.</span>
        <span class="grow" />
        <Button small aria-label="Smaller" onClick={() => setZoom(Math.max(0.15, scale / 1.25))}>−</Button>
        <Button small onClick={() => setZoom(null)} aria-label={`${Math.round(scale * 100)} %: fit it`}>{Math.round(scale * 100)} %</Button>
        <Button small aria-label="Larger" onClick={() => setZoom(Math.min(3, scale * 1.25))}>+</Button>
      </div>
      <div class="canvas card" ref={ref} tabIndex={0} role="group" aria-label={`Graph ${found.graph.name ?? ""}`}>
        <svg width={size.width * scale} height={size.height * scale} viewBox={`0 0 ${size.width} ${size.height}`}>
          <defs><Tip id="tip" /><Tip id="tip-on" on /></defs>
          <Layer record={record} found={found} step={step} onSelect={onSelect} onOpen={(id) => setToggled((old) => new Map(old).set(id, !isOpen(id)))} />
        </svg>
      </div>
    </div>
  );
}
