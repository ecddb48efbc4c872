export const ComparePage = () => <main id="main" class="empty">Compare</main>;
