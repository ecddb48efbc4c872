export const RunsPage = () => <main id="main" class="empty">Runs</main>;
