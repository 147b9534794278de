/** Where the step view's figures and pictures come from: the server, or the page itself. */

import type { GridHeader, PackedSteps, StepsAnswer } from "./contracts";
import { ask } from "./server";
import { bytesOf, doubles } from "./decode";
import type { Source } from "./types";

export const NOTHING = 255;
export const COLOURINGS = ["kind", "category", "phase"] as const;
export const SORTS = ["index", "duration"] as const;
export type Colouring = (typeof COLOURINGS)[number];
export type Sort = (typeof SORTS)[number];

/** Figures of all steps of one device; times on the job's clock, ns. */
export interface Figures extends Omit<StepsAnswer, "begin" | "end" | "zero" | "columns"> {
  begin: Float64Array;
  end: Float64Array;
  zero: Float64Array;
  columns: Map<string, Float64Array>;
}

export interface GridRequest {
  device: number;
  align: string;
  sort: Sort;
  colour: Colouring;
  /** Position of the first step in the order, and how many. */
  first: number;
  count: number;
  group: number;
  begin: number;
  bucket: number;
  columns: number;
  phases: boolean;
}

type GridArray = GridHeader["arrays"][number];

/** One byte a cell, row by row; see `timeline/stepview/grid.py`. */
export interface Grid extends Omit<GridHeader, "arrays">, Record<Exclude<GridArray, "phase">, Uint8Array> {
  phase: Uint8Array | null;
}

export interface StepSource {
  /** What is being made that the figures may wait for, in words. */
  progress(): Promise<string>;
  figures(device: number, align: string): Promise<Figures>;
  grid(asked: GridRequest, signal: AbortSignal): Promise<Grid>;
}

function read(told: StepsAnswer): Figures {
  const columns = Object.entries(told.columns).map(
    ([name, text]): [string, Float64Array] => [name, doubles(text)],
  );
  return {
    ...told,
    begin: doubles(told.begin),
    end: doubles(told.end),
    zero: doubles(told.zero),
    columns: new Map(columns),
  };
}

export class ServerSteps implements StepSource {
  constructor(private readonly source: Source) {}

  progress(): Promise<string> {
    return this.source.progress();
  }

  async figures(device: number, align: string): Promise<Figures> {
    return read((await (await ask("steps", { device, align })).json()) as StepsAnswer);
  }

  async grid(asked: GridRequest, signal: AbortSignal): Promise<Grid> {
    const answer = await ask("stepgrid", { ...asked, phases: asked.phases ? 1 : 0 }, signal);
    return decodeGrid(await answer.arrayBuffer());
  }
}

export function decodeGrid(data: ArrayBuffer): Grid {
  const length = new DataView(data).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(data, 4, length))) as GridHeader;
  const size = header.rows * header.columns;
  const arrays = new Map(
    header.arrays.map((name, i) => [name, new Uint8Array(data, 4 + length + i * size, size)]),
  );
  return {
    ...header,
    busy: arrays.get("busy")!,
    busy_code: arrays.get("busy_code")!,
    idle: arrays.get("idle")!,
    idle_code: arrays.get("idle_code")!,
    phase: arrays.get("phase") ?? null,
  };
}

interface Pieces {
  start: Float64Array;
  length: Float64Array;
  step: Uint32Array;
  /** Number of the first piece of each step, and one more. */
  first: Uint32Array;
}

export class StaticSteps implements StepSource {
  private readonly pieces = new Map<number, Pieces>();

  constructor(
    private readonly packed: PackedSteps | null,
    private readonly refused: string,
    private readonly classes: { key: string }[],
  ) {}

  progress(): Promise<string> {
    return Promise.resolve("");
  }

  figures(device: number, align: string): Promise<Figures> {
    const found = this.packed?.devices[device];
    const zero = found?.zero[align];
    if (!this.packed || !found || !zero)
      return Promise.reject(new Error(this.refused || "this page does not hold these steps"));
    const told = { ...found.figures, titles: this.packed.titles, number: device };
    return Promise.resolve(read({ ...told, zero: zero.at, missing: zero.missing }));
  }

  grid(asked: GridRequest): Promise<Grid> {
    const found = this.packed?.devices[asked.device];
    if (!found) return Promise.reject(new Error(this.refused));
    const pieces = this.of(asked.device);
    const zero = doubles(found.zero[asked.align].at);
    const begin = doubles(found.figures.begin);
    const end = doubles(found.figures.end);
    const steps = order(begin, end, asked.sort).slice(asked.first, asked.first + asked.count);
    const idle = this.classes.map(({ key }) => key.startsWith("idle_"));
    const code = bytesOf(found.codes[asked.colour]);
    const made = cells(pieces, code, idle, zero, steps, asked);
    if (asked.phases && found.phases)
      made.phase = cells(pieces, bytesOf(found.codes.phase), idle, zero, steps, asked).busy_code;
    return Promise.resolve(made);
  }

  private of(device: number): Pieces {
    const known = this.pieces.get(device);
    if (known) return known;
    const found = this.packed!.devices[device];
    const step = new Uint32Array(bytesOf(found.step).buffer);
    const first = new Uint32Array(found.figures.count + 1).fill(step.length);
    for (let i = step.length - 1; i >= 0; i--) first[step[i]] = i;
    for (let s = found.figures.count - 1; s >= 0; s--) first[s] = Math.min(first[s], first[s + 1]);
    const made = { start: doubles(found.start), length: doubles(found.length), step, first };
    this.pieces.set(device, made);
    return made;
  }
}

/** Numbers of the steps from top to bottom, as `DeviceSteps.sorted` gives them. */
export function order(begin: Float64Array, end: Float64Array, sort: Sort): Uint32Array {
  const steps = Uint32Array.from(begin.keys());
  if (sort === "index") return steps;
  return steps.sort((a, b) => end[b] - begin[b] - (end[a] - begin[a]) || a - b);
}

/** The same as `timeline/stepview/grid.py` gives. */
export function cells(
  pieces: Pieces,
  code: Uint8Array,
  idle: boolean[],
  zero: Float64Array,
  steps: Uint32Array,
  asked: GridRequest,
): Grid {
  const { columns, bucket, group } = asked;
  const rows = Math.ceil(steps.length / group);
  const made: Grid = {
    rows,
    columns,
    group,
    begin: asked.begin,
    bucket,
    busy: new Uint8Array(rows * columns),
    busy_code: new Uint8Array(rows * columns).fill(NOTHING),
    idle: new Uint8Array(rows * columns),
    idle_code: new Uint8Array(rows * columns).fill(NOTHING),
    phase: null,
  };
  for (let row = 0; row < rows; row++) {
    const byCode = new Map<number, Float64Array>();
    const mine = steps.subarray(row * group, (row + 1) * group);
    for (const step of mine)
      for (let i = pieces.first[step]; i < pieces.first[step + 1]; i++) {
        const from = pieces.start[i] - zero[step] - asked.begin;
        const to = Math.min(from + pieces.length[i], bucket * columns);
        let at = Math.max(from, 0);
        if (to <= at) continue;
        let covered = byCode.get(code[i]);
        if (!covered) byCode.set(code[i], (covered = new Float64Array(columns)));
        while (at < to) {
          const column = Math.floor(at / bucket);
          const stop = Math.min(to, (column + 1) * bucket);
          covered[column] += stop - at;
          at = stop;
        }
      }
    const full = bucket * mine.length;
    const kinds = [...byCode.keys()].sort((a, b) => a - b);
    for (let column = 0; column < columns; column++) {
      const sum = [0, 0];
      const best = [0, 0];
      const which = [NOTHING, NOTHING];
      for (const kind of kinds) {
        const ns = byCode.get(kind)![column];
        const side = idle[kind] ? 1 : 0;
        sum[side] += ns;
        if (ns > best[side]) [best[side], which[side]] = [ns, kind];
      }
      const cell = row * columns + column;
      made.busy[cell] = Math.min(255, Math.ceil((sum[0] * 255) / full));
      made.idle[cell] = Math.min(255, Math.ceil((sum[1] * 255) / full));
      [made.busy_code[cell], made.idle_code[cell]] = which;
    }
  }
  return made;
}
