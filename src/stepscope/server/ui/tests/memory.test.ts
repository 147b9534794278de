import { expect, test } from "vitest";

import { highest, stacked } from "../src/panels/memory_stack";

const TIMELINE = {
  time_ns: [0, 5, 9],
  allocated_bytes: [4, 9, 2],
  reserved_bytes: [10, 12, 12],
  by_category_bytes: { parameter: [1, 1, 1], activation: [3, 8, 1] },
};

test("categories lie on one another and reach what is allocated", () => {
  const areas = stacked(TIMELINE);
  expect(areas.map((area) => area.name)).toEqual(["parameter", "activation"]);
  expect(areas[1].base).toEqual(areas[0].top);
  expect(areas[1].top).toEqual(TIMELINE.allocated_bytes);
});

test("the chart is as high as what is reserved, or what is allocated without that", () => {
  expect(highest(TIMELINE)).toBe(12);
  expect(highest({ ...TIMELINE, reserved_bytes: [] })).toBe(9);
});
