import { expect, test } from "vitest";

import { readJob, writeJob, type JobState } from "../src/job/address";
import { headline } from "../src/job/aside";
import { shown, timelineAddress } from "../src/job/rank_panel";
import { byNode, groups, heightOf, lineAt, linesOf, mediansOf, worstStep } from "../src/job/rows";
import { mixed, rangeOf, Scale, shareOf } from "../src/job/scale";

const ranks = (n: number, perNode: number): { rank: number; hostname: string }[] =>
  Array.from({ length: n }, (_, rank) => ({ rank, hostname: perNode ? `node${Math.floor(rank / perNode)}` : "" }));
const wanted = { nodes: false, order: "rank", open: new Set<number>(), weights: [0, 5, 1, 9], room: 400, rowPx: 0 } as const;

test("a link gives back the heat map that it was written from", () => {
  const state: JobState = { value: "idle:host_sync", mode: "nodes", order: "most", rank: 12, device: 1, step: 7, panel: true, rowPx: 9 };
  expect(readJob(writeJob(state))).toEqual(state);
  expect(readJob(writeJob({ ...state, panel: false })).panel).toBe(false);
  const first: JobState = { value: "late", mode: "", order: "rank", rank: -1, device: -1, step: -1, panel: false, rowPx: 0 };
  expect(writeJob(first)).toBe("#");
  for (const hash of ["", "#rank=-1&step=x&px=900", "#value=<b>&rows=evil&sort=evil&rank=1.2.3", "#step=1.5"])
    expect(readJob(hash)).toEqual(first);
});

test("ranks stand together by node, and in groups where nothing tells nodes", () => {
  expect(groups(ranks(4, 2)).map(({ name, rows }) => [name, rows])).toEqual([["node0", [0, 1]], ["node1", [2, 3]]]);
  expect(groups(ranks(3, 0))).toEqual([{ name: "unknown node", rows: [0, 1, 2] }]);
  const chunks = groups(ranks(100, 0));
  expect(chunks.length).toBe(7);
  expect(chunks[6]).toEqual({ name: "ranks 96–99", rows: [96, 97, 98, 99] });
});

test("rows are nodes only where ranks would be too thin", () => {
  expect(byNode(8, groups(ranks(8, 2)), 700)).toBe(false);
  expect(byNode(1024, groups(ranks(1024, 8)), 700)).toBe(true);
  expect(byNode(1024, groups(ranks(1024, 1)), 700)).toBe(false);
});

test("rows of ranks and of nodes", () => {
  const all = groups(ranks(4, 2));
  expect(linesOf(all, wanted).map(({ rows }) => rows[0])).toEqual([0, 1, 2, 3]);
  expect(linesOf(all, { ...wanted, order: "most" }).map(({ row }) => row)).toEqual([3, 1, 2, 0]);
  const nodes = linesOf(all, { ...wanted, nodes: true, order: "most", open: new Set([0]) });
  expect(nodes.map(({ node, row }) => [node, row])).toEqual([[true, 3], [true, 1], [false, 1], [false, 0]]);
});

test("rows fill the room and are found by their height", () => {
  const lines = linesOf(groups(ranks(128, 1)), { ...wanted, weights: new Array(128).fill(0), room: 700 });
  expect(heightOf(lines)).toBe(700);
  lines.forEach((line, at) => {
    expect(lineAt(lines, line.top)).toBe(at);
    expect(lineAt(lines, line.top + line.px - 1)).toBe(at);
  });
  expect([lineAt(lines, -1), lineAt(lines, 700), lineAt([], 0)]).toEqual([-1, -1, -1]);
});

test("what a rank has in most steps, and where it has most", () => {
  expect([...mediansOf([[1, 9, 2], [4, 2], []])]).toEqual([2, 3, 0]);
  expect(worstStep([1, 9, 2])).toBe(1);
});

test("one spike, and noise alone, leave the colours readable", () => {
  expect(rangeOf([[-1, 1]], true, 1000)).toMatchObject({ low: -50, high: 50, above: false });
  expect(rangeOf([[0, 100_000]], true, 1000)).toMatchObject({ high: 250, above: true, below: false });
  expect(rangeOf([[5, 9]], false, 1000)).toMatchObject({ low: 5, high: 9 });
  expect(rangeOf([], false, 1000)).toMatchObject({ low: 0, high: 1 });
  const range = { low: -10, high: 10, below: false, above: false };
  expect([-20, -5, 0, 5].map((v) => shareOf(v, range, true))).toEqual([-1, -0.5, 0, 0.5]);
  expect(shareOf(7, { ...range, low: 5, high: 9 }, false)).toBe(0.5);
});

test("colours of both sides", () => {
  const scale = new Scale({ low: -10, high: 10, below: false, above: false }, true, "#ffffff", "#ff0000", "#0000ff");
  expect([-10, 0, 10].map((v) => scale.colour(v))).toEqual(["rgb(0 0 255)", "rgb(255 255 255)", "rgb(255 0 0)"]);
  expect(mixed("#000000", "#ffffff", 0.5)).toBe("#808080");
});

test("the way to the timeline holds the step as its range", () => {
  const detail = { capture: { timeline: "rank/3/" }, steps: [{ number: 4, begin_ns: 1_000, end_ns: 2_000 }] };
  const address = (column: number): string => timelineAddress(detail as never, column);
  expect(address(0)).toBe("rank/3/#t=950-2050&range=1000-2000");
  expect(address(-1)).toBe("rank/3/");
});

test("findings in a few words", () => {
  const finding = { reason: "slow_gpu", cause: "straggler", place: "", ranks: [5] };
  expect(headline(finding as never, 8)).toBe("Slow GPU: rank 5");
  expect(headline({ ...finding, ranks: [1, 2, 3, 4, 5] } as never, 8)).toBe("Slow GPU: ranks 1, 2, 3, 4 and 1 more");
  expect(headline({ ...finding, reason: "", cause: "host_sync", ranks: [0, 1] } as never, 2)).toBe("Host sync: all ranks");
  expect(headline({ ...finding, place: "node 3\u202e" } as never, 8)).toBe("Slow GPU: node 3\ufffd");
});

test.each([
  [1_500_000, "ns", "1.500 ms"],
  [0.25, "share", "25 %"],
  [1.2, "ratio", "1.200 ×"],
  [1980, "MHz", "1,980 MHz"],
  [646, "count", "646"],
])("%s %s", (value, unit, text) => expect(shown(value, { unit })).toBe(text));
