import { describe, expect, test } from "vitest";

import { achievedText, boundText, gainOf, type Lever } from "../src/panels/levers";

const lever = {
  predicted_step_ns: 18_700_000,
  prediction_low_ns: 18_600_000,
  prediction_high_ns: 18_900_000,
  evidence: [{ figure: "step_ns", value: 20_300_000, unit: "ns", sql: "", rows: 12 }],
} as unknown as Lever;

describe("levers", () => {
  test("the gain is the step less the prediction, and the range turns round", () => {
    expect(gainOf(lever)).toEqual({ gain: 1_600_000, least: 1_400_000, most: 1_700_000, share: 1.6 / 20.3 });
  });

  test("what is achieved message of how much it is known", () => {
    const category = { category: "copy", time_ns_per_step: 1, share_of_step: 0.1, bound: "memory" };
    expect(achievedText({ ...category, achieved: 0.61, known_share: 0.56 })).toBe(
      "61 % of the memory ceiling, known of 56 %",
    );
    expect(achievedText({ ...category, achieved: 0.61, known_share: 1 })).toBe("61 % of the memory ceiling");
    expect(achievedText({ ...category, achieved: null, known_share: 0 })).toBe("work not known");
  });

  test("the bound names where its ceilings are from", () => {
    const split = { device: "", ceilings: "", measured: true, rank: 0, categories: [], examine: null, vendor: "NVIDIA" as const, evidence: [] };
    expect(boundText({ ...split, bound: null })).toBe("The ceilings of this device are not known.");
    const bound = {
      bound_ns: 10_000_000,
      speedup: 2.03,
      fused_bound_ns: 5_000_000,
      fused_speedup: 4.06,
      known_share: 1,
      assumed: [],
    };
    const text = boundText({ ...split, bound });
    expect(text).toContain("At most 2.0 times faster");
    expect(text).toContain("measured ceilings");
  });
});
