export const QuestionsPage = () => <main id="main" class="empty">Questions</main>;
