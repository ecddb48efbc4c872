export const Diff = ({ before, after }) => <pre class="whole">{JSON.stringify(before)} → {JSON.stringify(after)}</pre>;
