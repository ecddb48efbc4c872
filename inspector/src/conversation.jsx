export const Conversation = () => <p class="soft">Conversation</p>;
