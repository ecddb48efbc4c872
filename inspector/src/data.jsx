export const DataPage = () => <main id="main" class="empty">Data sets</main>;
