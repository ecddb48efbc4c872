export const canAct = (about, graph) => Boolean(about?.acts && about.programs?.includes(graph));
export const RunActs = () => null;
export const Rerun = () => null;
