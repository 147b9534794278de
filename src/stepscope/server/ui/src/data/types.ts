/** What the page makes of answers, and whom it asks. Times are whole ns on the job's clock, exact as doubles. */

import type { Change, Counter, Details, Diagnosed, FlameAnswer, GuideBook, Hits, Instances, Layout, Memory, NotesAnswer, Place, RowArrays, Statistics, TableAnswer, TableColumns } from "./contracts";

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

/** One depth of one track in one window. */
export interface Row extends RowArrays {
  depth: number;
}

export interface TrackTile {
  begin: number;
  bucket: number;
  columns: number;
  depths: number;
  rows: Row[];
  counter: Counter | null;
}

/** A row of a table, whose answer stands in columns. */
export type GroupRow = { [Key in keyof TableColumns]: TableColumns[Key][number] };

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
  saveNote(change: Change): Promise<NotesAnswer>;
  /** Whether notes can be changed. */
  readonly editable: boolean;
  name(number: number): string;
}
