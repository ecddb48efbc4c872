// Contents of messages, fields of prompts, and the answers of models.

import { useMemo } from "preact/hooks";
import { parseResponse, partsOf, valueOf } from "./parse.js";
import { Field, Fold, Tag } from "./parts.jsx";
import { Scalar, Value } from "./value.jsx";

const size = (text) => `${Math.max(1, Math.round((text.length * 3) / 4096))} KB`;

// A picture, a sound or a file. What is in the message is shown; an address is not loaded: that would tell its owner of the reader.
function Part({ of }) {
  const inner = of[of.type] ?? of;
  const url = typeof inner === "string" ? inner : (inner.url ?? inner.file_data ?? inner.data ?? "");
  const name = inner.filename ?? inner.title ?? of.type;
  if (/^data:image\/(png|jpe?g|gif|webp|avif|bmp);/.test(url)) return <img class="picture" src={url} alt="a picture in the prompt" />;
  if (/^data:/.test(url) || /audio|file/.test(of.type ?? "")) {
    const kind = /^data:([\w/+.-]+)/.exec(url)?.[1] ?? inner.format;
    return <span class="part"><Tag>{name}</Tag> {[kind, url && size(url)].filter(Boolean).join(", ")}</span>;
  }
  if (/image/.test(of.type ?? "") && url) return <span class="part"><Tag>{of.type}</Tag> <span class="mono">{url.slice(0, 500)}</span></span>;
  return <Value of={of} />;
}

export function Content({ of }) {
  const parts = partsOf(of);
  if (!parts.length) return <span class="soft">no text</span>;
  return parts.map((part, at) => (typeof part === "string" ? <Scalar key={at} of={part} /> : <Part key={at} of={part} />));
}

const TOOL = /^([\p{L}\p{N}_]+), whose description is <desc>([^]*)<\/desc>\. It takes arguments ([^]*)\.$/u;

// The tools that a model is told of, as DSPy describes them: [name, description, arguments].
const toolsIn = (value) => {
  const found = Array.isArray(value) ? value.map((one) => (typeof one === "string" ? TOOL.exec(one) : null)) : [];
  return found.length && found.every(Boolean) ? found.map((one) => one.slice(1)) : null;
};

const isCalls = (value, key) => Array.isArray(value?.[key]) && Object.keys(value).length === 1 && value[key].every((one) => one && typeof one === "object");

const Named = ({ of }) => (
  <ul class="keys">
    {of.map(([name, value, bad], at) => <li key={at}><span class="key">{name}</span><div class={bad ? "bad" : ""}><Value of={value} plain /></div></li>)}
  </ul>
);

// The value of a field: a text that is JSON as its value, a list with pictures by its parts, tools and their calls by name.
function FieldValue({ of }) {
  if (of === null) return <span class="soft">not supplied</span>;
  if (Array.isArray(of) && of.some((part) => part && typeof part === "object" && typeof part.type === "string")) return <Content of={of} />;
  const value = valueOf(of);
  const tools = toolsIn(value);
  if (tools) return <Fold words={tools.map(([name]) => name).join(", ")}>{() => <Named of={tools.map(([name, description, given]) => [name, `${description}\n${given}`])} />}</Fold>;
  if (isCalls(value, "tool_calls")) return <Named of={value.tool_calls.map((one) => [one.name, one.args])} />;
  if (isCalls(value, "tool_call_results")) return <Named of={value.tool_call_results.map((one) => [one.name ?? one.call_id, one.value, one.is_error])} />;
  return <Value of={value} />;
}

const about = (fields, name) => {
  const found = fields.find((field) => field.name === name);
  return found && [found.type, found.about].filter(Boolean).join("\n");
};

export const Fields = ({ of, known = [], out }) => of.map(([name, value], at) => (
  <Field key={at} name={name || "text"} title={about(known, name)} out={out}><FieldValue of={value} /></Field>
));

export const Calls = ({ of }) => of.map((call, at) => (
  <Field key={at} name={call.function?.name ?? call.name ?? "call"} out><Value of={valueOf(call.function?.arguments ?? call.arguments ?? call.args ?? call)} /></Field>
));

// A response as a list of {text, reasoning, calls, rest}: of several, or of one that has parts.
export function answersOf(response) {
  return (Array.isArray(response) ? response : [response]).filter((one) => one != null).map((one) => {
    if (typeof one !== "object") return { text: String(one) };
    const { text, content, reasoning_content: thought, reasoning, tool_calls: calls, ...rest } = one;
    const said = text ?? content;
    return { text: typeof said === "string" ? said : null, reasoning: thought ?? reasoning, calls, rest: { ...rest, ...(said != null && typeof said !== "string" && { content: said }) } };
  });
}

// By field, as [[name, value]]; the text as it is if it has none.
export function fieldsOf(answer, prompt) {
  const found = answer.text == null ? [] : (parseResponse(answer.text, prompt) ?? [["", answer.text]]);
  return [...(answer.reasoning ? [["reasoning of the model", answer.reasoning]] : []), ...found.filter(([, value]) => value !== "" || found.length > 1)];
}

// Whether each answer has the form that the prompt asks for, or calls tools instead.
export const fits = (response, prompt) => answersOf(response).every((one) => one.calls?.length || (one.text != null && parseResponse(one.text, prompt)));

export function Answers({ response, prompt }) {
  const answers = useMemo(() => answersOf(response), [response]);
  return answers.map((answer, at) => (
    <dl class="card fields" key={at} aria-label={answers.length > 1 ? `response ${at + 1}` : "response"}>
      <Fields of={fieldsOf(answer, prompt)} known={prompt?.outputs} out />
      {answer.calls?.length > 0 && <Calls of={answer.calls} />}
      {answer.rest && Object.keys(answer.rest).length > 0 && <Field name="more" out><Value of={answer.rest} /></Field>}
    </dl>
  ));
}
