// The page: which of its views is shown, and what surrounds all of them.

import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { embedded, LOCKED, prepare, setToken } from "./api.js";
import { Bar, Shell } from "./bar.jsx";
import { ComparePage } from "./compare.jsx";
import { DataPage } from "./data.jsx";
import { useAnswer, useKeys, useStored } from "./hooks.js";
import { Boundary, Button, Dialog, Line, Problem } from "./parts.jsx";
import { QuestionsPage } from "./questions.jsx";
import { useRoute } from "./route.js";
import { RunPage } from "./run.jsx";
import { RunsPage } from "./runs.jsx";

const THEMES = ["system", "light", "dark"];

const KEYS = [
  ["↑ ↓ or j, k", "the entry above and below"],
  ["→ ←", "unfold and fold a step; then into it and out of it"],
  ["Enter", "open the entry; in a run: to what stands beside the steps"],
  ["[ ]", "the tab before and after"],
  ["z", "the strip: only the selected step; the whole run"],
  ["/", "search or filter"],
  ["x, then c", "in the list of runs: choose two, and compare them"],
  ["Escape", "back to the list; leave a field; close a dialog"],
  ["Home, End", "first and last entry"],
  ["?", "this list"],
];

const Help = ({ onClose }) => (
  <Dialog title="Keys" onClose={onClose}>
    <dl class="keylist">{KEYS.map(([key, words]) => <div key={key}><dt><kbd>{key}</kbd></dt><dd>{words}</dd></div>)}</dl>
  </Dialog>
);

// Asks for the token of the address that `dspyer inspect` has printed.
function Login({ error, onToken }) {
  const [text, setText] = useState("");
  const given = (event) => {
    event.preventDefault();
    setToken(text);
    onToken();
  };
  return (
    <main id="main" class="login">
      <h1>This tab has no token</h1>
      <p><code>dspyer inspect</code> has printed an address with a token. Open that address, or paste it here.</p>
      <form onSubmit={given}><Line id="token" label="Address or token" spellcheck={false} required value={text} onText={setText} /><Button main type="submit">Open</Button></form>
      {error.status !== 401 && error.status !== 403 && <Problem error={error} />}
    </main>
  );
}

function View({ page, params, about }) {
  if (embedded) return <RunPage params={{ ...params, thread: embedded.run.thread, run: embedded.run.id }} about={about} />;
  if (page === "run") return <RunPage key={`${params.thread}\n${params.run}`} params={params} about={about} />;
  if (page === "compare") return <ComparePage params={params} about={about} />;
  const Listed = { questions: QuestionsPage, data: DataPage }[page] ?? RunsPage;
  return <><Bar /><Listed params={params} about={about} /></>;
}

function App() {
  const { page, params } = useRoute();
  const [theme, setTheme] = useStored("dspyer-theme", "system");
  const nextTheme = () => setTheme(THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length]);
  const [help, setHelp] = useState(false);
  const [tries, setTries] = useState(0);
  const { data: about, error } = useAnswer("about", {}, { version: tries });
  const again = () => setTries((n) => n + 1);
  useEffect(() => void (document.documentElement.dataset.theme = theme), [theme]);
  useEffect(() => {
    addEventListener(LOCKED, again);
    return () => removeEventListener(LOCKED, again);
  }, []);
  useKeys({ "?": () => setHelp(true) });
  const locked = error && (error.status === 401 || error.status === 403);
  const deep = page === "run" || Boolean(embedded);
  let view = <View page={page} params={params} about={about} />;
  if (error) view = <><Bar />{locked ? <Login error={error} onToken={again} /> : <main id="main"><Problem error={error} onRetry={again} /></main>}</>;
  else if (!about) view = <><Bar trail={deep || page === "compare" ? [] : undefined} deep={deep} /><main id="main" aria-busy="true" /></>;
  return (
    <Shell.Provider value={{ about, page, theme, nextTheme, showKeys: () => setHelp(true) }}>
      <Boundary what="This page" of={location.hash}>{view}</Boundary>
      {help && <Help onClose={() => setHelp(false)} />}
      <div id="news" class="hidden" role="status" aria-live="polite" />
    </Shell.Provider>
  );
}

prepare().then(() => render(<App />, document.getElementById("app")));
