/** Gets the picture of the steps, one question at a time, and keeps the last. */

import type { Grid, StepSource } from "../data/steps";
import type { Colours } from "../shared/colours";
import { wrong } from "../shared/frame";
import { picture } from "./painter";

const PAUSE_MS = 50;

type Ask = Parameters<StepSource["grid"]>[0];

export interface Shown {
  grid: Grid;
  image: HTMLCanvasElement;
  /** Place of its first step in the order of the rows. */
  first: number;
  rowPx: number;
}

export class StepGrids {
  shown: Shown | null = null;
  private wanted = "";
  /** What `shown` answers. */
  private answered = "";
  /** What could not be answered; it is not asked again. */
  private refused = "";
  private running = false;
  private timer = 0;

  constructor(
    private readonly source: StepSource,
    private readonly colours: Colours,
    private readonly changed: () => void,
    private readonly fail: (message: string) => void,
  ) {}

  /** Whether what is wanted is shown, or cannot be. */
  get settled(): boolean {
    return !this.running && (this.answered === this.wanted || this.refused === this.wanted);
  }

  forget(): void {
    this.shown = null;
    this.answered = this.refused = "";
  }

  want(ask: Ask, rowPx: number): void {
    const wanted = JSON.stringify(ask);
    this.wanted = wanted;
    if (this.settled || this.running) return;
    clearTimeout(this.timer);
    this.timer = window.setTimeout(() => void this.fetch(ask, wanted, rowPx), this.shown ? PAUSE_MS : 0);
  }

  private async fetch(ask: Ask, wanted: string, rowPx: number): Promise<void> {
    if (this.running) return;
    this.running = true;
    try {
      const grid = await this.source.grid(ask, new AbortController().signal);
      this.shown = { grid, image: picture(grid, rowPx, this.colours), first: ask.first, rowPx };
      this.answered = wanted;
    } catch (error) {
      this.fail(wrong(error));
      this.refused = wanted;
    } finally {
      this.running = false;
      this.changed();
    }
  }
}
