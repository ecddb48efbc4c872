// The page: which of its views is shown, and what surrounds all of them.

import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { LOCKED, prepare, setToken } from "./api.js";
import { embedded } from "./embedded.js";
import { useAnswer, useKeys } from "./hooks.js";
import { Boundary, Dialog, Problem } from "./parts.jsx";
import { href, useRoute } from "./route.js";
import { RunPage } from "./run.jsx";
import { RunsPage } from "./runs.jsx";

const THEME = "dspyer-theme";
const THEMES = ["system", "light", "dark"];

function stored(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return null; // a file opened from disk may have no storage
  }
}

function useTheme() {
  const [theme, setTheme] = useState(() => stored(THEME) ?? "system");
  useEffect(() => {
    document.documentElement.dataset.theme = theme;
    try {
      localStorage.setItem(THEME, theme);
    } catch {
      return; // not kept then
    }
  }, [theme]);
  return [theme, () => setTheme(THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length])];
}

const KEYS = [
  ["j, k or arrows", "next and previous entry"],
  ["Enter", "open the entry; in a run: to its step"],
  ["Escape", "back to the list; close a dialog"],
  ["/", "search or filter"],
  ["1 to 7", "the views of a run: steps, graph, timeline, ..."],
  ["Home, End", "first and last entry"],
  ["?", "this list"],
];

function Help({ onClose }) {
  return (
    <Dialog title="Keys" onClose={onClose}>
      <dl class="keys">
        {KEYS.map(([key, words]) => (
          <div key={key}>
            <dt><kbd>{key}</kbd></dt>
            <dd>{words}</dd>
          </div>
        ))}
      </dl>
    </Dialog>
  );
}

function Login({ error, onToken }) {
  const given = (event) => {
    event.preventDefault();
    setToken(event.target.elements.token.value);
    onToken();
  };
  return (
    <main id="main" class="login">
      <h1>This tab has no token</h1>
      <p>
        <code>dspyer inspect</code> has printed an address with a token. Open that address, or paste it here.
      </p>
      <form onSubmit={given}>
        <label>
          <span>Address or token</span>
          <input name="token" type="text" autocomplete="off" spellcheck={false} required />
        </label>
        <button type="submit" class="primary">Open</button>
      </form>
      {error.status !== 401 && error.status !== 403 && <Problem error={error} />}
    </main>
  );
}

function Bar({ about, page, theme, onTheme, onHelp }) {
  const link = (name, words) => (
    <a href={href(name)} aria-current={page === name ? "page" : undefined}>{words}</a>
  );
  return (
    <header class="bar">
      <a class="skip" href="#main" onClick={(event) => {
        event.preventDefault();
        document.getElementById("main")?.focus();
      }}>To the content</a>
      <span class="brand">dspyer</span>
      {embedded ? (
        <span class="store">one run, as a file</span>
      ) : (
        <>
          <nav aria-label="Pages">{link("runs", "Runs")}{link("threads", "Threads")}</nav>
          <span class="store" title={about?.store}>
            {about?.store}
            {about && <span class="mode">{about.acts ? about.program : "read-only"}</span>}
          </span>
        </>
      )}
      <button type="button" class="plain" onClick={onTheme} aria-label={`Colours: ${theme}`} title={`Colours: ${theme}`}>
        {{ system: "◐", light: "☀", dark: "☾" }[theme]}
      </button>
      <button type="button" class="plain" onClick={onHelp} aria-label="Keys" title="Keys (?)">?</button>
    </header>
  );
}

function App() {
  const route = useRoute();
  const [theme, nextTheme] = useTheme();
  const [help, setHelp] = useState(false);
  const [tries, setTries] = useState(0);
  const { data: about, error } = useAnswer("about", {}, tries);
  useEffect(() => {
    const again = () => setTries((n) => n + 1);
    addEventListener(LOCKED, again);
    return () => removeEventListener(LOCKED, again);
  }, []);
  useKeys({ "?": (event, typing) => (typing ? false : setHelp(true)) });
  const locked = error && (error.status === 401 || error.status === 403);
  let page = <main id="main" class="waiting" aria-busy="true" />;
  if (embedded) page = <RunPage params={{ ...embedded.of, ...route.params }} about={embedded.about} />;
  else if (locked) page = <Login error={error} onToken={() => setTries(tries + 1)} />;
  else if (error) page = <main id="main"><Problem error={error} onRetry={() => setTries(tries + 1)} /></main>;
  else if (route.page === "run") {
    page = <RunPage key={`${route.params.thread}\n${route.params.run}`} params={route.params} about={about} />;
  } else page = <RunsPage key={route.page} page={route.page === "threads" ? "threads" : "runs"} params={route.params} />;
  return (
    <>
      <Bar about={about} page={route.page} theme={theme} onTheme={nextTheme} onHelp={() => setHelp(true)} />
      <Boundary what="This page" of={location.hash}>{page}</Boundary>
      {help && <Help onClose={() => setHelp(false)} />}
      <div id="news" class="hidden" role="status" aria-live="polite" />
    </>
  );
}

prepare().then(() => render(<App />, document.getElementById("app")));
