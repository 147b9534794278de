/** Tables, flame graphs and notes of a page without a server. The same as `timeline` gives. */

import type { FlameAnswer, Instances, Layout, NotesAnswer, PackedGroups, PackedPanels, TableAnswer } from "./contracts";
import type { Span } from "./types";

/** As `timeline/extract.py` numbers them. */
const LINKS = ["launch", "end_of_gap", "launch_after_gap", "gradient"] as const;
export type Link = (typeof LINKS)[number];

type Numbers = ArrayLike<number>;

type Groups = Omit<PackedGroups, "code"> & { code: Numbers };

export class StaticTables {
  private readonly start: Numbers = [];
  private readonly ns: Numbers = [];
  private readonly steady: Numbers = [];
  private readonly track: Numbers = [];
  private readonly row: Numbers = [];
  private readonly depth: Numbers = [];
  private readonly kernel: Numbers = [];
  private readonly groups = new Map<string, Groups>();
  private readonly links: Numbers;

  constructor(
    private readonly packed: PackedPanels,
    private readonly layout: Layout,
    bytesOf: (text: string) => Uint8Array<ArrayBuffer>,
  ) {
    const { tables } = packed;
    const doubles = (text: string): Numbers => new Float64Array(bytesOf(text).buffer);
    const whole = (text: string): Numbers => new Uint32Array(bytesOf(text).buffer);
    this.links = whole(packed.links);
    if (!tables) return;
    this.start = doubles(tables.start);
    this.ns = doubles(tables.ns);
    this.steady = bytesOf(tables.steady);
    this.track = whole(tables.track);
    this.row = whole(tables.row);
    this.depth = whole(tables.depth);
    this.kernel = whole(tables.kernel);
    for (const [by, { keys, names, code }] of Object.entries(tables.groups))
      this.groups.set(by, { keys, names, code: whole(code) });
  }

  table(by: string, window: Span | null): Promise<TableAnswer> {
    const { tables } = this.packed;
    const groups = this.groups.get(by);
    if (!tables || !groups) return refused("this page holds no such table");
    const lengths = new Map<number, number[]>();
    const longest = new Map<number, number>();
    for (const at of this.inside(window)) {
      const group = groups.code[at];
      const known = lengths.get(group);
      if (known) known.push(this.ns[at]);
      else lengths.set(group, [this.ns[at]]);
      const best = longest.get(group);
      if (best === undefined || this.ns[at] >= this.ns[best]) longest.set(group, at);
    }
    const { begin, end } = this.layout;
    // the steady steps of each device, as far as the page holds them
    const spans = tables.steps.map(([from, to]): [number, number] =>
      window ? [window.begin, window.end] : [Math.max(from, begin), Math.min(to, end)],
    );
    const found: TableAnswer = {
      by,
      begin: Math.min(...spans.map(([from]) => from)),
      end: Math.max(...spans.map(([, to]) => to)),
      wall_ns: spans.reduce((sum, [from, to]) => sum + Math.max(0, to - from), 0),
      steps: spans.reduce(
        (sum, [from, to], i) => sum + tables.bounds[i].slice(0, -1).filter((b) => b >= from && b < to).length,
        0,
      ),
      keys: groups.keys,
      left_out: 0,
      columns: { group: [], names: [], count: [], total_ns: [], mean_ns: [], median_ns: [], p95_ns: [], share: [], longest_kernel: [] },
    };
    const sums = [...lengths].map(([group, ns]) => ({ group, ns, total: ns.reduce((a, b) => a + b, 0) }));
    sums.sort((a, b) => b.total - a.total);
    const c = found.columns;
    for (const { group, ns, total } of sums) {
      ns.sort((a, b) => a - b);
      c.group.push(group);
      c.names.push(groups.names[group]);
      c.count.push(ns.length);
      c.total_ns.push(total);
      c.mean_ns.push(total / ns.length);
      c.median_ns.push(quantile(ns, 0.5));
      c.p95_ns.push(quantile(ns, 0.95));
      c.share.push(total / Math.max(1, found.wall_ns));
      c.longest_kernel.push(tables.kernels[this.kernel[longest.get(group)!]]);
    }
    return Promise.resolve(found);
  }

  instances(by: string, group: number, window: Span | null): Promise<Instances> {
    const code = this.groups.get(by)?.code;
    if (!code) return refused("this page holds no such table");
    const rows = [...this.inside(window)].filter((at) => code[at] === group);
    rows.sort((a, b) => this.start[a] - this.start[b]);
    const pick = (values: Numbers): number[] => rows.map((at) => values[at]);
    return Promise.resolve({
      total: rows.length,
      start: pick(this.start),
      end: rows.map((at) => this.start[at] + this.ns[at]),
      track: pick(this.track),
      row: pick(this.row),
      depth: pick(this.depth),
    });
  }

  flame(kind: string, weight: string, reverse: boolean): Promise<FlameAnswer> {
    const { flames } = this.packed;
    const first = Object.values(flames)[0] as FlameAnswer | undefined;
    if (!first) return refused("this page holds no stacks");
    const wanted = `${kind || first.kind} ${weight} ${reverse ? 1 : 0}`;
    const found = flames[wanted] as FlameAnswer | undefined;
    return found ? Promise.resolve(found) : refused("this page holds no such flame graph");
  }

  /** Track and row of what a row leads to by one kind of link, or of what leads to it. */
  linked(kind: Link, track: number, row: number, forward: boolean): [number, number][] {
    const [here, there] = forward ? [1, 3] : [3, 1];
    const found: [number, number][] = [];
    for (let i = 0; i < this.links.length; i += 5)
      if (LINKS[this.links[i]] === kind && this.links[i + here] === track && this.links[i + here + 1] === row)
        found.push([this.links[i + there], this.links[i + there + 1]]);
    return found;
  }

  notes(): Promise<NotesAnswer> {
    return Promise.resolve(this.packed.notes);
  }

  private *inside(window: Span | null): Generator<number> {
    for (let at = 0; at < this.start.length; at++)
      if (window ? this.start[at] >= window.begin && this.start[at] < window.end : this.steady[at]) yield at;
  }
}

function quantile(ns: number[], q: number): number {
  const at = (ns.length - 1) * q;
  const low = Math.floor(at);
  const high = Math.min(low + 1, ns.length - 1);
  return ns[low] + (at - low) * (ns[high] - ns[low]);
}

function refused<T>(message: string): Promise<T> {
  return Promise.reject(new Error(message));
}
