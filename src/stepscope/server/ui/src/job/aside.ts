/** What stands beside the heat map: the verdict, findings, captures to fetch, communicators. */

import type { Communicator, Fetch, JobAnswer, JobDiagnosis, JobFinding } from "../data/contracts";
import { colourOf } from "../shared/colours";
import { element, fill, swatch } from "../shared/dom";
import { clean, count, percent, time, words } from "../shared/format";

const MOST_LISTED = 24;
const MOST_NAMED = 4;
/** A repair that gains less than this share of the step gains nothing that could be measured. */
const WORTH = 0.01;

export interface JobActions {
  /** Opens the panel of a rank, at a step or where it is most late. */
  open(rank: number, step?: number): void;
  /** Opens a finding: the rank of it that needs most. */
  finding(finding: JobFinding): void;
}

export class JobAside {
  readonly root = element("section", { "aria-label": "Job" }, element("p", { class: "note", role: "status" }, "Comparing the ranks …"));

  constructor(private readonly actions: JobActions) {}

  message(text: string): void {
    fill(this.root, element("h2", {}, "The job"), element("p", { class: "note", role: "status" }, text));
  }

  fail(message: string): void {
    fill(this.root, element("h2", {}, "No diagnosis"), element("p", { role: "alert" }, clean(message, 800)));
  }

  show({ diagnosis: d, here }: JobAnswer): void {
    const reachable = new Set(here.map((row) => d.ranks[row].rank));
    fill(
      this.root,
      verdict(d),
      ...d.stuck.slice(0, MOST_LISTED).map(({ message }) => element("p", { class: "error" }, `Hang: ${clean(message, 600)}`)),
      this.findings(d),
      ...(d.fetch.length ? [this.fetch(d.fetch, reachable)] : []),
      ...(d.communicators.length ? [this.communicators(d.communicators)] : []),
      ...notes(d),
    );
  }

  private findings(d: JobDiagnosis): HTMLElement {
    const items = d.findings.map((finding, number) => {
      const title = element("strong", {}, `${number + 1}. ${headline(finding, d.job.ranks)}`);
      const button = element(
        "button",
        { class: "finding", "data-finding": number, title: "open the rank", click: () => this.actions.finding(finding) },
        swatch(colourOf(`idle_${finding.root_cause ?? finding.cause}`)),
        title,
        element("span", { class: "figure" }, time(finding.time_ns_per_step)),
        element("span", { class: "figure share" }, percent(finding.share_of_step)),
      );
      const repaired = `repaired: ${time(finding.predicted_step_ns)} a step (${range(finding)})`;
      const score = finding.score === null || finding.threshold === null ? "" : `; ${finding.score.toFixed(1)} robust standard deviations from its peers, where ${finding.threshold.toFixed(1)} count`;
      const where = finding.where ? `; in ${clean(finding.where, 120)}` : "";
      return element(
        "li",
        {},
        button,
        element("p", {}, clean(finding.message, 700)),
        element("p", { class: "note" }, repaired + score + where),
        ...(finding.recommendations.length
          ? [element("ul", { class: "plain" }, ...finding.recommendations.slice(0, 3).map((text) => element("li", {}, clean(text, 400))))]
          : []),
      );
    });
    return element(
      "section",
      { "aria-label": "Findings" },
      element("h2", {}, "Findings"),
      items.length
        ? element("ol", { class: "findings" }, ...items)
        : element("p", { class: "note" }, "No rank stands out, and nothing that the ranks show by themselves costs the job anything."),
    );
  }

  private fetch(all: Fetch[], reachable: Set<number>): HTMLElement {
    const rows = all.map((one) =>
      element(
        "tr",
        {},
        element("td", {}, this.link(one.rank, `rank ${one.rank}`, one.step)),
        element("td", {}, `${clean(one.why, 100).replace(/\bgpu\b/, "GPU")}; step ${one.step} of its capture`),
        element("td", {}, reachable.has(one.rank) ? "here" : place(one)),
      ),
    );
    return element(
      "section",
      { "aria-label": "Captures to fetch" },
      element("h2", {}, "Captures to look at next"),
      element("table", { class: "facts" }, header("rank", "why", "capture"), ...rows),
    );
  }

  private communicators(all: Communicator[]): HTMLElement {
    const rows = all.slice(0, MOST_LISTED).map((c) =>
      element(
        "tr",
        {},
        element("td", { title: clean(c.name, 400) }, clean(c.name, 28)),
        element("td", {}, words(clean(c.use, 40))),
        element("td", { class: "figure" }, c.members === c.size || c.size < 0 ? count(c.members) : `${c.members} of ${c.size}`),
        element("td", { class: "figure" }, c.operations.toFixed(1)),
        element("td", { class: "figure" }, time(c.transfer_ns)),
        element("td", { class: "figure" }, time(c.skew_ns)),
        element("td", {}, ...(c.last_rank < 0 ? [] : [this.link(c.last_rank, String(c.last_rank)), ` ${percent(c.last_share)}`])),
      ),
    );
    const more = all.length > MOST_LISTED ? `, the ${MOST_LISTED} with most transfer` : "";
    return element(
      "section",
      { "aria-label": "Communicators" },
      element("h2", {}, `Communicators (${count(all.length)}${more})`),
      element("p", { class: "note" }, "Transfer: from the last rank's join to the end, a step. Skew: from the first join to the last, mean."),
      element("table", { class: "facts communicators" }, header("ranks", "use", "size", "a step", "transfer", "skew", "joins last"), ...rows),
    );
  }

  private link(rank: number, text: string, step?: number): HTMLElement {
    return element("button", { class: "link", click: () => this.actions.open(rank, step) }, text);
  }
}

/** A finding in a few words: its reason, and whom the job waits for. */
export function headline(finding: JobFinding, ranks: number): string {
  const who = finding.place || named(finding.ranks, ranks);
  const what = finding.reason || finding.cause;
  return clean(`${words(what).replace(/^./, (c) => c.toUpperCase()).replace(/gpu/i, "GPU")}: ${who}`, 160);
}

function named(ranks: number[], all: number): string {
  if (ranks.length === all) return "all ranks";
  const text = ranks.slice(0, MOST_NAMED).join(", ");
  return `rank${ranks.length > 1 ? "s" : ""} ${text}${ranks.length > MOST_NAMED ? ` and ${ranks.length - MOST_NAMED} more` : ""}`;
}

function range(finding: JobFinding): string {
  return `${time(finding.prediction_low_ns)} to ${time(finding.prediction_high_ns)}`;
}

function place({ hostname, capture }: Fetch): string {
  const file = clean(capture.split("/").pop() ?? "", 60);
  return hostname ? `${file} on ${clean(hostname, 60)}` : file;
}

export function header(...names: string[]): HTMLElement {
  return element("tr", {}, ...names.map((name) => element("th", {}, name)));
}

function verdict(d: JobDiagnosis): HTMLElement {
  const { job, step_ns: step } = d;
  const first = d.findings[0];
  const who = first ? first.place || named(first.ranks, job.ranks) : "";
  const hidden = first !== undefined && first.share_of_step < WORTH;
  const lateness = hidden ? `${who} ${first.ranks.length > 1 ? "are" : "is"} late, but mostly hidden` : `The job waits for ${who}`;
  const waits = first?.reason ? `${lateness}: ${words(first.reason).replace("gpu", "GPU")}`.replace(/^./, (c) => c.toUpperCase()) : "";
  const message = waits || (first ? `${words(first.cause).replace(/^./, (c) => c.toUpperCase())} costs the job most` : "No rank holds the job up");
  const whole = job.world_size && job.world_size !== job.ranks ? ` of ${count(job.world_size)}` : "";
  const gain = step.mean - d.all_repaired_step_ns;
  const facts = [
    `${count(job.ranks)}${whole} rank${job.ranks === 1 && !whole ? "" : "s"} on ${count(job.nodes)} node${job.nodes === 1 ? "" : "s"}, ${count(job.steps)} ${job.digests === 1 ? "" : "shared "}step${job.steps === 1 ? "" : "s"}.`,
    `${time(step.mean)} a step (median ${time(step.median)}, 95th percentile ${time(step.p95)}).`,
    ...(gain > WORTH * step.mean
      ? [`With all late ranks like their peers: ${time(d.all_repaired_step_ns)} a step, ${percent(gain / step.mean)} less.`]
      : first?.reason ? ["Repairing the late ranks alone gains less than a hundredth of the step: others are as late in most steps."] : []),
    ...(job.missing_ranks.length ? [`${count(job.missing_ranks.length)} ranks have no digest.`] : []),
  ];
  return element("section", { "aria-label": "Verdict", class: "verdict" }, element("h2", {}, `${clean(message, 300)}.`), ...facts.map((text) => element("p", { class: "note" }, text)));
}

function notes(d: JobDiagnosis): HTMLElement[] {
  const skipped = d.job.skipped.slice(0, MOST_LISTED).map((s) => `left out: ${clean(s.path, 200)}: ${clean(s.reason, 300)}`);
  if (d.job.skipped.length > MOST_LISTED) skipped.push(`and ${d.job.skipped.length - MOST_LISTED} more were left out`);
  const all = [...d.warnings.map((text) => clean(text, 500)), ...skipped];
  if (!all.length) return [];
  return [element("details", { open: skipped.length > 0 }, element("summary", {}, `Notes (${count(all.length)})`), element("ul", { class: "plain" }, ...all.map((text) => element("li", {}, text))))];
}
