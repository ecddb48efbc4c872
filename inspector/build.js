// Builds the page: `npm ci && npm run build`. An argument names another folder to write to (the test compares the two).
import { readFileSync, writeFileSync, mkdirSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const out = process.argv[2] ?? join(here, "..", "dspyer", "display", "page");
const common = { bundle: true, minify: true, write: false, charset: "utf8", legalComments: "none", logLevel: "warning" };

async function bundled(options) {
  const { outputFiles } = await build({ absWorkingDir: here, ...common, ...options });
  return outputFiles[0].text;
}

mkdirSync(out, { recursive: true });
const app = await bundled({
  entryPoints: ["src/main.jsx"],
  format: "iife",
  target: "es2022",
  jsx: "automatic",
  jsxImportSource: "preact",
});
writeFileSync(join(out, "app.js"), app);
writeFileSync(join(out, "app.css"), await bundled({ entryPoints: ["src/app.css"], target: ["chrome123", "firefox120", "safari17.5"] }));
writeFileSync(join(out, "index.html"), readFileSync(join(here, "src", "index.html")));
