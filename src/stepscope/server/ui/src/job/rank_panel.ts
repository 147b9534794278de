/** The panel of one rank: where its steps go, what is unlike its peers, and the way to its timeline. */

import type { Deviation, JobFinding, RankDetail, RankPart } from "../data/contracts";
import { copyButton } from "../panels/copy";
import { colourOf } from "../shared/colours";
import { element, fill, swatch } from "../shared/dom";
import { bytes, clean, count, percent, time, words } from "../shared/format";
import { header } from "./aside";

/** Room around a step in the timeline, as a share of it. */
const ROOM = 0.05;

const PARTS: Record<string, [string, string]> = {
  compute: ["compute", "busy_compute"],
  waiting: ["waits for other ranks", "idle_straggler"],
  transfer: ["exposed transfer", "busy_communication"],
  missing: ["waits for ranks without a digest", "idle_straggler"],
  unmatched: ["communication without counterpart", "busy_communication"],
  copy: ["copies", "busy_copy"],
  memset: ["memory sets", "busy_memset"],
};

export interface RankActions {
  close(): void;
  message(text: string): void;
}

export class RankPanel {
  readonly root = element("section", { "aria-label": "Rank", hidden: true });

  constructor(private readonly actions: RankActions) {}

  waiting(rank: number): void {
    fill(this.root, this.back(), element("h2", {}, `Rank ${rank}`), element("p", { class: "note", role: "status" }, "Reading its digest …"));
  }

  fail(rank: number, message: string): void {
    fill(this.root, this.back(), element("h2", {}, `Rank ${rank}`), element("p", { role: "alert" }, clean(message, 800)));
  }

  /**
   * @param column of the chosen step, -1 for none; `step` is its number in the heat map
   * @param findings of the job that name this rank
   */
  show(detail: RankDetail, column: number, step: number, findings: JobFinding[]): void {
    const where = [detail.hostname, detail.device_name, `device ${detail.device}`].filter(Boolean).map((text) => clean(text, 80));
    const score =
      detail.score === null || detail.threshold === null
        ? ""
        : `; ${detail.score.toFixed(1)} robust standard deviations from its ${count(detail.peers)} peers, where ${detail.threshold.toFixed(1)} count`;
    fill(
      this.root,
      this.back(),
      element("h2", {}, `Rank ${detail.rank}`),
      element("p", { class: "note" }, `${where.join(", ")}${score}`),
      ...findings.map((finding) => element("p", {}, `▲ ${clean(finding.message, 600)}`)),
      this.capture(detail, column, step),
      budget(detail, column, step),
      ...deviations(detail),
      ...kernels(detail),
      alone(detail),
      this.evidence(detail),
      ...more(detail),
    );
  }

  private back(): HTMLElement {
    return element("p", {}, element("button", { click: () => this.actions.close() }, "‹ The job (Esc)"));
  }

  private capture(detail: RankDetail, column: number, number: number): HTMLElement {
    const { capture } = detail;
    const step = detail.steps[column];
    // captures begin at different steps: each counts its own
    const there = step && step.number !== number ? `, which its capture counts as ${step.number}` : "";
    const section = element("section", { "aria-label": "Timeline", class: "timelinelink" });
    if (capture.timeline) {
      const text = step ? `Open its timeline at step ${number} (T)` : "Open its timeline (T)";
      fill(section, element("a", { href: timelineAddress(detail, column) }, text), there);
      return section;
    }
    const file = clean(capture.path, 300);
    fill(
      section,
      element("p", {}, file ? `Its full capture is not here. Fetch ${file}${capture.hostname ? ` from ${clean(capture.hostname, 80)}` : ""}, then:` : "Its digest does not name the full capture."),
      ...(capture.command
        ? [
            element("p", { class: "row" }, element("code", {}, clean(capture.command, 400)), copyButton("Copy", "Copy the command", () => clean(capture.command, 400), (text) => this.actions.message(text))),
            element("p", { class: "note" }, `${step ? `Look at step ${number}${there}. ` : ""}Named beside the digests (stepscope ui DIGESTS FOLDER), it opens from here.`),
          ]
        : []),
    );
    return section;
  }

  private evidence(detail: RankDetail): HTMLElement {
    const items = detail.evidence.map((one) => {
      const step = one.step >= 0 ? `, step ${one.step}` : "";
      const text = `${clean(one.what, 60)}${step}: ${time(one.end_ns - one.start_ns)}`;
      const way = detail.capture.timeline
        ? element("a", { href: detail.capture.timeline + span(one.start_ns, one.end_ns, 0.3) }, text)
        : element("span", { title: clean(one.sql, 300) }, text);
      return element("li", {}, way, " ", copyButton("SQL", "Copy the statement", () => clean(one.sql, 2000), (shown) => this.actions.message(shown)));
    });
    return element(
      "section",
      { "aria-label": "Evidence" },
      element("h2", {}, "Where to look in its capture (steps as it counts them)"),
      items.length ? element("ul", { class: "plain" }, ...items) : element("p", { class: "note" }, "The digest names no place."),
    );
  }
}

/** Address of a rank's timeline with a step as the range. */
export function timelineAddress(detail: RankDetail, column: number): string {
  const step = detail.steps[column];
  return detail.capture.timeline + (step ? span(step.begin_ns, step.end_ns, ROOM) : "");
}

function span(begin: number, end: number, room: number): string {
  const around = Math.round((end - begin) * room);
  return `#t=${begin - around}-${end + around}&range=${begin}-${end}`;
}

function budget(detail: RankDetail, column: number, number: number): HTMLElement {
  const step = detail.steps[column];
  const mean = detail.wall_ns.reduce((a, b) => a + b, 0) / Math.max(1, detail.wall_ns.length);
  const [wall, peersWall] = [step ? detail.wall_ns[column] : null, detail.peers_wall_ns];
  const figures = (own: (number | null)[]): HTMLElement[] => own.map((ns) => element("td", { class: "figure" }, ns === null ? "" : time(ns)));
  const line = (part: RankPart): HTMLElement => {
    const [name, key] = nameOf(part);
    const square = swatch(colourOf(key));
    if (part.part === "idle") square.classList.add("hatched");
    const beyond = part.peers_ns === null ? null : part.mean_ns - part.peers_ns;
    return element(
      "tr",
      {},
      element("td", {}, square, " ", name),
      ...(step ? figures([part.steps_ns[column]]) : []),
      ...figures([part.mean_ns, ...(detail.peers ? [part.peers_ns] : [])]),
      ...(detail.peers ? [element("td", { class: "figure" }, beyond === null ? "" : signed(beyond))] : []),
    );
  };
  const names = ["", ...(step ? [`step ${number}`] : []), "mean", ...(detail.peers ? ["peers", "beyond"] : [])];
  const whole = element(
    "tr",
    { class: "whole" },
    element("td", {}, "step time"),
    ...(step ? figures([wall]) : []),
    ...figures([mean, ...(detail.peers ? [peersWall] : [])]),
    ...(detail.peers ? [element("td", { class: "figure" }, peersWall === null ? "" : signed(mean - peersWall))] : []),
  );
  return element(
    "section",
    { "aria-label": "Budget" },
    element("h2", {}, "Where its steps go"),
    ...(step ? [bar(detail, (part) => part.steps_ns[column], `step ${number}`)] : []),
    bar(detail, (part) => part.mean_ns, "mean"),
    ...(detail.peers ? [bar(detail, (part) => part.peers_ns ?? 0, "peers")] : []),
    element("table", { class: "facts figures" }, header(...names), whole, ...detail.parts.map(line)),
    element("p", { class: "note" }, detail.peers ? `Peers: median of the ${count(detail.peers)} ranks that do the same work, of their means.` : "No other rank does the same work."),
  );
}

/** The parts on one scale for all bars: the longest fills the width. */
function bar(detail: RankDetail, of: (part: RankPart) => number, name: string): HTMLElement {
  const sum = (take: (part: RankPart) => number): number => detail.parts.reduce((a, part) => a + take(part), 0);
  const longest = Math.max(1, ...detail.wall_ns.map((_, column) => sum((part) => part.steps_ns[column])), sum((part) => part.peers_ns ?? 0));
  const made = element("div", { class: "bar", role: "img", "aria-label": `${name}: ${time(sum(of))}` });
  for (const part of detail.parts) {
    const ns = of(part);
    if (ns <= 0) continue;
    const [title, key] = nameOf(part);
    const piece = element("span", { title: `${title}: ${time(ns)}` });
    if (part.part === "idle") piece.classList.add("hatched");
    piece.style.width = `${(100 * ns) / longest}%`;
    piece.style.background = colourOf(key);
    made.append(piece);
  }
  return element("div", { class: "named bars" }, element("span", { class: "note" }, name), made);
}

function nameOf(part: RankPart): [string, string] {
  if (part.part !== "idle") return PARTS[part.part] ?? [words(part.part), ""];
  return [`idle: ${words(clean(part.cause, 60))}`, `idle_${part.cause}`];
}

function deviations(detail: RankDetail): HTMLElement[] {
  if (!detail.deviations.length) return [];
  const sorted = [...detail.deviations].sort((a, b) => Number(b.outside) - Number(a.outside));
  const rows = sorted.map((d) =>
    element(
      "tr",
      d.outside ? { class: "outside" } : {},
      element("td", {}, clean(d.figure, 80)),
      element("td", { class: "figure" }, shown(d.value, d)),
      element("td", { class: "figure" }, shown(d.peers, d)),
      element("td", { class: "between" }, d.low === d.high ? "" : between(d)),
    ),
  );
  return [
    element(
      "section",
      { "aria-label": "Deviations" },
      element("h2", {}, "Beside its peers"),
      element("table", { class: "facts figures" }, header("", "rank", "peers", "nine in ten peers"), ...rows),
    ),
  ];
}

/** A figure with its unit. */
export function shown(value: number, { unit }: Pick<Deviation, "unit">): string {
  if (unit === "ns") return time(value);
  if (unit === "bytes") return bytes(value);
  if (unit === "share") return percent(value);
  if (unit === "ratio") return `${value.toFixed(3)} ×`;
  if (unit === "count") return count(value);
  return `${count(value)} ${unit}`;
}

/** Two figures, whose unit is said once where they share it. */
function between(d: Deviation): string {
  const [low, high] = [shown(d.low, d), shown(d.high, d)];
  const unit = / \S+$/.exec(low)?.[0] ?? "";
  return unit && high.endsWith(unit) ? `${low.slice(0, -unit.length)} to ${high}` : `${low} to ${high}`;
}

function kernels(detail: RankDetail): HTMLElement[] {
  if (!detail.kernels.length) return [];
  const rows = detail.kernels.map((k) =>
    element(
      "tr",
      {},
      element("td", { title: clean(k.name, 300) }, clean(k.name, 60)),
      element("td", { class: "figure" }, time(k.median_ns)),
      element("td", { class: "figure" }, time(k.peers_ns)),
      element("td", { class: "figure" }, `+${time(k.more_ns)}`),
    ),
  );
  return [
    element(
      "section",
      { "aria-label": "Slower kernels" },
      element("h2", {}, "Kernels that take longer than on its peers"),
      element("table", { class: "facts figures" }, header("kernel", "median", "peers", "more a step"), ...rows),
    ),
  ];
}

function alone(detail: RankDetail): HTMLElement {
  const items = detail.findings.map((f) =>
    element(
      "li",
      {},
      `${clean(f.message, 300)}: ${time(f.time_ns)} a step${f.of_program ? "" : " (of the measurement)"}`,
      ...(f.predicted_ns ? [element("span", { class: "note" }, ` · without it ${time(f.predicted_ns)}`)] : []),
      ...(f.advice ? [element("div", { class: "note" }, clean(f.advice, 400))] : []),
    ),
  );
  return element(
    "section",
    { "aria-label": "By itself" },
    element("h2", {}, "What it shows by itself"),
    items.length ? element("ul", { class: "plain" }, ...items) : element("p", { class: "note" }, "Nothing: looked at alone, its GPU is busy."),
  );
}

function more(detail: RankDetail): HTMLElement[] {
  const phases = detail.phases.map((p) =>
    element("tr", {}, element("td", {}, clean(p.name, 60)), element("td", { class: "figure" }, time(p.host_ns)), element("td", { class: "figure" }, time(p.gpu_ns ?? 0))),
  );
  const waits = detail.waits.map((w) =>
    element("tr", {}, element("td", {}, clean(w.name, 80)), element("td", { class: "figure" }, (w.per_step ?? 0).toFixed(2)), element("td", { class: "figure" }, time(w.host_ns))),
  );
  return [
    ...(phases.length
      ? [element("details", {}, element("summary", {}, "Phases of its step"), element("table", { class: "facts figures" }, header("", "host", "GPU"), ...phases))]
      : []),
    ...(waits.length
      ? [element("details", {}, element("summary", {}, "Calls in which its host waits for the device"), element("table", { class: "facts figures" }, header("", "a step", "time a step"), ...waits))]
      : []),
  ];
}

function signed(ns: number): string {
  return ns ? `${ns > 0 ? "+" : "−"}${time(Math.abs(ns))}` : "0";
}
