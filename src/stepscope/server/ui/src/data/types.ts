/** What the server answers. Times are whole nanoseconds on the job's clock, exact as doubles. */

import type { Diagnosis, GuideBook, Memory } from "./contracts";
import type { DrawnClass, LegendEntry } from "../shared/colours";

/** A window of time, ns. */
export interface Span {
  begin: number;
  end: number;
}

/** A span that the server takes: whole nanoseconds, and at least one. */
export function whole(span: Span): Span {
  const begin = Math.round(span.begin);
  return { begin, end: Math.max(begin + 1, Math.round(span.end)) };
}

export interface TrackInfo {
  id: number;
  title: string;
  group: string;
  kind: "slices" | "counter";
  table: string;
  path: string;
  rank: number;
  thread: number;
  device: number;
  explained: boolean;
  unit: string;
}

export interface Member {
  rank: number;
  path: string;
  source: string;
  host: string;
  offset: number;
  missing: { table: string; reason: string; flag: string }[];
}

export interface Layout {
  begin: number;
  end: number;
  classes: DrawnClass[];
  legend: LegendEntry[];
  causes: Record<string, string>;
  members: Member[];
  tracks: TrackInfo[];
  paths: string[];
  /** Address of the job's page that this rank belongs to; empty for none. */
  above: string;
  problems: Diagnosis["problems"];
}

/** One depth of one track in one window. */
export interface Row {
  depth: number;
  start: Float64Array;
  end: Float64Array;
  row: Uint32Array;
  name: Uint32Array;
  code: Uint8Array;
  column: Uint32Array;
  share: Float32Array;
  dominant: Uint8Array;
  count: Uint32Array;
}

export interface Counter {
  column: Uint32Array;
  low: Float32Array;
  high: Float32Array;
  last: Float32Array;
  before: Float32Array;
  limits: Float32Array;
}

export interface TrackTile {
  begin: number;
  bucket: number;
  columns: number;
  depths: number;
  rows: Row[];
  counter: Counter | null;
}

export interface Place {
  track: number;
  row: number;
  depth: number;
  start: number;
  end: number;
  name: string;
}

export interface Details extends Place {
  table: string;
  class: string;
  facts: [string, string | number | boolean][];
  same: { count: number; number: number; total: number };
  arrows: { message: string; forward: boolean; ends: Place[]; more: number };
  /** Other links: forward message that they lead to what comes later. */
  links?: { message: string; forward: boolean; ends: Place[]; more: number }[];
}

/** A table of `timeline/tables.py`. */
export interface TableAnswer {
  by: string;
  begin: number;
  end: number;
  wall_ns: number;
  steps: number;
  keys: string[];
  left_out: number;
  columns: {
    group: number[];
    names: string[][];
    count: number[];
    total_ns: number[];
    mean_ns: number[];
    median_ns: number[];
    p95_ns: number[];
    share: number[];
    longest_kernel: string[];
  };
}

export interface GroupRow {
  group: number;
  names: string[];
  count: number;
  total_ns: number;
  mean_ns: number;
  median_ns: number;
  p95_ns: number;
  share: number;
  longest_kernel: string;
}

/** Where the operations of one row of a table are drawn, in order of time. */
export interface Instances {
  total: number;
  start: number[];
  end: number[];
  track: number[];
  row: number[];
  depth: number[];
}

/** A tree of `timeline/stacks.py`; parents stand before their children. */
export interface FlameAnswer {
  kind: string;
  kinds: string[];
  unit: string;
  total: number;
  left_out: number;
  names: string[];
  nodes: { parent: number[]; name: number[]; total: number[]; own: number[]; count: number[] };
}

export interface Note {
  id: string;
  revision: number;
  begin: number;
  end: number;
  text: string;
}

export interface NotesAnswer {
  revision: number;
  path: string;
  notes: Note[];
}

export interface Hits {
  total: number;
  hits: Place[];
  names: { name: string; count: number; total: number; track: number; row: number }[];
}

export interface DeviceStatistics {
  title: string;
  busy: Record<string, number>;
  idle: number;
  idle_by_cause: Record<string, number>;
  categories: Record<string, number>;
  kernels: { name: string; total: number; count: number; track: number; row: number }[];
}

export interface Statistics {
  begin: number;
  end: number;
  devices: DeviceStatistics[];
  threads: { title: string; calls: number; kinds: Record<string, number> }[];
}

export interface Instance {
  begin: number;
  end: number;
  cost: number;
  rank: number;
  what: string;
  tracks: number[];
  thread: number;
  responsible: (Place & { overlap: number })[];
  /** Kernels of other ranks that wait meanwhile. */
  waiting: Place[];
  /** Which it is of how many, the largest first, and whether it is the typical one. */
  number: number;
  of: number;
  typical: boolean;
}

export type Finding = Diagnosis["findings"][number];
export type Accounting = Diagnosis["accounting"][number];

export interface Diagnosed {
  diagnosis: Diagnosis;
  instances: Instance[][];
}

/** Where answers come from: a server, or the page itself. */
export interface Source {
  layout(): Promise<Layout>;
  diagnosis(): Promise<Diagnosed>;
  tiles(
    tracks: number[],
    begin: number,
    bucket: number,
    columns: number,
    signal: AbortSignal,
  ): Promise<Map<number, TrackTile>>;
  row(track: number, row: number): Promise<Details>;
  near(track: number, row: number, step: number, same: boolean): Promise<Place | null>;
  search(text: string, regex: boolean): Promise<Hits>;
  statistics(begin: number, end: number): Promise<Statistics>;
  /** Tables and flame graphs of a window; null for the steady steps. */
  table(by: string, window: Span | null): Promise<TableAnswer>;
  instances(by: string, group: number, window: Span | null): Promise<Instances>;
  flame(kind: string, weight: string, reverse: boolean, window: Span | null): Promise<FlameAnswer>;
  /** What was allocated, and by whom. */
  memory(): Promise<Memory>;
  /** Which tool answers which question, about this capture. */
  guide(): Promise<GuideBook>;
  /** What is being made that a question may wait for, in words; empty for nothing. */
  progress(): Promise<string>;
  notes(): Promise<NotesAnswer>;
  saveNote(change: Note & { deleted: boolean }): Promise<NotesAnswer>;
  /** Whether notes can be changed. */
  readonly editable: boolean;
  name(number: number): string;
}
