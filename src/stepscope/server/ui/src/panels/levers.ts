/** What is left in the kernels: split by category, levers with their gain, the least step. */

import type { Diagnosed } from "../data/contracts";
import { element } from "../shared/dom";
import { clean, percent, time, words } from "../shared/format";

type Diagnosis = Diagnosed["diagnosis"];
export type Lever = NonNullable<Diagnosis["levers"]>[number];
type Split = NonNullable<Diagnosis["kernels"]>;
type Category = Split["categories"][number];

/** Share of the kernel time whose work must be known for a bound of the whole step. */
const MOSTLY = 0.5;

/** Levers below findings. */
const BRIEFLY = 3;

/** What a lever gains a step, with its range, ns. */
export function gainOf(lever: Lever): { gain: number; least: number; most: number; share: number } {
  const step = Number(lever.evidence.find(({ figure }) => figure === "step_ns")?.value ?? 0);
  return {
    gain: step - lever.predicted_step_ns,
    least: Math.max(step - lever.prediction_high_ns, 0),
    most: step - lever.prediction_low_ns,
    share: step ? (step - lever.predicted_step_ns) / step : 0,
  };
}

/** What a category achieves of its ceiling. */
export function achievedText({ achieved, bound, known_share: known }: Category): string {
  if (achieved === null) return "work not known";
  const part = known < 0.99 ? `, known of ${percent(known)}` : "";
  return `${percent(achieved)} of the ${bound} ceiling${part}`;
}

/** The least step that the ceilings allow. */
export function boundText(split: Split): string {
  if (!split.bound) return "The ceilings of this device are not known.";
  const { bound } = split;
  const source = split.measured ? "measured ceilings" : "ceilings of the datasheet";
  if (bound.known_share < MOSTLY)
    return (
      `The work of only ${percent(bound.known_share)} of the kernel time is known; with that at its ceiling ` +
      `the step takes ${time(bound.bound_ns)} (${source}).`
    );
  return (
    `At most ${bound.speedup.toFixed(1)} times faster with these kernels on this GPU ` +
    `(${time(bound.bound_ns)} a step), ${bound.fused_speedup.toFixed(1)} times if kernels that wait for ` +
    `memory were merged into others (${time(bound.fused_bound_ns)}); ${source}.`
  );
}

/** The section; nothing where nothing is known or left. */
export function leversSection(
  diagnosis: Diagnosis,
  evidence: (lever: Lever) => HTMLElement,
): HTMLElement | undefined {
  const split = diagnosis.kernels;
  const levers = diagnosis.levers ?? [];
  const inFull = !diagnosis.findings.length;
  if (!split || (!inFull && !levers.length)) return undefined;
  const parts: HTMLElement[] = [element("h2", {}, "What is left in the kernels")];
  if (inFull) parts.push(categories(split));
  const shown = inFull ? levers : levers.slice(0, BRIEFLY);
  parts.push(element("ol", { class: "findings levers" }, ...shown.map((lever) => leverItem(lever, evidence))));
  if (inFull && !levers.length)
    parts.push(element("p", { class: "note" }, "No lever gains more than the steps vary."));
  parts.push(element("p", { class: "note" }, boundText(split)));
  if (inFull && split.bound)
    parts.push(
      element(
        "details",
        {},
        element("summary", {}, "What is assumed"),
        element("ul", { class: "plain" }, ...split.bound.assumed.map((t) => element("li", {}, clean(t, 600)))),
      ),
    );
  if (inFull && split.examine)
    parts.push(element("p", { class: "note" }, `Inside the kernels worth it: ${clean(split.examine, 600)}`));
  return element("section", { "aria-label": "What is left in the kernels" }, ...parts);
}

function categories(split: Split): HTMLElement {
  return element(
    "ul",
    { class: "legend" },
    ...split.categories.map((one) =>
      element(
        "li",
        { title: achievedText(one) },
        element("span", { class: "grow" }, `${words(one.category)}: ${achievedText(one)}`),
        element("span", { class: "figure" }, time(one.time_ns_per_step)),
        element("span", { class: "figure share" }, percent(one.share_of_step)),
      ),
    ),
  );
}

function leverItem(lever: Lever, evidence: (lever: Lever) => HTMLElement): HTMLElement {
  const { gain, least, most, share } = gainOf(lever);
  const title = lever.message.split(": ")[0];
  return element(
    "li",
    { "data-lever": lever.cause },
    element(
      "p",
      { class: "row" },
      element("strong", { class: "grow" }, clean(title, 80)),
      element("span", { class: "figure" }, `−${time(gain)} (${percent(share)})`),
    ),
    element("p", {}, clean(lever.message.slice(title.length + 2), 1200)),
    element("p", { class: "note" }, `Gain a step: ${time(gain)} (${time(least)} to ${time(most)})`),
    evidence(lever),
  );
}
