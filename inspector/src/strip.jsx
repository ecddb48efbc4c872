// The whole run as nested bars over time. Dragging zooms, a click selects, what waited is folded.

import { useMemo, useRef, useState } from "preact/hooks";
import { duration } from "./format.js";
import { useKeys, useWidth } from "./hooks.js";
import { isBookkeeping, nameOf } from "./names.js";
import { hue } from "./parts.jsx";
import { isOwn, scale, span, times, worked } from "./times.js";

const [TOP, LANE, HIGH] = [17, 14, 11];
const THIN = 3; // bars that are narrower are drawn as one shape
const ROUND = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21_600, 86_400];

// The bars in sight: {step, lane, a, b}, in pixels. Steps that overlap go to lanes below.
function layout(record, all, x, width, most, now) {
  const ends = [];
  const bars = [];
  const [from, to] = x.view;
  const slack = Math.max(0.0015, (0.5 * (to - from)) / width);
  const draw = (step, above) => {
    if (!isOwn(record, step) || (step.kind === "start" && step.parent === null) || isBookkeeping(record, step)) return;
    const when = span(record, step, now);
    if (!when) return;
    let lane = above;
    while (lane < most && (ends[lane] ?? -Infinity) > when.from + slack) lane += 1;
    if (lane >= most) return;
    ends[lane] = when.till;
    const [a, b] = [x(when.from), x(when.till)];
    if (b >= -2 && a <= width + 2) bars.push({ step, lane, a: Math.max(a, -4), b: Math.min(Math.max(b, a + 2), width + 4) });
    for (const inner of record.inside(step.id)) draw(inner, lane + 1);
  };
  for (const step of record.inside(null)) draw(step, 0);
  return bars;
}

const isBad = (step) => step.failed.length > 0 || step.status === "failed" || step.status === "unreadable";

function Bar({ bar, selected, folds, took }) {
  const { step, lane, a, b } = bar;
  const [y, wide] = [TOP + lane * LANE, Math.max(1.5, b - a - 1.5)];
  const name = nameOf(step);
  const strong = step.parent === null || selected;
  const classes = ["sbar", strong && "strong", selected && "on", step.status === "running" && "runs"].filter(Boolean).join(" ");
  const under = folds.find((fold) => a >= fold.x - 30 && a < fold.x + fold.width && b > fold.x + fold.width);
  const from = under ? under.x + under.width : Math.max(a, 0);
  return (
    <g class={classes}>
      <title>{name}{step.visit > 1 ? ` ×${step.visit}` : ""} · {took}</title>
      <rect x={a} y={y} width={wide} height={HIGH} rx="3" fill={hue(step.kind)} />
      {isBad(step) && <rect x={a} y={y} width="3" height={HIGH} rx="1" fill="var(--bad)" />}
      {b - from > name.length * 6.4 + 14 && <text x={from + 6} y={y + 8.8}>{name}</text>}
    </g>
  );
}

// The clock goes on in what is folded: a mark stands at each round moment since the start in which somebody worked.
function Ticks({ all, x, width, height }) {
  const [a, b] = x.view;
  const every = ROUND.find((step) => (b - a) / step <= width / 90) ?? 7 * 86_400;
  const ticks = [];
  let [begun, work] = [all.from, 0];
  for (const fold of [...all.folds, { from: all.till, till: all.till }]) {
    const from = begun + Math.max(0, a - work);
    const till = Math.min(fold.from, begun + b - work);
    for (let n = Math.ceil((from - all.from) / every - 1e-9); all.from + n * every <= till + 1e-9; n += 1) {
      const at = x(all.from + n * every);
      if (x.folds.some((one) => at > one.x - 74 && at < one.x + one.width + 46)) continue;
      const label = n === 0 ? "0" : every < 0.1 && n * every >= 1 ? `${(n * every).toFixed(every < 0.01 ? 3 : 2)} s` : duration(n * every);
      ticks.push(<g key={n}><line x1={at} x2={at} y1="14" y2={height} class="grid" /><text x={Math.min(at, width - 34)} y="10" class="tick">{label}</text></g>);
    }
    work += fold.from - begun;
    begun = fold.till;
  }
  return ticks;
}

export function Strip({ record, selected, onSelect, now, lanes = 5 }) {
  const [ref, width] = useWidth();
  const [view, setView] = useState(null);
  const [drag, show] = useState(null);
  const dragged = useRef(null); // at once: a pointer may move and be lifted before the page is drawn again
  const setDrag = (value) => show((dragged.current = value));
  const all = times(record, now);
  const x = useMemo(() => scale(all, Math.max(width, 50), view), [all, width, view]);
  const bars = useMemo(() => (width ? layout(record, all, x, width, lanes, now) : []), [record, x, width, lanes, all]);
  // It never gets lower, and has all lanes at once while the run goes on: nothing below it moves.
  const used = useRef(1);
  used.current = Math.min(lanes, Math.max(used.current, record.run.status === "running" ? lanes : 1 + bars.reduce((most, bar) => Math.max(most, bar.lane), 0)));
  const height = TOP + LANE * used.current;
  // Narrow bars of one lane and colour are one shape, in which those of the same pixel are one.
  const [wide, thin] = useMemo(() => {
    const isWide = (bar) => bar.b - bar.a >= THIN + 1 || bar.step.status === "running";
    const narrow = Map.groupBy(bars.filter((bar) => !isWide(bar)), ({ step, lane }) => `${lane} ${isBad(step) ? "var(--bad)" : hue(step.kind)}`);
    const shape = (ones) => [...new Set(ones.map((bar) => Math.round(bar.a)))].map((left) => `M${left} ${TOP + ones[0].lane * LANE}h2v${HIGH}h-2z`).join("");
    return [bars.filter(isWide), [...narrow].map(([key, ones]) => ({ key, d: shape(ones), top: ones[0].lane === 0, fill: key.slice(2) }))];
  }, [bars]);
  const at = (event) => event.clientX - ref.current.getBoundingClientRect().left;
  const hit = (event) => {
    const box = ref.current.getBoundingClientRect();
    const [px, lane] = [event.clientX - box.left, Math.floor((event.clientY - box.top - TOP) / LANE)];
    const off = (bar) => Math.max(bar.a - px, px - bar.b, 0);
    const near = bars.filter((bar) => bar.lane === lane && off(bar) < 4);
    return near.reduce((best, bar) => (best && off(best) <= off(bar) ? best : bar), null)?.step ?? null;
  };
  const down = (event) => {
    if (event.button !== 0 || event.target.closest("button")) return;
    event.currentTarget.setPointerCapture(event.pointerId);
    setDrag({ from: at(event), to: at(event) });
  };
  const move = (event) => dragged.current && setDrag({ ...dragged.current, to: at(event) });
  const up = (event) => {
    if (!dragged.current) return undefined;
    const [a, b] = [dragged.current.from, dragged.current.to].sort((one, other) => one - other);
    setDrag(null);
    if (b - a < 5) return hit(event) && onSelect(hit(event).id);
    const [from, to] = [Math.max(0, x.back(a)), Math.min(all.work, x.back(b))];
    if (to - from > 1e-5) setView([from, to]);
    return undefined;
  };
  useKeys({
    z: () => {
      const when = selected && span(record, record.step(selected), now);
      if (view || !when) return setView(null);
      const [from, to] = [when.from, when.till].map((time) => worked(all, all.from, Math.max(all.from, time)));
      return to - from > 1e-5 && setView([from, to]);
    },
  });
  const durationOf = (step) => {
    const { from, till } = span(record, step, now);
    return duration(till - from);
  };
  const thinOn = bars.find((bar) => bar.step.id === selected && bar.b - bar.a < THIN + 1);
  return (
    <div class="strip" onPointerDown={down} onPointerMove={move} onPointerUp={up} onPointerCancel={() => setDrag(null)} onDblClick={() => setView(null)}>
      <div ref={ref} class="stripbox" style={{ height: `${height + 3}px` }}>
        {width > 0 && all.till > all.from && (
          <svg width={width} height={height + 3} role="img" aria-label={`The run over time: ${duration(all.work)} of work`}>
            <defs>
              <pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
                <rect width="6" height="6" fill="var(--waitbg)" />
                <line x1="0" x2="0" y1="0" y2="6" stroke="var(--wait)" stroke-width="1.4" opacity="0.5" />
              </pattern>
            </defs>
            <Ticks all={all} x={x} width={width} height={height} />
            {thin.map(({ key, d, top, fill }) => <path key={key} d={d} fill={fill} class={top ? "sthin strong" : "sthin"} />)}
            {wide.map((bar) => <Bar key={bar.step.id} bar={bar} selected={bar.step.id === selected} folds={x.folds} took={durationOf(bar.step)} />)}
            {x.folds.map((fold) => (
              <g key={fold.from} class="fold">
                <rect x={fold.x + 1} y="14" width={Math.max(1, fold.width - 2)} height={height - 13} rx="3" fill="url(#hatch)" />
                {fold.width > 12 && <text x={fold.open ? width : Math.min(Math.max(fold.x + fold.width / 2, 42), width - 42)} y="10" style={{ textAnchor: fold.open ? "end" : "middle" }}>{fold.open ? "waits" : `${fold.asked ? "waited" : "paused"} ${duration(fold.till - fold.from)}`}</text>}
              </g>
            ))}
            {thinOn && <rect x={thinOn.a - 1} y={TOP + thinOn.lane * LANE - 1.5} width="4" height={HIGH + 3} rx="1.5" fill="var(--accent)" />}
            {drag && <rect class="drag" x={Math.min(drag.from, drag.to)} y="0" width={Math.abs(drag.to - drag.from)} height={height + 3} />}
          </svg>
        )}
      </div>
      {view && <button type="button" class="btn small unzoom" onClick={() => setView(null)}>Whole run</button>}
    </div>
  );
}
