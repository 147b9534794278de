import type { Details, Place, TrackInfo } from "../src/data/contracts";
import { expect, test } from "vitest";

import { whole, type Row, type Source, type TrackTile } from "../src/data/types";
import { ticks } from "../src/shared/canvas";
import { View } from "../src/shared/window";
import { amount, levelTip } from "../src/timeline/counters";
import { arrowPairs, linkPairs } from "../src/timeline/links";
import { nearest } from "../src/timeline/pointer_controls";
import { lowerBound, type TrackView } from "../src/timeline/tracks";

test("a window stays near the capture and never closes", () => {
  const view = new View(0, 1_000_000);
  view.fit();
  expect([view.begin, view.end]).toEqual([-10_000, 1_010_000]);
  view.set(-5e6, 5e6);
  expect([view.begin, view.end]).toEqual([-20_000, 1_020_000]);
  view.set(500, 501);
  expect(view.span).toBe(50);
  view.frame(400_000, 500_000, 0.5);
  expect([view.begin, view.end]).toEqual([350_000, 550_000]);
  view.pan(0.5);
  expect([view.begin, view.end]).toEqual([450_000, 650_000]);
  view.zoom(0.5, 0.25); // what is at a quarter stays there
  expect([view.begin, view.end]).toEqual([475_000, 575_000]);
  expect(view.time(view.x(512_345, 800), 800)).toBeCloseTo(512_345, 6);
});

test("a range that the server takes", () => {
  expect(whole({ begin: 1.4, end: 9.6 })).toEqual({ begin: 1, end: 10 });
  expect(whole({ begin: 5, end: 5 })).toEqual({ begin: 5, end: 6 });
});

test("ticks stand at round times", () => {
  const { times, step } = ticks(new View(0, 1_000_000, 100_000, 900_000), 800);
  expect(step).toBe(200_000);
  expect(times).toEqual([200_000, 400_000, 600_000, 800_000]);
});

const info = (title: string, unit = ""): TrackInfo => ({ title, unit }) as TrackInfo;

test.each([
  ["memory", "bytes", 1_500, "1.50 kB"],
  ["pcie_bytes_per_second", "", 2.5e9, "2.50 GB/s"],
  ["gpu_mhz", "", 1_980, "1,980 MHz"],
  ["gpu_watts", "", 345.678, "345.68 W"],
  ["load_percent (CPU)", "", 97, "97 %"],
  ["anything", "", 12.5, "12.50"],
])("%s (%s) of %d is %s", (title, unit, value, shown) => expect(amount(info(title, unit), value)).toBe(shown));

test("the level of a counter at a time", () => {
  const tile = {
    begin: 100,
    bucket: 10,
    counter: {
      column: Uint32Array.of(1, 4),
      low: Float32Array.of(1, 3),
      high: Float32Array.of(2, 3),
      last: Float32Array.of(2, 3),
      before: Float32Array.of(NaN),
    },
  } as unknown as TrackTile;
  const message = (at: number): string => levelTip(info("x"), tile, at);
  expect([105, 115, 135, 140, 999].map(message)).toEqual(["x: no sample yet", "x: 1 to 2", "x: 2", "x: 3", "x: 3"]);
});

test("the slice nearest to a time", () => {
  const row = {
    depth: 0,
    start: Float64Array.of(0, 100, 200),
    end: Float64Array.of(50, 150, 250),
    row: Uint32Array.of(7, 8, 9),
    name: Uint32Array.of(0, 1, 2),
  } as unknown as Row;
  const trackView = { info: { id: 4 } } as TrackView;
  const source = { name: (number: number) => `name ${number}` } as unknown as Source;
  const at = (time: number, slop: number): number | undefined => nearest(source, trackView, row, time, slop)?.row;
  expect([at(120, 5), at(55, 10), at(75, 10), at(175, 30), at(290, 50)]).toEqual([8, 7, undefined, 8, 9]);
  expect(nearest(source, trackView, row, 120, 5)).toEqual({ track: 4, row: 8, depth: 0, start: 100, end: 150, name: "name 1" });
  expect([0, 1, 200, 201].map((value) => lowerBound(row.start, value))).toEqual([0, 1, 2, 3]);
});

test("arrows lead from the earlier to the later", () => {
  const place = (row: number): Place => ({ track: 0, row, depth: 0, start: row, end: row, name: "" });
  const details = (forward: boolean, table: string): Details =>
    ({
      ...place(1),
      table,
      arrows: { forward, ends: [place(2)] },
      links: [{ forward: true, ends: [place(3)] }, { forward: false, ends: [place(0)] }],
    }) as unknown as Details;
  const rows = (pairs: [Place, Place][]): number[][] => pairs.map((pair) => pair.map(({ row }) => row));
  expect(rows(arrowPairs(details(true, "api_call")))).toEqual([[1, 2]]);
  expect(rows(arrowPairs(details(false, "gpu_op")))).toEqual([[2, 1]]);
  expect(rows(linkPairs(details(false, "gpu_op")))).toEqual([[1, 3], [0, 1]]);
  expect(rows(linkPairs(details(false, "idle_gap")))).toEqual([[1, 3], [0, 2]]); // to what ended the gap
  expect(linkPairs(null)).toEqual([]);
});
