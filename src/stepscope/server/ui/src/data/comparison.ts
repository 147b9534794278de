/** Where the comparison and its steps come from: the server, or the page itself. */

import type { DrawnClass, LegendEntry } from "../shared/colours";
import { ask } from "./server";
import type { Comparison } from "./contracts";
import { bytesOf, doubles } from "./decode";

export const SIDES = ["before", "after"] as const;
export type Side = (typeof SIDES)[number];
export const NO_ROW = 0xffffffff;

export type KernelDifference = Comparison["kernels"][number];

export interface PairDevice {
  title: string;
  count: number;
  first: number;
  last: number;
  median: number;
  lengths: number[];
}

export interface Compared {
  comparison: Comparison;
  facts: string[];
  notes: string[];
  devices: Record<Side, PairDevice[]>;
}

export interface PairLayout {
  pair: Record<Side, string[]>;
  classes: DrawnClass[];
  legend: LegendEntry[];
}

interface StepAnswer {
  step: number;
  begin: number;
  length: number;
  first_kernel: number;
  counted: boolean;
  left_out: number;
  streams: number[];
  names: string[];
  pieces: Record<string, string>;
  spans: Record<string, string>;
  operations: Record<string, string>;
}

/** Boxes of one row of the picture; times in ns from the step's begin. */
export interface Boxes {
  start: Float64Array;
  end: Float64Array;
}

export interface PairStep extends Omit<StepAnswer, "pieces" | "spans" | "operations"> {
  pieces: Boxes & { code: Uint8Array };
  spans: Boxes & { row: Uint32Array };
  operations: Boxes & {
    code: Uint8Array;
    stream: Uint32Array;
    name: Uint32Array;
    kernel: Uint32Array;
    range: Uint32Array;
    operator: Uint32Array;
  };
}

export interface PairSource {
  /** Whether each run has a page of its own. */
  readonly timelines: boolean;
  layout(): Promise<PairLayout>;
  comparison(): Promise<Compared>;
  step(side: Side, device: number, step: number): Promise<PairStep>;
}

export interface PackedPair {
  layout: PairLayout;
  comparison: Compared;
  pair_steps: Record<string, StepAnswer>;
}

const words = (text: string): Uint32Array => new Uint32Array(bytesOf(text).buffer);

function read(told: StepAnswer): PairStep {
  const { pieces, spans, operations } = told;
  return {
    ...told,
    pieces: { start: doubles(pieces.start), end: doubles(pieces.end), code: bytesOf(pieces.code) },
    spans: { start: doubles(spans.start), end: doubles(spans.end), row: words(spans.row) },
    operations: {
      start: doubles(operations.start),
      end: doubles(operations.end),
      code: bytesOf(operations.code),
      stream: words(operations.stream),
      name: words(operations.name),
      kernel: words(operations.kernel),
      range: words(operations.range),
      operator: words(operations.operator),
    },
  };
}

export class ServerPair implements PairSource {
  readonly timelines = true;

  async layout(): Promise<PairLayout> {
    return (await ask("layout", {})).json() as Promise<PairLayout>;
  }

  async comparison(): Promise<Compared> {
    return (await ask("comparison", {})).json() as Promise<Compared>;
  }

  async step(side: Side, device: number, step: number): Promise<PairStep> {
    return read((await (await ask("step", { side, device, step })).json()) as StepAnswer);
  }
}

export class StaticPair implements PairSource {
  readonly timelines = false;

  constructor(private readonly packed: PackedPair) {}

  layout(): Promise<PairLayout> {
    return Promise.resolve(this.packed.layout);
  }

  comparison(): Promise<Compared> {
    return Promise.resolve(this.packed.comparison);
  }

  step(side: Side, device: number, step: number): Promise<PairStep> {
    const found = this.packed.pair_steps[`${side}/${device}/${step}`];
    return found
      ? Promise.resolve(read(found))
      : Promise.reject(
          new Error(
            `this page does not hold step ${step} of ${side}; stepscope ui BEFORE AFTER --compare shows all`,
          ),
        );
  }
}
