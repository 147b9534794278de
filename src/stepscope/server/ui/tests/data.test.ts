import type { FlameAnswer, Layout, NotesAnswer, TrackInfo } from "../src/data/contracts";
import { expect, test } from "vitest";

import { bytesOf, decode, doubles } from "../src/data/decode";
import { StaticTables } from "../src/data/static_tables";
import { counterTile, rowTile } from "../src/data/static_tiles";
import { decodeGrid, order } from "../src/data/steps";
import { laid, matching } from "../src/panels/flame_tree";
import { Tracks } from "../src/timeline/tracks";

/** A header and its arrays, as the server packs them. */
function packed(header: object, arrays: Uint8Array): ArrayBuffer {
  let text = JSON.stringify(header);
  text += " ".repeat((4 - (text.length % 8) + 8) % 8); // doubles begin at multiples of eight
  const made = new Uint8Array(4 + text.length + arrays.length);
  new DataView(made.buffer).setUint32(0, text.length, true);
  made.set(new TextEncoder().encode(text), 4);
  made.set(arrays, 4 + text.length);
  return made.buffer;
}

test("arrays come out of base64", () => {
  expect([...bytesOf("AAEC/w==")]).toEqual([0, 1, 2, 255]);
  expect([...doubles("AAAAAAAA8D8=")]).toEqual([1]);
});

test("a tile is decoded track by track", () => {
  const arrays = new Uint8Array(Float64Array.of(1.5, 2.5).buffer);
  const rows = [{ track: 3, depth: 1, arrays: { start: ["f8", 0, 2], code: ["u1", 6, 2] } }];
  const header = { begin: 10, bucket: 2, columns: 4, depths: { 3: 2, 5: 1 }, names: { 1: "a" }, rows };
  const { tiles, names } = decode(packed(header, arrays));
  expect(names).toEqual({ 1: "a" });
  expect(tiles.get(5)).toEqual({ begin: 10, bucket: 2, columns: 4, depths: 1, rows: [], counter: null });
  expect([...tiles.get(3)!.rows[0].start]).toEqual([1.5, 2.5]);
  expect([...tiles.get(3)!.rows[0].code]).toEqual([248, 63]);
});

test("a picture of steps is decoded", () => {
  const names = ["busy", "busy_code", "idle", "idle_code"];
  const grid = decodeGrid(packed({ rows: 1, columns: 2, arrays: names }, Uint8Array.of(1, 2, 3, 4, 5, 6, 7, 8)));
  expect([...grid.busy, ...grid.idle_code]).toEqual([1, 2, 7, 8]);
  expect(grid.phase).toBeNull();
});

test("steps by length, the earlier first where they are equal", () => {
  const [begin, end] = [Float64Array.of(0, 10, 20, 30), Float64Array.of(5, 20, 25, 40)];
  expect([...order(begin, end, "index")]).toEqual([0, 1, 2, 3]);
  expect([...order(begin, end, "duration")]).toEqual([1, 3, 0, 2]);
});

test("a tile draws long slices one by one and short ones by columns", () => {
  const content = {
    start: Float64Array.of(0, 100, 104, 130),
    end: Float64Array.of(95, 102, 107, 131),
    name: Uint32Array.of(0, 1, 2, 3),
    code: Uint8Array.of(0, 1, 2, 1),
  };
  const tile = rowTile(content, Uint32Array.of(0, 1, 2, 3), 0, 0, 10, 20);
  expect([...tile.row]).toEqual([0]);
  expect([...tile.column]).toEqual([10, 13]);
  expect([...tile.share].map((share) => Math.round(share * 10))).toEqual([5, 1]);
  expect([...tile.dominant]).toEqual([2, 1]);
  expect([...tile.count]).toEqual([2, 1]);
});

test("a counter's tile keeps the extremes of each column", () => {
  const samples = { time: Float64Array.of(5, 11, 14, 40), value: Float64Array.of(7, 1, 3, 9) };
  const tile = counterTile(samples, 10, 10, 2);
  const sides = [tile.column, tile.low, tile.high, tile.last, tile.before, tile.limits].map((side) => [...side]);
  expect(sides).toEqual([[0], [1], [3], [3], [7], [1, 9]]);
});

test("a flame graph stands the heaviest first, and counts nested matches once", () => {
  const nodes = { parent: [-1, 0, 0, 2], name: [0, 1, 2, 1], total: [10, 3, 6, 5], own: [], count: [] };
  const answer = { names: ["main", "conv", "convert"], nodes } as unknown as FlameAnswer;
  const tree = laid(answer);
  expect([...tree.left]).toEqual([0, 6, 0, 0]);
  expect([...tree.depth]).toEqual([0, 1, 1, 2]);
  const found = matching(tree, /conv/);
  expect([[...found.nodes], found.total]).toEqual([[1, 2, 3], 9]);
});

const track = (id: number, group: string, title: string, more: Partial<TrackInfo> = {}): TrackInfo =>
  ({ id, group, title, path: `${group}/${title}`, kind: "slices", table: "gpu_op", rank: 0, thread: -1, device: 0, explained: false, unit: "", ...more }) as TrackInfo;

function made(): Tracks {
  const host = { table: "api_call", thread: 1, device: -1 };
  const tracks = [track(0, "thread 1 · main", "CUDA API", host), track(1, "GPU 0", "busy"), track(2, "GPU 0", "stream 7"), track(3, "GPU 0", "why idle", { explained: true })];
  return new Tracks({ members: [{}], tracks } as unknown as Layout);
}
const shown = (tracks: Tracks): number[] => [...tracks.open()].map(({ info }) => info.id);

test("devices stand first; what a diagnosis explains comes with it", () => {
  const tracks = made();
  expect(shown(tracks)).toEqual([1, 2, 0]);
  tracks.explained = true;
  expect(shown(tracks)).toEqual([1, 2, 3, 0]);
});

test("tracks are filtered, pinned, folded, moved", () => {
  const tracks = made();
  tracks.filterBy(/stream/);
  expect(shown(tracks)).toEqual([2]);
  tracks.filterBy(null);
  tracks.pin(tracks.trackViews.get(0)!);
  expect(shown(tracks)).toEqual([0, 1, 2]);
  tracks.pin(tracks.trackViews.get(0)!);
  expect(tracks.moved()).toEqual([]);
  tracks.moveTrack(tracks.trackViews.get(2)!, -1);
  expect(shown(tracks)).toEqual([2, 1, 0]);
  const again = made();
  again.reorder(tracks.moved());
  expect(shown(again)).toEqual([2, 1, 0]);
  tracks.fold(tracks.groups[0]);
  expect([shown(tracks), tracks.folds()]).toEqual([[0], [["GPU 0"], []]]);
  expect(tracks.at(tracks.trackViews.get(0)!.y)?.info.id).toBe(0);
});

test("links of a page without a server lead there and back, each kind by itself", () => {
  const links = [[0, 4, 1, 7, 0], [0, 4, 1, 7, 2], [3, 5, 0, 5, 9], [1, 8, 1, 7, 2]];
  const held = { tables: null, flames: {}, notes: {} as NotesAnswer, links: JSON.stringify(links.flat()) };
  const tables = new StaticTables(held, {} as Layout, (text) =>
    new Uint8Array(Uint32Array.from(JSON.parse(text) as number[]).buffer),
  );
  expect(tables.linked("launch", 4, 1, true)).toEqual([[7, 0], [7, 2]]);
  expect(tables.linked("launch", 7, 2, false)).toEqual([[4, 1]]);
  expect(tables.linked("end_of_gap", 8, 1, true)).toEqual([[7, 2]]);
  expect(tables.linked("gradient", 5, 9, false)).toEqual([[5, 0]]);
  expect(tables.linked("launch", 7, 1, false)).toEqual([]);
});
