/** What stands beside the steps: figures of all, of the chosen one, and how their lengths spread. */

import type { Colours } from "./colours";
import { element, fill } from "./dom";
import { clean } from "./format";
import { histogram } from "./steppaint";
import { legend, showFigures, showStep } from "./steppanel";
import type { Figures } from "./stepsource";
import type { StepState } from "./stepstate";
import { themeNow } from "./theme";

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

  show(f: Figures, now: StepState, odd: Set<number>): void {
    showFigures(this.root, f, {
      title: f.titles[now.device],
      parts: [this.bars, this.chosen],
      legend: legend(f, now.colour, this.colours),
      select: (step) => this.actions.select(step),
    });
    this.select(f, now.selected, odd);
  }

  fail(says: string): void {
    fill(this.root, element("h2", {}, "No steps"), element("p", {}, clean(says, 800)));
  }

  select(f: Figures, step: number, odd: Set<number>): void {
    this.selected = step;
    this.draw(f, odd);
    showStep(this.chosen, f, step, this.colours, (chosen) => this.actions.open(chosen));
  }

  draw(f: Figures, odd: Set<number>): void {
    this.bins = histogram(this.bars, f, themeNow(), odd, this.selected).bins;
    this.bars.setAttribute("aria-label", `histogram of ${f.last - f.first + 1} step times in ${this.bins.length} bins`);
  }
}
