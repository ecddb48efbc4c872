// A list of which only the rows in sight are elements: 100,000 rows scroll like 20.

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

const HEAD = 26; // pixels of the head, which stays in sight
const OVER = 8; // rows above and below those in sight

export function VirtualList({ label, size, rowHeight, selected, onSelect, onOpen, render, onRange, head, stick }) {
  const ref = useRef(null);
  const [view, setView] = useState({ top: 0, height: 600 });
  const placed = useRef(null);
  const atEnd = useRef(true);
  const seen = () => {
    const el = ref.current;
    if (!el) return;
    atEnd.current = el.scrollTop + el.clientHeight >= el.scrollHeight - rowHeight;
    setView((old) => (old.top === el.scrollTop && old.height === el.clientHeight ? old : { top: el.scrollTop, height: el.clientHeight }));
  };
  useLayoutEffect(() => {
    seen();
    const watcher = new ResizeObserver(seen);
    watcher.observe(ref.current);
    return () => watcher.disconnect();
  }, []);
  // The selected row is brought into sight when another one is selected, not while the reader scrolls.
  useLayoutEffect(() => {
    const el = ref.current;
    if (selected < 0 || selected >= size || placed.current === selected) return;
    const [top, first] = [selected * rowHeight, placed.current === null];
    if (first) el.scrollTop = top - el.clientHeight + rowHeight * 3;
    else if (top < el.scrollTop) el.scrollTop = top;
    else if (top + rowHeight + HEAD > el.scrollTop + el.clientHeight) el.scrollTop = top + rowHeight + HEAD - el.clientHeight;
    placed.current = selected;
    seen();
  }, [selected, size]);
  useLayoutEffect(() => {
    if (stick && atEnd.current) ref.current.scrollTop = ref.current.scrollHeight;
    seen();
  }, [size]);
  const from = Math.max(0, Math.floor(view.top / rowHeight) - OVER);
  const to = Math.min(size, Math.ceil((view.top + view.height) / rowHeight) + OVER);
  useEffect(() => onRange?.(from, to), [from, to, size]);
  const pressed = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const page = Math.max(1, Math.floor(view.height / rowHeight) - 1);
    const moves = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: page, PageUp: -page };
    if (event.key in moves) onSelect(Math.max(0, Math.min(size - 1, selected < 0 ? 0 : selected + moves[event.key])));
    else if (event.key === "Home") onSelect(0);
    else if (event.key === "End") onSelect(size - 1);
    else if (event.key === "Enter") onOpen?.(selected);
    else return;
    event.preventDefault();
  };
  const rows = [];
  for (let i = from; i < to; i += 1) {
    rows.push(
      <div
        key={i}
        id={`row-${i}`}
        role="row"
        aria-rowindex={i + 1}
        aria-selected={i === selected}
        class="vrow"
        style={{ transform: `translateY(${i * rowHeight}px)`, height: `${rowHeight}px` }}
        onClick={() => onSelect(i)}
        onDblClick={() => onOpen?.(i)}
      >
        {render(i)}
      </div>,
    );
  }
  const active = selected >= from && selected < to ? `row-${selected}` : undefined;
  return (
    <div class="vlist">
      <div
        class="scroller"
        ref={ref}
        role="grid"
        aria-label={label}
        aria-rowcount={size}
        aria-activedescendant={active}
        tabIndex={0}
        onScroll={seen}
        onKeyDown={pressed}
      >
        {head}
        <div class="space" role="rowgroup" style={{ height: `${size * rowHeight}px` }}>{rows}</div>
      </div>
    </div>
  );
}
