/** Answers from the server that served the page. Addresses are relative: they keep the token. */

import type { Change, Details, Diagnosed, FlameAnswer, GuideBook, Hits, Instances, Layout, Memory, NotesAnswer, Place, Progress, Refusal, Statistics, TableAnswer } from "./contracts";
import { decode } from "./decode";
import type { Source, Span, TrackTile } from "./types";

export class ServerSource implements Source {
  readonly editable = true;
  private readonly names = new Map<number, string>();

  layout(): Promise<Layout> {
    return this.json("layout", {});
  }

  diagnosis(): Promise<Diagnosed> {
    return this.json("diagnosis", {});
  }

  async tiles(
    tracks: number[],
    begin: number,
    bucket: number,
    columns: number,
    signal: AbortSignal,
  ): Promise<Map<number, TrackTile>> {
    const answer = await ask("tile", { tracks: tracks.join(","), begin, bucket, columns }, signal);
    const { tiles, names } = decode(await answer.arrayBuffer());
    for (const [number, text] of Object.entries(names)) this.names.set(Number(number), text);
    return tiles;
  }

  row(track: number, row: number): Promise<Details> {
    return this.json("row", { track, row });
  }

  near(track: number, row: number, step: number, same: boolean): Promise<Place | null> {
    return this.json("near", { track, row, step, same: same ? 1 : 0 });
  }

  search(text: string, regex: boolean): Promise<Hits> {
    return this.json("search", { text, regex: regex ? 1 : 0 });
  }

  statistics(begin: number, end: number): Promise<Statistics> {
    return this.json("statistics", { begin, end });
  }

  table(by: string, window: Span | null): Promise<TableAnswer> {
    return this.json("table", { by, ...window });
  }

  instances(by: string, group: number, window: Span | null): Promise<Instances> {
    return this.json("instances", { by, group, ...window });
  }

  flame(kind: string, weight: string, reverse: boolean, window: Span | null): Promise<FlameAnswer> {
    return this.json("flame", { kind, weight, reverse: reverse ? 1 : 0, ...window });
  }

  memory(): Promise<Memory> {
    return this.json("memory", {});
  }

  guide(): Promise<GuideBook> {
    return this.json("guide", {});
  }

  async progress(): Promise<string> {
    return (await this.json<Progress>("progress", {})).doing;
  }

  notes(): Promise<NotesAnswer> {
    return this.json("notes", {});
  }

  async saveNote(change: Change): Promise<NotesAnswer> {
    const headers = { "content-type": "application/json" };
    const sent = { method: "POST", headers, body: JSON.stringify(change) };
    return (await answered(fetch("api/note", sent))).json() as Promise<NotesAnswer>;
  }

  name(number: number): string {
    return this.names.get(number) ?? "";
  }

  private async json<T>(what: string, query: Record<string, string | number>): Promise<T> {
    return (await ask(what, query)).json() as Promise<T>;
  }
}

export async function ask(
  what: string,
  query: Record<string, string | number>,
  signal?: AbortSignal,
): Promise<Response> {
  const words = new URLSearchParams(Object.entries(query).map(([k, v]) => [k, String(v)]));
  return answered(fetch(`api/${what}?${words}`, { signal: signal ?? null }));
}

/** The answer, or its reason as an error. */
async function answered(asked: Promise<Response>): Promise<Response> {
  let answer: Response;
  try {
    answer = await asked;
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new Error("the server does not answer; is stepscope ui still running?");
  }
  if (!answer.ok) {
    const told = await answer.text();
    let message = told;
    try {
      message = (JSON.parse(told) as Refusal).error;
    } catch {
      // a refusal before any answer is plain text
    }
    throw new Error(message || `the server refused (${answer.status})`);
  }
  return answer;
}
