// A run exported as a file: `run.to_html(path)` puts the answers of the server into the page.
//
// {"about", "run", "rows": [...], "first", "last", "commits": {id: ...}, "values": [...], ...}: see dspyer/display/run_page.py.

import { unpack } from "./unpack.js";

const element = document.getElementById("embedded");

export const embedded = element ? unpack(JSON.parse(element.textContent)) : null;
