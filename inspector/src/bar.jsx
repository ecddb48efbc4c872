// The one line above each view: where the reader is, what the view adds, the colours and the keys.

import { createContext } from "preact";
import { useContext } from "preact/hooks";
import { embedded } from "./api.js";
import { href } from "./route.js";

export const Shell = createContext({});

const VIEWS = [["runs", "Runs"], ["questions", "Questions"], ["data", "Data sets"]];

// `trail`: what follows the name of the page, as [text or element, ...]; without one, the views. `children` stand at the end;
// `deep` leaves them a line of their own on a phone.
export function Bar({ trail, deep, children }) {
  const { about, page, theme, nextTheme, showKeys } = useContext(Shell);
  return (
    <header class={deep ? "bar deep" : "bar"}>
      <button type="button" class="skip" onClick={() => document.getElementById("main")?.focus()}>To the content</button>
      {embedded ? <span class="brand">dspyer</span> : <a class="brand" href={href("runs")}>dspyer</a>}
      {!trail && <nav aria-label="Views">{VIEWS.map(([name, words]) => <a key={name} href={href(name)} aria-current={page === name ? "page" : undefined}>{words}</a>)}</nav>}
      {trail?.map((part, i) => <><span class="crumb" aria-hidden="true">/</span><span class={i === trail.length - 1 ? "here" : "part"}>{part}</span></>)}
      <span class="grow" />
      {children}
      {!trail && about?.store && (
        <span class="store" title={about.store}>{about.store.replace(/^.*[/\\]/, "")}<span class="tag">{about.acts ? about.programs.join(", ") : "read only"}</span></span>
      )}
      <button type="button" class="plain" onClick={nextTheme} aria-label={`Colours: ${theme}`} title={`Colours: ${theme}`}>{{ system: "◐", light: "☀", dark: "☾" }[theme]}</button>
      <button type="button" class="plain keys" onClick={showKeys} aria-label="Keys" title="Keys (?)">?</button>
    </header>
  );
}
