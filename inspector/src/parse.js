// Prompts of DSPy's adapters (chat, JSON, XML) as instructions, demos, a conversation and fields: what cannot be read so is null.

const INPUTS = "Your input fields are:\n";
const OUTPUTS = "\nYour output fields are:\n";
const FORM = "\nAll interactions will be structured in the following way, with the appropriate values filled in.\n";
const TASK = "\nIn adhering to this structure, your objective is: ";
const INCOMPLETE = "This is an example of the task, though some input or output fields are not supplied.";
const NOT_SUPPLIED = /^Not supplied for this (particular example|conversation history message)\.\s*$/;
const ASKS = /(^|\n\n)Respond with (the corresponding output fields, starting with the field `\[\[ ## |a JSON object in the following order of fields: `|the corresponding output fields wrapped in XML tags `)/g;

// The parts of a message's content: texts, and {type, ...} for pictures, sounds and files.
export function partsOf(content) {
  if (content == null) return [];
  if (!Array.isArray(content)) return [typeof content === "object" ? content : String(content)];
  return content.map((part) => (typeof part?.text === "string" && /^(input_|output_)?text$/.test(part.type ?? "text") ? part.text : part));
}

// Parts as one text in which each part that is none is one private character, and back.
const MARK = 0xf0000;

function flat(content) {
  const others = [];
  const text = partsOf(content).map((part) => (typeof part === "string" ? part : String.fromCodePoint(MARK + others.push(part) - 1)));
  return [text.join(""), others];
}

// A text with marks as a text, or as a list of its parts.
function unflat(text, others) {
  const clean = text.trim();
  if (!others.length) return clean;
  const found = clean.split(/([\u{F0000}-\u{FFFFD}])/u).filter(Boolean).map((piece) => others[piece.codePointAt(0) - MARK] ?? piece.trim());
  const parts = found.filter((part) => part !== "" && part !== '"'); // BAML quotes a picture
  return parts.every((part) => typeof part === "string") ? parts.join("") : parts;
}

// `1. `name` (type): what it is`, one after the other; other lines belong to the field before them.
function described(text) {
  const fields = [];
  for (const line of text.split("\n")) {
    const found = /^(\d+)\. `([^`]+)` \((.*?)\):(?: (.*))?$/.exec(line);
    if (found && Number(found[1]) === fields.length + 1) fields.push({ name: found[2], type: found[3], about: found[4] ?? "" });
    else if (fields.length) fields.at(-1).about += `\n${line}`;
  }
  return fields.map((field) => ({ ...field, about: field.about.trim() }));
}

export function parseSystem(text) {
  if (!text.startsWith(INPUTS)) return null;
  const outputs = text.indexOf(OUTPUTS);
  const form = text.indexOf(FORM, outputs);
  const task = text.indexOf(TASK, form);
  if (outputs < 0 || form < 0 || task < 0) return null;
  const shape = text.slice(form + FORM.length, task);
  const kind = shape.includes("\nOutputs will be a JSON object with the following fields.\n") ? "JSON" : shape.trimStart().startsWith("[[ ## ") ? "chat" : "XML";
  return {
    kind,
    instructions: text.slice(task + TASK.length).replace(/\n {8}/g, "\n").trim(),
    inputs: described(text.slice(INPUTS.length, outputs)),
    outputs: described(text.slice(outputs + OUTPUTS.length, form)),
  };
}

// Where the value of each field begins and ends: {name, at, from, to}. A marker within a value is a part of it: fields of a
// prompt come in their order, and what a model answers has each once.
function marked(text, names, ordered) {
  const found = [];
  for (const one of text.matchAll(/^[ \t]*\[\[ ## ([\p{L}\p{N}_]+) ## \]\]/gmu)) {
    const place = names.indexOf(one[1]);
    const last = found.length ? names.indexOf(found.at(-1).name) : -1;
    if (place < 0 || (ordered ? place <= last : found.some((field) => field.name === one[1]))) continue;
    if (found.length) found.at(-1).to = one.index;
    found.push({ name: one[1], at: one.index, from: one.index + one[0].length, to: text.length });
  }
  return found;
}

function tagged(text, names) {
  const found = [];
  let at = 0;
  for (const name of names) {
    const open = new RegExp(`^<${name}>`, "m").exec(text.slice(at));
    if (!open) continue;
    const from = at + open.index + open[0].length;
    const next = names.slice(names.indexOf(name) + 1).map((other) => text.indexOf(`\n\n<${other}>`, from)).filter((place) => place > 0);
    const close = text.lastIndexOf(`</${name}>`, next.length ? Math.min(...next) : text.length);
    if (close < from) continue;
    found.push({ name, at: at + open.index, from, to: close });
    at = close;
  }
  return found;
}

// A JSON text as its value; other texts as they are. Numbers stay texts, with the digits that they have.
export function valueOf(text) {
  if (typeof text !== "string" || !/^\s*[[{]/.test(text)) return text;
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

const completed = (text) => text.replace(/\n*\[\[ ## completed ## \]\]\s*$/, "");

const supplied = (value) => (typeof value === "string" && NOT_SUPPLIED.test(value) ? null : value);

// The fields of a text as [[name, value]]; null if it has none. `before` is what stands before the first one.
function fieldsOf([text, others], names, kind, ordered) {
  if (kind === "JSON") {
    const found = valueOf(text.replace(/^\s*```(json)?|```\s*$/g, ""));
    if (found === null || typeof found !== "object" || Array.isArray(found)) return null;
    return { before: "", fields: Object.entries(found).map(([name, value]) => [name, supplied(value)]) };
  }
  const body = kind === "chat" ? completed(text) : text;
  const places = kind === "chat" ? marked(body, names, ordered) : tagged(body, names);
  if (!places.length) return null;
  const xml = (value) => (kind === "XML" && !ordered && typeof value === "string" ? value.replaceAll("&lt;", "<").replaceAll("&amp;", "&") : value);
  return {
    before: body.slice(0, places[0].at).trim(),
    fields: places.map(({ name, from, to }) => [name, supplied(xml(unflat(body.slice(from, to), others)))]),
  };
}

// What a model has answered, by field; null if it is in no known form.
export function parseResponse(text, system) {
  if (typeof text !== "string" || !system) return null;
  const names = system.outputs.map((field) => field.name);
  for (const kind of [system.kind, "chat", "JSON"]) {
    const found = fieldsOf([text, []], names, kind, false);
    if (found?.fields.some(([name]) => names.includes(name))) return found.fields;
  }
  return null;
}

// A message with its fields, if it has some: {role, fields, before, content, calls}.
function read(message, system) {
  const calls = message.tool_calls ?? [];
  const one = { role: message.role, name: message.name, call: message.tool_call_id, content: message.content, calls, fields: null, before: "", asks: false };
  if (message.role === "user") {
    const [text, others] = flat(message.content);
    const asks = [...text.matchAll(ASKS)].at(-1); // the end of a request says what to answer
    const body = [asks ? text.slice(0, asks.index) : text, others];
    const names = [...system.inputs.map((field) => field.name), "tool_call_results"];
    return { ...one, content: unflat(...body), asks: Boolean(asks), ...fieldsOf(body, names, system.kind === "XML" ? "XML" : "chat", true) };
  }
  return message.role === "assistant" ? { ...one, fields: typeof message.content === "string" ? parseResponse(message.content, system) : null } : one;
}

// A prompt as {kind, instructions, inputs and outputs: [{name, type, about}], demos: [{inputs, outputs, incomplete}], talk: [message],
// values: [[name, value]] of its inputs}.
export function parsePrompt(messages) {
  const [first, ...rest] = messages ?? [];
  if (!/^(system|developer)$/.test(first?.role ?? "") || rest.some((one) => typeof one?.role !== "string")) return null;
  const [text] = flat(first.content);
  const system = parseSystem(text);
  if (!system) return null;
  const all = rest.map((message) => read(message, system));
  const last = all.at(-1);
  const asked = last?.role === "user" ? last : null;
  if (asked && !asked.fields && !asked.asks) return null;
  const before = asked ? all.slice(0, -1) : all;
  const demos = [];
  for (let at = 0; before[at]?.role === "user" && before[at].fields && !before[at].asks && before[at + 1]?.role === "assistant" && before[at + 1].fields; at += 2) {
    demos.push({ inputs: before[at].fields, outputs: before[at + 1].fields.filter(([, value]) => value !== null), incomplete: before[at].before === INCOMPLETE });
  }
  return {
    ...system,
    demos,
    talk: before.slice(2 * demos.length),
    values: asked?.fields ?? (asked?.content?.length ? [["", asked.content]] : []),
  };
}
