/** Where the comparison and its steps come from: the server, or the page itself. */

import type { Compared, PackedPair, PairLayout, StepPicture } from "./contracts";
import { ask } from "./server";
import { bytesOf, doubles } from "./decode";

export const SIDES = ["before", "after"] as const;
export type Side = (typeof SIDES)[number];
export const NO_ROW = 0xffffffff;

/** Boxes of one row of the picture; times in ns from the step's begin. */
export interface Boxes {
  start: Float64Array;
  end: Float64Array;
}

export interface PairStep extends Omit<StepPicture, "pieces" | "spans" | "operations"> {
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

const words = (text: string): Uint32Array => new Uint32Array(bytesOf(text).buffer);

function read(told: StepPicture): PairStep {
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
    return read((await (await ask("step", { side, device, step })).json()) as StepPicture);
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
