/** What the heat map shows, as its link tells it. */

export const MODES = ["", "ranks", "nodes"] as const;
export const ORDERS = ["rank", "most"] as const;
/** Whether a row is a rank or a node; empty for what reads well in the window. */
export type Mode = (typeof MODES)[number];
/** As they are numbered, or those with most of the value first. */
export type Order = (typeof ORDERS)[number];

export const LATE = "late";
export const MOST_PX = 40;

export interface JobState {
  /** Key of the value that is shown. */
  value: string;
  mode: Mode;
  order: Order;
  /** The chosen rank and its device; -1 for none. */
  rank: number;
  device: number;
  /** Number of the chosen step in the first rank's capture; -1 for none. */
  step: number;
  /** Whether the rank's panel stands in place of the job's. */
  panel: boolean;
  /** Pixels a row; 0 for as many as fit. */
  rowPx: number;
}

export function readJob(hash: string): JobState {
  const parameters = new URLSearchParams(hash.replace(/^#/, ""));
  const rank = /^(\d{1,9})(?:\.(\d{1,4}))?$/.exec(parameters.get("rank") ?? "");
  const step = /^\d{1,9}$/.exec(parameters.get("step") ?? "");
  const value = parameters.get("value") ?? LATE;
  const px = Number(parameters.get("px") ?? 0);
  return {
    value: /^[\w:]{1,80}$/.test(value) ? value : LATE,
    mode: MODES.find((m) => m === parameters.get("rows")) ?? "",
    order: ORDERS.find((o) => o === parameters.get("sort")) ?? "rank",
    rank: rank ? Number(rank[1]) : -1,
    device: rank?.[2] ? Number(rank[2]) : -1,
    step: step ? Number(step[0]) : -1,
    panel: rank !== null && parameters.get("panel") !== "job",
    rowPx: px > 0 && px <= MOST_PX ? px : 0,
  };
}

/** What is as at first is left out. */
export function writeJob(state: JobState): string {
  const parameters = new URLSearchParams();
  if (state.value !== LATE) parameters.set("value", state.value);
  if (state.mode) parameters.set("rows", state.mode);
  if (state.order !== "rank") parameters.set("sort", state.order);
  if (state.rank >= 0) {
    parameters.set("rank", state.device >= 0 ? `${state.rank}.${state.device}` : String(state.rank));
    if (!state.panel) parameters.set("panel", "job");
  }
  if (state.step >= 0) parameters.set("step", String(state.step));
  if (state.rowPx) parameters.set("px", String(state.rowPx));
  return `#${parameters}`;
}
