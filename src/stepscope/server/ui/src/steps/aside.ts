/** What stands beside the steps: figures of all, of the chosen one, and how their lengths spread. */

import type { Colouring, Figures } from "../data/steps";
import { coloursLegend, type Colours } from "../shared/colours";
import { element, fill, swatch } from "../shared/dom";
import { clean, count, percent, time, words } from "../shared/format";
import { themeNow } from "../shared/theme";
import type { StepState } from "./address";
import { histogram } from "./painter";

export interface AsideActions {
  select(step: number): void;
  open(step: number): void;
}

export class StepAside {
  readonly root = element("aside", { "aria-label": "Step figures" });
  private readonly chosen = element("section", { "aria-label": "Selected step" });
  private readonly bars = element("canvas", { class: "histogram", role: "img", tabindex: -1 });
  private bins: number[][] = [];
  private selected = -1;

  constructor(
    private readonly colours: Colours,
    private readonly actions: AsideActions,
  ) {
    this.bars.addEventListener("click", (event) => {
      const box = this.bars.getBoundingClientRect();
      const bin = Math.floor(((event.clientX - box.left) / box.width) * this.bins.length);
      const steps = this.bins[bin] ?? [];
      if (steps.length) actions.select(steps[(steps.indexOf(this.selected) + 1) % steps.length]);
    });
  }

  show(f: Figures, now: StepState, outlier: Set<number>): void {
    showFigures(this.root, f, {
      title: f.titles[now.device],
      parts: [this.bars, this.chosen],
      legend: legend(f, now.colour, this.colours),
      select: (step) => this.actions.select(step),
    });
    this.select(f, now.selected, outlier);
  }

  fail(message: string): void {
    fill(this.root, element("h2", {}, "No steps"), element("p", {}, clean(message, 800)));
  }

  select(f: Figures, step: number, outlier: Set<number>): void {
    this.selected = step;
    this.draw(f, outlier);
    showStep(this.chosen, f, step, this.colours, (chosen) => this.actions.open(chosen));
  }

  draw(f: Figures, outlier: Set<number>): void {
    this.bins = histogram(this.bars, f, themeNow(), outlier, this.selected).bins;
    this.bars.setAttribute("aria-label", `histogram of ${f.last - f.first + 1} step times in ${this.bins.length} bins`);
  }
}

const MOST_LISTED = 200;
const PARTS: [string, string, string][] = [
  ["compute_ns", "compute", "busy_compute"],
  ["exposed_communication_ns", "exposed communication", "busy_communication"],
  ["exposed_copy_ns", "exposed copies", "busy_copy"],
  ["memset_ns", "memory sets", "busy_memset"],
];

export interface Around {
  /** Which device it is. */
  title: string;
  /** What stands between the figures and the outlier steps. */
  parts: HTMLElement[];
  legend: HTMLElement;
  select(step: number): void;
}

export function showFigures(parent: HTMLElement, f: Figures, around: Around): void {
  const counted = f.last - f.first + 1;
  const lengths = Array.from({ length: counted }, (_, i) => f.end[f.first + i] - f.begin[f.first + i]).sort((a, b) => a - b);
  const at = (share: number): number => lengths[Math.min(counted - 1, Math.floor(share * counted))];
  const fact = (name: string, value: string): HTMLElement =>
    element("tr", {}, element("th", {}, name), element("td", { class: "figure" }, value));
  const outlier = f.outliers.map((o) =>
    element(
      "li",
      {},
      element("button", { class: "link", click: () => around.select(o.step) }, `▲ step ${o.step}: +${time(o.excess_ns)}`),
      element("div", { class: "note" }, clean(o.message, 500)),
    ),
  );
  fill(
    parent,
    element("h2", {}, `${count(f.count)} steps · ${clean(around.title, 60)}`),
    element(
      "table",
      { class: "facts" },
      fact("median (◆)", `${time(f.end[f.median] - f.begin[f.median])}, step ${f.median}`),
      fact("5 % to 95 %", `${time(at(0.05))} to ${time(at(0.95))}`),
      fact("shortest, longest", `${time(lengths[0])}, ${time(lengths[counted - 1])}`),
      fact("counted", `${f.first} to ${f.last}`),
    ),
    around.parts[0],
    element("p", { class: "note" }, "Steps by length; ▲ outlier, ◆ median. A click chooses one."),
    ...around.parts.slice(1),
    element(
      "section",
      { "aria-label": "Outlier steps" },
      element("h2", {}, `Outlier steps (${count(f.outliers.length)}${f.outliers.length > MOST_LISTED ? `, the first ${MOST_LISTED}` : ""})`),
      outlier.length
        ? element("ul", { class: "findings" }, ...outlier.slice(0, MOST_LISTED))
        : element("p", { class: "note" }, counted < 5 ? "Fewer than 5 steps tell no normal length." : "None takes far longer than the others."),
    ),
    element(
      "details",
      {},
      element("summary", {}, "How the steps were found"),
      element("p", { class: "note" }, clean(f.message, 400)),
      ...(f.set_aside ? [element("p", { class: "note" }, clean(f.set_aside, 400))] : []),
      element("p", { class: "note" }, "Idle time of steps that are set aside has no cause and is left blank."),
    ),
    around.legend,
    coloursLegend(),
  );
}

export function legend(f: Figures, colour: Colouring, colours: Colours): HTMLElement {
  const busy: Record<Colouring, RegExp> = {
    kind: /^busy_/,
    category: /^(kernel_|copy_|memset$)/,
    phase: /^phase_/,
  };
  const idle = new Set([...f.columns.keys()].filter((c) => c.startsWith("idle:")).map((c) => `idle_${c.slice(5)}`));
  const items: HTMLElement[] = [];
  colours.classes.forEach(({ key }, i) => {
    const hatched = idle.has(key);
    if (!hatched && !busy[colour].test(key)) return;
    const square = swatch(colours.css[i]);
    if (hatched) square.classList.add("hatched");
    items.push(element("li", {}, square, hatched ? `idle: ${colours.message[i]}` : colours.message[i]));
  });
  return element(
    "details",
    { open: colour !== "category" },
    element("summary", {}, "In these rows: solid works, hatched waits"),
    element("ul", { class: "legend" }, ...items),
  );
}

/** Everything that is known of the chosen step. */
export function showStep(
  parent: HTMLElement,
  f: Figures,
  step: number,
  colours: Colours,
  open: (step: number) => void,
): void {
  if (step < 0) {
    fill(parent, element("h2", {}, "Selected step"), element("p", { class: "note" }, "None: press ↓, or Shift+click a row. A click opens it in the timeline."));
    return;
  }
  const wall = f.end[step] - f.begin[step];
  const typical = f.end[f.median] - f.begin[f.median];
  const row = (message: string, ns: number, key: string): HTMLElement => {
    const square = swatch(colours.css[colours.classes.findIndex((c) => c.key === key)] ?? "transparent");
    if (key.startsWith("idle_")) square.classList.add("hatched");
    return element(
      "li",
      {},
      square,
      element("span", { class: "grow" }, message),
      element("span", { class: "figure" }, time(ns)),
      element("span", { class: "figure share" }, percent(ns / Math.max(1, wall))),
    );
  };
  const outlier = f.outliers.find((o) => o.step === step);
  const aside = step < f.first || step > f.last;
  fill(
    parent,
    element("h2", {}, `Step ${step}`),
    element("p", {}, `${time(wall)}, ${wall >= typical ? "+" : "−"}${time(Math.abs(wall - typical))} to the median`),
    ...(aside ? [element("p", { class: "note" }, "set aside: not counted in any figure")] : []),
    ...(outlier ? [element("p", {}, `▲ outlier: ${clean(outlier.message, 500)}`)] : []),
    element("ul", { class: "legend" }, ...partsOf(f, step).map(([message, ns, key]) => row(message, ns, key))),
    element("p", {}, element("button", { click: () => open(step) }, "Open in the timeline (Enter)")),
  );
}

/** What a step consists of: words, ns, class. */
export function partsOf({ columns }: Figures, step: number): [string, number, string][] {
  const found: [string, number, string][] = PARTS.map(([column, message, key]) => [message, columns.get(column)?.[step] ?? 0, key]);
  let known = 0;
  for (const [column, values] of columns) {
    if (!column.startsWith("idle:")) continue;
    found.push([`idle: ${words(column.slice(5))}`, values[step], `idle_${column.slice(5)}`]);
    known += values[step];
  }
  const rest = (columns.get("idle_ns")?.[step] ?? 0) - known;
  found.push(["idle", rest, ""]);
  return found.filter(([, ns]) => ns > 0);
}
