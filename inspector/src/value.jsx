import { useValues } from "./record.js";

export const Value = ({ of }) => <pre class="whole">{typeof of === "string" ? of : JSON.stringify(of, null, 1)}</pre>;

export function ValueOf({ record, vid }) {
  const value = useValues(record, [vid]).get(vid);
  return value === undefined ? <span class="soft" aria-busy="true">…</span> : <Value of={value} />;
}

export const Text = ({ of }) => <p class="whole">{of?.text ?? of}</p>;
