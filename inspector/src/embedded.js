// A run exported as a file: `run.to_html(path)` puts the answers of the server into the page.
//
// See dspyer/display/run_file.py.

import { parseJSON } from "./numbers.js";
import { unpack } from "./unpack.js";

const element = document.getElementById("embedded");

export const embedded = element ? unpack(parseJSON(element.textContent)) : null;
