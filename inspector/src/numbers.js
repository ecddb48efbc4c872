// JSON with numbers that JavaScript does not have: a whole number above 2**53, as an id often is, keeps its digits, and
// 1.0 stays a float: a copy that sent it back as 1 would have changed its type.

const raw = (source) => (typeof JSON.rawJSON === "function" ? JSON.rawJSON(source) : Number(source));

export const isRaw = (value) => typeof JSON.isRawJSON === "function" && JSON.isRawJSON(value);

const LONG = /\d{16}/; // few answers have such a number, and reading each number by itself takes longer
const WHOLE = /\d(\.0|[eE])/; // may be a float without a fraction

const isLong = (value, source) => !Number.isSafeInteger(value) && /^-?\d+$/.test(source);

const isWhole = (value, source) => Number.isInteger(value) && /[.eE]/.test(source);

const parse = (text, keep) =>
  JSON.parse(text, (_, value, context) => (typeof value === "number" && keep(value, context?.source ?? "") ? raw(context.source) : value));

export const parseJSON = (text) => (LONG.test(text) ? parse(text, isLong) : JSON.parse(text));

export function parseValue(text) {
  if (!LONG.test(text) && !WHOLE.test(text)) return JSON.parse(text);
  return parse(text, (value, source) => isLong(value, source) || isWhole(value, source));
}

const VALUES = new Set(["args", "inputs", "outputs", "value"]); // of a call, an example, an answer

// An answer with values as they are; its figures are numbers, to be reckoned with.
export const parseAnswer = (text) => figures(parseValue(text));

function figures(found) {
  if (found === null || typeof found !== "object") return found;
  if (isRaw(found)) return /[.eE]/.test(found.rawJSON) ? Number(found.rawJSON) : found;
  if (Array.isArray(found)) return found.map(figures);
  return Object.fromEntries(Object.entries(found).map(([name, part]) => [name, VALUES.has(name) ? part : figures(part)]));
}

// What `read` gives, or what is made of its error.
export function tried(read, otherwise) {
  try {
    return read();
  } catch (error) {
    return otherwise(error);
  }
}

// What a reader has typed as a number: it is sent as it was typed, and 007 as 7.
export const typedNumber = (text) => tried(() => parseValue(text), () => Number(text));
