// JSON with numbers that JavaScript does not have: a whole number above 2**53, as an id often is, keeps its digits.

const raw = (source) => (typeof JSON.rawJSON === "function" ? JSON.rawJSON(source) : Number(source));

export const isRaw = (value) => typeof JSON.isRawJSON === "function" && JSON.isRawJSON(value);

const LONG = /\d{16}/; // few answers have such a number, and reading each number by itself takes longer

export function parseJSON(text) {
  if (!LONG.test(text)) return JSON.parse(text);
  const whole = (_, value, context) =>
    typeof value === "number" && !Number.isSafeInteger(value) && /^-?\d+$/.test(context?.source ?? "") ? raw(context.source) : value;
  return JSON.parse(text, whole);
}

// What a reader has typed as a number: it is sent as it was typed.
export const typedNumber = (text) => (/^-?[1-9]\d{15,}$/.test(text) ? raw(text) : Number(text));
