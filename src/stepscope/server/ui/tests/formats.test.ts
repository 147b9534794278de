import type { Layout, TableAnswer } from "../src/data/contracts";
import { expect, test } from "vitest";

import { command, tableQuery, tabSeparated } from "../src/panels/copy";
import { bytes, clean, count, percent, plural, tick, time, words } from "../src/shared/format";

test.each([
  [0, "0 ns"],
  [-12.4, "-12 ns"],
  [999, "999 ns"],
  [1_000, "1.00 µs"],
  [99_999, "100.00 µs"],
  [100_000, "100.0 µs"],
  [20_300_000, "20.300 ms"],
  [100_000_000, "100.0 ms"],
  [1_234_567_890, "1.235 s"],
])("%d ns are %s", (ns, shown) => expect(time(ns)).toBe(shown));

test.each([
  [-0.000001, 1, "0 ns"],
  [1_500, 500, "1.5 µs"],
  [2_000_000, 100_000, "2.0 ms"],
  [1_234_500_000, 500_000, "1,234.5 ms"],
  [3e9, 1e9, "3 s"],
])("the tick at %d, every %d, is %s", (ns, step, shown) => expect(tick(ns, step)).toBe(shown));

test.each([
  [0, "0 steps"],
  [1, "1 step"],
  [1_200, "1,200 steps"],
])("%d are %s", (value, shown) => expect(plural(value, "step")).toBe(shown));

test.each([
  [0, "0 %"],
  [0.0049, "0.5 %"],
  [0.0994, "9.9 %"],
  [0.0996, "10 %"],
  [1, "100 %"],
])("the share %d is %s", (share, shown) => expect(percent(share)).toBe(shown));

test("amounts", () => {
  expect(count(44_616.4)).toBe("44,616");
  expect([12, 1_500, 2.5e6, 80e9, 1.2e12].map(bytes)).toEqual(["12 B", "1.50 kB", "2.50 MB", "80.00 GB", "1.20 TB"]);
  expect(words("exposed_copy_ns")).toBe("exposed copy");
});

test("text of a trace stays on its line and in its order", () => {
  expect(clean("a\nb\u202ec\u0000d\ud800")).toBe("a\ufffdb\ufffdc\ufffdd\ufffd");
  expect(clean("abcdef", 6)).toBe("abcdef");
  expect(clean("abcdefg", 6)).toBe("abcde…");
  expect(clean("größer → 大")).toBe("größer → 大");
});

const layout = (offsets: number[]): Layout =>
  ({ paths: ["it's.sqlite"], members: offsets.map((offset, rank) => ({ rank, offset })) }) as unknown as Layout;

test("a command of a shell, whatever stands in a path", () => {
  expect(command(layout([0]), "SELECT 1")).toBe("stepscope query 'it'\\''s.sqlite' 'SELECT 1'");
});

test("the statement of a table", () => {
  expect(tableQuery(layout([0, 0]), "range", null)).toContain("SELECT range, phase, count(*)");
  expect(tableQuery(layout([0, 0]), "range", null)).toContain("WHERE steady GROUP BY ALL");
  const late = tableQuery(layout([0, -5]), "kernel", { begin: 10, end: 20 });
  const at = "start_ns + CASE rank WHEN 0 THEN 0 WHEN 1 THEN -5 END";
  expect(late).toContain(`WHERE ${at} >= 10 AND ${at} < 20`);
});

test("rows for a spreadsheet hold no formula", () => {
  const figures = { count: 2, total_ns: 10, mean_ns: 5, median_ns: 5, p95_ns: 6, share: 0.5 };
  const table = { keys: ["kernel"] } as TableAnswer;
  expect(tabSeparated(table, [{ names: ["=A1\t"], ...figures }])).toBe(
    "kernel\tcount\ttotal_ns\tmean_ns\tmedian_ns\tp95_ns\tshare\n'=A1\ufffd\t2\t10\t5\t5\t6\t0.5\n",
  );
});
