/** Answers from the page itself: a window of a timeline that was written into one file. */

import type { Details, DeviceStatistics, Diagnosed, FlameAnswer, GuideBook, Hits, Instances, Layout, Links, Memory, NamedRows, NotesAnswer, Packed, PackedFact, PackedPair, Place, Statistics, TableAnswer, TrackInfo } from "./contracts";
import { bytesOf, doubles } from "./decode";
import { StaticTables, type Link } from "./static_tables";
import { counterTile, rowTile, type Content, type Samples } from "./static_tiles";
import type { Source, Span, TrackTile } from "./types";

const MOST_HITS = 500;
const TOP = 12;
const MOST_THREADS = 4;
const MOST_ENDS = 50;

type LinkTo = [message: string, kind: Link, forward: boolean];
const ARROWS: Record<string, LinkTo> = {
  api_call: ["Launched", "launch", true],
  gpu_op: ["Launched by", "launch", false],
  idle_gap: ["Ended by", "end_of_gap", true],
};
const LINKS: LinkTo[] = [
  ["Forward operator", "gradient", false],
  ["Backward operators", "gradient", true],
  ["Launch of what ended it", "launch_after_gap", false],
];

/** What is inside the page, or null where a server is behind it. */
export async function packedPage(): Promise<Packed | PackedPair | null> {
  const element = document.getElementById("trace");
  if (!element) return null;
  const packed = bytesOf(element.textContent ?? "");
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return (await new Response(stream).json()) as Packed | PackedPair;
}

export class StaticSource implements Source {
  private readonly content = new Map<number, Content>();
  private readonly samples = new Map<number, Samples>();
  private readonly panels: StaticTables;
  readonly editable = false;

  constructor(readonly packed: Packed) {
    this.panels = new StaticTables(packed.panels, packed.layout, bytesOf);
    for (const [id, track] of Object.entries(packed.tracks)) {
      if ("time" in track) {
        this.samples.set(Number(id), { time: doubles(track.time), value: doubles(track.value) });
        continue;
      }
      const depth = bytesOf(track.depth);
      const depths = depth.reduce((most, d) => Math.max(most, d + 1), 0);
      const rows = Array.from({ length: depths }, (_, d) =>
        Uint32Array.from([...depth.keys()].filter((row) => depth[row] === d)),
      );
      this.content.set(Number(id), {
        start: doubles(track.start),
        end: doubles(track.end),
        depth,
        name: new Uint32Array(bytesOf(track.name).buffer),
        code: bytesOf(track.code),
        facts: factsOf(track.facts),
        rows,
      });
    }
  }

  layout(): Promise<Layout> {
    return Promise.resolve(this.packed.layout);
  }

  diagnosis(): Promise<Diagnosed> {
    const { diagnosed, refused } = this.packed;
    return diagnosed ? Promise.resolve(diagnosed) : Promise.reject(new Error(refused));
  }

  name(number: number): string {
    return this.packed.names[number] ?? "";
  }

  tiles(
    tracks: number[],
    begin: number,
    bucket: number,
    columns: number,
  ): Promise<Map<number, TrackTile>> {
    const found = new Map<number, TrackTile>();
    for (const track of tracks) {
      const base = { begin, bucket, columns };
      const samples = this.samples.get(track);
      const content = this.content.get(track);
      if (samples) {
        const counter = counterTile(samples, begin, bucket, columns);
        found.set(track, { ...base, depths: 1, rows: [], counter });
      } else if (content) {
        const rows = content.rows.map((r, depth) =>
          rowTile(content, r, depth, begin, bucket, columns),
        );
        found.set(track, { ...base, depths: rows.length, rows, counter: null });
      }
    }
    return Promise.resolve(found);
  }

  row(track: number, row: number): Promise<Details> {
    const content = this.content.get(track);
    if (!content || row >= content.start.length) return Promise.reject(new Error("no such row"));
    const same = { count: 0, number: 0, total: 0 };
    content.name.forEach((name, other) => {
      if (name !== content.name[row]) return;
      same.count++;
      same.total += content.end[other] - content.start[other];
      if (other <= row) same.number++;
    });
    const facts: Details["facts"] = [];
    for (const [key, of] of content.facts) {
      const value = of(row);
      if (value !== null) facts.push([key, value]);
    }
    const info = this.info(track);
    return Promise.resolve({
      ...this.place(track, row),
      table: info.table,
      class: this.packed.layout.classes[content.code[row]].key,
      facts,
      same,
      arrows: this.linked(track, row, ...(ARROWS[info.table] ?? ARROWS.gpu_op)),
      links: LINKS.map((link) => this.linked(track, row, ...link)).filter(({ ends }) => ends.length > 0),
    });
  }

  near(track: number, row: number, step: number, same: boolean): Promise<Place | null> {
    const content = this.content.get(track)!;
    const of = same ? content.name : content.depth;
    for (let at = row + step; at >= 0 && at < of.length; at += step)
      if (of[at] === of[row]) return Promise.resolve(this.place(track, at));
    return Promise.resolve(null);
  }

  search(text: string, regex: boolean): Promise<Hits> {
    let pattern: RegExp;
    try {
      pattern = new RegExp(regex ? text : text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "i");
    } catch {
      return Promise.reject(new Error("no regular expression"));
    }
    const wanted = new Set(
      Object.entries(this.packed.names)
        .filter(([, name]) => pattern.test(name.slice(0, 2000)))
        .map(([number]) => Number(number)),
    );
    const hits: Place[] = [];
    const names = new Map<number, NamedRows>();
    for (const [track, content] of this.content) {
      if (this.info(track).explained) continue;
      content.name.forEach((name, row) => {
        if (!wanted.has(name)) return;
        hits.push(this.place(track, row));
        const entry = names.get(name) ?? { name: this.name(name), count: 0, total: 0, track, row };
        entry.count++;
        entry.total += content.end[row] - content.start[row];
        names.set(name, entry);
      });
    }
    hits.sort((a, b) => a.start - b.start || a.track - b.track);
    return Promise.resolve({
      total: hits.length,
      hits: hits.slice(0, MOST_HITS),
      names: [...names.values()].sort((a, b) => b.total - a.total).slice(0, 100),
    });
  }

  statistics(begin: number, end: number): Promise<Statistics> {
    const { tracks, classes } = this.packed.layout;
    const inside = (id: number, add: (row: number, ns: number) => void): void => {
      const content = this.content.get(id)!;
      for (let row = 0; row < content.start.length; row++) {
        const ns = Math.min(content.end[row], end) - Math.max(content.start[row], begin);
        if (ns > 0) add(row, ns);
      }
    };
    const byClass = (ids: number[]): Record<string, number> => {
      const sums: Record<string, number> = {};
      for (const id of ids)
        inside(id, (row, ns) => {
          const key = classes[this.content.get(id)!.code[row]].key;
          sums[key] = (sums[key] ?? 0) + ns;
        });
      return sums;
    };
    const devices: DeviceStatistics[] = [];
    for (const busy of tracks.filter((track) => track.path.endsWith("/busy"))) {
      const own = tracks.filter((track) => track.group === busy.group && this.content.has(track.id));
      const streams = own.filter((t) => t.table === "gpu_op" && t !== busy).map((t) => t.id);
      const sums = byClass([busy.id]);
      const total = Object.values(sums).reduce((a, b) => a + b, 0);
      const kernels = new Map<number, NamedRows>();
      for (const id of streams)
        inside(id, (row, ns) => {
          const name = this.content.get(id)!.name[row];
          const entry = kernels.get(name) ?? { name: this.name(name), total: 0, count: 0, track: id, row };
          entry.total += ns;
          entry.count++;
          kernels.set(name, entry);
        });
      devices.push({
        title: busy.group,
        busy: sums,
        idle: Math.max(0, end - begin - total),
        idle_by_cause: byClass(own.filter((t) => t.table === "idle_gap").map((t) => t.id)),
        categories: byClass(streams),
        kernels: [...kernels.values()].sort((a, b) => b.total - a.total).slice(0, TOP),
      });
    }
    const threads = tracks
      .filter((track) => track.title === "CUDA API" && this.content.has(track.id))
      .map((track) => {
        const { start } = this.content.get(track.id)!;
        let calls = 0;
        inside(track.id, (row) => (calls += start[row] >= begin ? 1 : 0));
        return { title: track.group, calls, kinds: byClass([track.id]) };
      })
      .filter(({ kinds }) => Object.keys(kinds).length);
    const whole = (kinds: Record<string, number>): number => Object.values(kinds).reduce((a, b) => a + b, 0);
    threads.sort((a, b) => whole(b.kinds) - whole(a.kinds));
    return Promise.resolve({ begin, end, devices, threads: threads.slice(0, MOST_THREADS) });
  }

  table(by: string, window: Span | null): Promise<TableAnswer> {
    return this.panels.table(by, window);
  }

  instances(by: string, group: number, window: Span | null): Promise<Instances> {
    return this.panels.instances(by, group, window);
  }

  /** Of the whole page, whatever the window: its graphs were made with it. */
  flame(kind: string, weight: string, reverse: boolean): Promise<FlameAnswer> {
    return this.panels.flame(kind, weight, reverse);
  }

  progress(): Promise<string> {
    return Promise.resolve("");
  }

  memory(): Promise<Memory> {
    return Promise.reject(new Error("this page is a copy without it; stepscope ui and stepscope memory show it"));
  }

  guide(): Promise<GuideBook> {
    return Promise.reject(new Error("this page is a copy without it; stepscope ui and stepscope guide show it"));
  }

  notes(): Promise<NotesAnswer> {
    return this.panels.notes();
  }

  saveNote(): Promise<NotesAnswer> {
    return Promise.reject(new Error("this page is a copy; stepscope ui keeps notes"));
  }

  private linked(track: number, row: number, message: string, kind: Link, forward: boolean): Links {
    const found = this.panels.linked(kind, track, row, forward);
    const ends = found.slice(0, MOST_ENDS).map(([t, r]) => this.place(t, r));
    return { message, forward, ends, more: found.length - ends.length };
  }

  private info(track: number): TrackInfo {
    return this.packed.layout.tracks.find(({ id }) => id === track)!;
  }

  private place(track: number, row: number): Place {
    const c = this.content.get(track)!;
    const name = this.name(c.name[row]);
    return { track, row, depth: c.depth[row], start: c.start[row], end: c.end[row], name };
  }
}

function factsOf(facts: Record<string, PackedFact>): Content["facts"] {
  const made: Content["facts"] = new Map();
  for (const [key, fact] of Object.entries(facts)) {
    const values = doubles(fact.values ?? fact.codes);
    const texts = fact.texts;
    made.set(key, (row) => {
      if (values[row] === -1) return null;
      return texts ? (texts[String(values[row])] ?? null) : values[row];
    });
  }
  return made;
}
