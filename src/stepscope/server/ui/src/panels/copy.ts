/** Figures to take along: as text, and as the command that computes them again. */

import { GROUPINGS, type Layout, type TableAnswer } from "../data/contracts";
import { element } from "../shared/dom";
import { clean } from "../shared/format";

const LONGEST = 4000;

/** A button that puts a text on the clipboard, and message so. */
export function copyButton(label: string, message: string, text: () => string, done: (text: string) => void): HTMLElement {
  return element(
    "button",
    {
      class: "copy",
      "aria-label": message,
      title: message,
      click: (event) => {
        event.stopPropagation();
        void put(text()).then((copied) => done(copied ? `copied: ${message.replace(/^Copy /, "")}` : "the browser does not let this page copy"));
      },
    },
    label,
  );
}

async function put(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // a page from disk, or a browser that asks first: the old way
    const box = element("textarea", { class: "hidden", "aria-hidden": "true" });
    box.value = text;
    const before = document.activeElement as HTMLElement | null;
    document.body.append(box);
    box.select();
    const copied = document.execCommand("copy");
    box.remove();
    before?.focus({ preventScroll: true });
    return copied;
  }
}

/** The command that asks the same of the same captures. */
export function command(layout: Layout, sql: string): string {
  return ["stepscope query", ...layout.paths.map(quoted), quoted(sql)].join(" ");
}

/** One word of a shell, whatever stands in it. */
function quoted(text: string): string {
  return `'${clean(text, LONGEST).replaceAll("'", "'\\''")}'`;
}

/** The statement whose answer a table shows. */
export function tableQuery(layout: Layout, by: string, window: { begin: number; end: number } | null): string {
  const late = layout.members.some(({ offset }) => offset !== 0);
  const at = late
    ? `start_ns + CASE rank ${layout.members.map(({ rank, offset }) => `WHEN ${rank} THEN ${offset}`).join(" ")} END`
    : "start_ns";
  const where = window ? `${at} >= ${window.begin} AND ${at} < ${window.end}` : "steady";
  const length = "end_ns - start_ns";
  return (
    `SELECT ${GROUPINGS[by].select}, count(*) AS count, sum(${length})::BIGINT AS total_ns, avg(${length}) AS mean_ns, ` +
    `quantile_cont(${length}, 0.5) AS median_ns, quantile_cont(${length}, 0.95) AS p95_ns ` +
    `FROM kernel_category WHERE ${where} GROUP BY ALL ORDER BY total_ns DESC, 1`
  );
}

/** Rows as tab-separated values, as spreadsheets take them; times in nanoseconds. */
export function tabSeparated(table: TableAnswer, rows: { names: string[]; [figure: string]: unknown }[]): string {
  const figures = ["count", "total_ns", "mean_ns", "median_ns", "p95_ns", "share"];
  const lines = rows.map((row) => [...row.names.map(cell), ...figures.map((key) => String(row[key]))]);
  return [[...table.keys, ...figures], ...lines].map((line) => line.join("\t")).join("\n") + "\n";
}

/** A name that no spreadsheet takes for a formula. */
function cell(text: string): string {
  const shown = clean(text, LONGEST);
  return /^[=+\-@]/.test(shown) ? `'${shown}` : shown;
}
