export const Prompt = () => <p class="soft">Prompt</p>;
