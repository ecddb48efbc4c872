export const AnswerForm = ({ question }) => <p class="whole">{String(question?.text?.text ?? question?.text ?? "")}</p>;
