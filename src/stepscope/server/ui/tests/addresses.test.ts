import { expect, test } from "vitest";

import { readPair, writePair } from "../src/compare/address";
import { View } from "../src/shared/window";
import { readSteps, readWindow, writeSteps } from "../src/steps/address";
import { readLink, writeLink, type Link } from "../src/timeline/address";

const EMPTY: Link = { pins: [], folded: [], opened: [], order: [], panels: {} };

test("a link gives back the view that it was written from", () => {
  const link: Link = {
    begin: 1_000,
    end: 9_000,
    selected: [3, 7],
    range: [2_000, 3_000],
    filter: "Rank [01] & more",
    pins: ["b", "a"],
    folded: ["Python", "x=y&z"],
    opened: ["Counters"],
    order: ["gpu/0", "gpu/1"],
    panels: { open: "kernels", filter: "gemm" },
  };
  expect(readLink(writeLink(link))).toEqual(link);
  expect(writeLink(EMPTY)).toBe("#");
});

test.each(["", "#", "#t=9-1&sel=1&range=a-b", "#t=1-2-3&sel=Infinity-1"])("%s tells nothing", (hash) =>
  expect(readLink(hash)).toEqual(EMPTY),
);

test.each([
  ["10_20", [10, 20]],
  ["20_10", null],
  ["1_2_3", null],
  [null, null],
])("the window %s", (text, window) => expect(readWindow(text)).toEqual(window));

test("the step view's link", () => {
  const view = new View(0, 1_000, 100, 200);
  const state = { device: 2, align: "range:3", sort: "duration", colour: "phase", selected: 5, stepPx: 8 } as const;
  const hash = `#view=steps&${new URLSearchParams(writeSteps(state, view))}`;
  expect(readSteps(hash)).toEqual({ asks: true, state, window: [100, 200] });
  const first = { device: 0, align: "start", sort: "index", colour: "kind", selected: -1, stepPx: 0 } as const;
  expect(writeSteps(first, view)).toEqual({ st: "100_200" });
  expect(readSteps("#sdev=-3&salign=evil&ssort=x&scolour=y&step=1.5&spx=4000")).toEqual({ asks: false, state: first, window: null });
});

test("the comparison's link", () => {
  const state = {
    device: { before: 0, after: 1 },
    number: { before: 4, after: 12 },
    align: "kernel",
    chosen: { kind: "range", row: 2 },
  } as const;
  const hash = writePair(state, new View(0, 1_000, 100, 200));
  expect(readPair(hash)).toEqual({ state, window: [100, 200] });
  const none = { device: { before: 0, after: 0 }, number: { before: -1, after: -1 }, align: "start", chosen: null };
  expect(readPair("#before=1&after=x-2&align=range:&sel=evil-1")).toEqual({ state: none, window: null });
});
