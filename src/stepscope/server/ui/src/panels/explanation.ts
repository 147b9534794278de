/** What stands beside the timeline: budget, findings, selection, range. Elements only. */

import type { Details, DeviceAccounting, Diagnosed, Finding, Hits, Instance, Layout, Place, Statistics } from "../data/contracts";
import { colourOf } from "../shared/colours";
import { element, fill, swatch } from "../shared/dom";
import { bytes, clean, count, percent, plural, time, words } from "../shared/format";
import { command, copyButton } from "./copy";
import { leversSection } from "./levers";

export interface Actions {
  navigateTo(place: { track: number; row: number }): void;
  instance(finding: number, instance: number): void;
  near(step: number, same: boolean): void;
  clearRange(): void;
  zoomRange(): void;
  message(text: string): void;
}

const BUDGET: [keyof DeviceAccounting, string, string][] = [
  ["compute_ns", "compute", "busy_compute"],
  ["exposed_communication_ns", "exposed communication", "busy_communication"],
  ["exposed_copy_ns", "exposed copies", "busy_copy"],
  ["memset_ns", "memory sets", "busy_memset"],
];

/** More devices than these share one legend. */
const LEGEND_EACH = 2;

interface Part {
  message: string;
  ns: number;
  colour: string;
}

export function budgetParts(accounting: DeviceAccounting): Part[] {
  const parts: Part[] = BUDGET.map(([key, message, colour]) => ({
    message,
    ns: accounting[key] as number,
    colour: colourOf(colour),
  }));
  for (const [cause, ns] of Object.entries(accounting.idle_by_cause_ns).sort((a, b) => b[1] - a[1]))
    parts.push({ message: `idle: ${words(cause)}`, ns, colour: colourOf(`idle_${cause}`) });
  return parts.filter((part) => part.ns > 0);
}

/** Of several devices: the mean of each part. */
function meanOf(all: DeviceAccounting[]): DeviceAccounting {
  const mean = (of: (one: DeviceAccounting) => number): number => all.reduce((sum, one) => sum + of(one), 0) / all.length;
  const causes = new Set(all.flatMap((one) => Object.keys(one.idle_by_cause_ns)));
  const made: DeviceAccounting = { ...all[0], idle_by_cause_ns: {} };
  for (const key of [...BUDGET.map(([k]) => k), "wall_ns", "idle_ns", "steps"] as const)
    (made as unknown as Record<string, number>)[key] = mean((one) => one[key] as number);
  for (const cause of causes) made.idle_by_cause_ns[cause] = mean((one) => one.idle_by_cause_ns[cause] ?? 0);
  return made;
}

function bar(parts: Part[], whole: number, message: string): HTMLElement {
  const made = element("div", { class: "bar", role: "img", "aria-label": message });
  for (const part of parts) {
    const piece = element("span", { title: `${part.message}: ${time(part.ns)}` });
    piece.style.width = `${(100 * part.ns) / whole}%`;
    piece.style.background = part.colour;
    made.append(piece);
  }
  return made;
}

/** How long a bar would be, as a share of the one above it: nothing that was measured, so not filled. */
function outline(message: string, share: number): HTMLElement {
  const made = element("div", { class: "bar predicted", role: "img", "aria-label": message, title: message });
  made.style.width = `${100 * share}%`;
  return made;
}

function legend(parts: Part[], whole: number, each: (ns: number) => string): HTMLElement {
  return element(
    "ul",
    { class: "legend" },
    ...parts.map((part) =>
      element(
        "li",
        {},
        swatch(part.colour),
        element("span", { class: "grow" }, part.message),
        element("span", { class: "figure" }, each(part.ns)),
        element("span", { class: "figure share" }, percent(part.ns / whole)),
      ),
    ),
  );
}

export function showDiagnosis(parent: HTMLElement, found: Diagnosed, layout: Layout, actions: Actions): void {
  const { diagnosis, instances } = found;
  const [first, last] = diagnosis.trace.steady_steps;
  const window = last - first + 1;
  const sections: HTMLElement[] = [];
  const budgets = element("section", { "aria-label": "Step budget" }, element("h2", {}, "Step budget"));
  for (const accounting of diagnosis.accounting) {
    const parts = budgetParts(accounting);
    const steps = accounting.steps || window;  // ranks may differ in them
    const step = accounting.wall_ns / steps;
    const of =
      diagnosis.accounting.length > 1
        ? `rank ${accounting.rank} GPU ${accounting.device}: `
        : "";
    const message = `${of}${time(step)} a step, ${steps === 1 ? "the only one" : `mean of ${plural(steps, "step")}`}`;
    budgets.append(element("p", { class: "note" }, message), bar(parts, accounting.wall_ns, message));
    const best = diagnosis.findings[0];
    const own = best && (!best.ranks.length || best.ranks.includes(accounting.rank));
    if (own && best.predicted_step_ns < step) {
      const share = best.predicted_step_ns / step;
      const least = best.at_least ? ' or less' : '';
      const predicted = `predicted ${time(best.predicted_step_ns)}${least} a step without ${words(best.cause)}`;
      budgets.append(outline(predicted, share), element("p", { class: "note" }, `Outlined: ${predicted}`));
    }
    if (diagnosis.accounting.length <= LEGEND_EACH)
      budgets.append(legend(parts, accounting.wall_ns, (ns) => time(ns / steps)));
  }
  if (diagnosis.accounting.length > LEGEND_EACH) {
    const all = meanOf(diagnosis.accounting);
    const steps = all.steps || window;
    budgets.append(
      element("p", { class: "note" }, `Mean of the ${diagnosis.accounting.length} GPUs:`),
      legend(budgetParts(all), all.wall_ns, (ns) => time(ns / steps)),
    );
  }
  const utilisation = diagnosis.gpu_utilization;
  if (typeof utilisation === "number" && diagnosis.kernels?.vendor === "NVIDIA")
    budgets.append(
      element("p", { class: "note" }, `nvidia-smi would call this ${percent(utilisation)} utilisation: ` +
        "the share of time in which a kernel ran, however well"),
    );
  sections.push(budgets);
  const list = element("ol", { class: "findings" });
  diagnosis.findings.forEach((finding, i) =>
    list.append(findingItem(finding, i, instances[i] ?? [], layout, actions)),
  );
  const verdict = diagnosis.findings.length
    ? list
    : element("p", {}, `${words(diagnosis.verdict)}: nothing outside the kernels is worth a change.`);
  sections.push(
    element("section", { "aria-label": "Findings" }, element("h2", {}, "Findings"), verdict),
  );
  const left = leversSection(diagnosis, (lever) => adviceAndEvidence(lever, layout, actions));
  if (left) sections.push(left);
  const read = layout.problems.map(({ stated, remedy }) => `${stated}: ${remedy}`);
  const warnings = [...diagnosis.warnings, ...read].map((text) => element("li", {}, clean(text, 900)));
  if (warnings.length)
    sections.push(
      element(
        "details",
        {},
        element("summary", {}, `Notes (${warnings.length})`),
        element("ul", { class: "plain" }, ...warnings),
      ),
    );
  fill(parent, ...sections);
}

function findingItem(
  finding: Finding,
  number: number,
  places: Instance[],
  layout: Layout,
  actions: Actions,
): HTMLElement {
  let at = 0;
  const where = element("span", { class: "note", "aria-live": "polite" });
  const go = (to: number): void => {
    if (!places.length) return;
    at = (to + places.length) % places.length;
    where.textContent = instanceText(places[at]);
    actions.instance(number, at);
  };
  const title = element(
    "button",
    { class: "finding", click: () => go(0), "data-cause": finding.cause, "data-number": number },
    swatch(colourOf(`idle_${finding.cause}`)),
    element("strong", {}, words(finding.cause)),
    element("span", { class: `severity ${finding.severity}` }, finding.severity),
    element("span", { class: "figure" }, percent(finding.share_of_step)),
  );
  const item = element("li", {}, title, element("p", {}, clean(finding.message, 1200)));
  const low = time(finding.prediction_low_ns);
  const high = time(finding.prediction_high_ns);
  item.append(
    element(
      "p",
      { class: "note" },
      `Step without it: ${time(finding.predicted_step_ns)}${finding.at_least ? ' or less' : ''} (${low} to ${high})`,
    ),
  );
  if (places.length)
    item.append(
      element(
        "p",
        { class: "row" },
        element("button", { click: () => go(at - 1), "aria-label": "Previous instance" }, "‹"),
        element("button", { click: () => go(at + 1), "aria-label": "Next instance" }, "›"),
        where,
      ),
    );
  item.append(adviceAndEvidence(finding, layout, actions));
  return item;
}

/** What to do and the figures behind it, folded. */
function adviceAndEvidence(finding: Finding, layout: Layout, actions: Actions): HTMLElement {
  return element(
    "details",
    {},
    element("summary", {}, "What to do, evidence"),
    element("ul", { class: "plain" }, ...finding.recommendations.map((t) => element("li", {}, clean(t, 600)))),
    element(
      "ul",
      { class: "legend" },
      ...finding.evidence.map((e) =>
        element(
          "li",
          { title: clean(e.sql, 2000) },
          element("span", { class: "grow" }, figureTitle(e.figure)),
          element("span", { class: "figure" }, figure(e.value, e.unit)),
          copyButton(
            "⧉",
            `Copy ${figureTitle(e.figure)} with the command that computes it`,
            () => `${e.figure} = ${e.value} ${e.unit}\n${command(layout, e.sql)}\n`,
            (text) => actions.message(text),
          ),
        ),
      ),
    ),
  );
}

/** Which instance of a finding is shown. */
export function instanceText({ what, number, of, typical, cost }: Instance): string {
  return `${what} (${typical && of > 1 ? "typical, " : ""}${count(number)} of ${count(of)} by length): ${time(cost)}`;
}

/** A figure's name in words, without the unit that it is stored in: it is shown in another. */
function figureTitle(name: string): string {
  return words(name.replace(/_bytes_per_s$/, "_bandwidth").replace(/(_time)?_ns(?=_|$)/g, "_time"));
}

function figure(value: number, unit: string): string {
  if (unit.startsWith("ns")) return time(value);
  if (unit.startsWith("bytes")) return bytes(value) + (unit.endsWith("_s") ? "/s" : "");
  if (unit === "share") return percent(value);
  return Number.isInteger(value) ? count(value) : value.toFixed(2);
}

export function showDetails(parent: HTMLElement, details: Details, layout: Layout, actions: Actions): void {
  const track = layout.tracks.find(({ id }) => id === details.track)!;
  const { same } = details;
  const facts: [string, string][] = [
    ["begins at", time(details.start)],
    ["takes", time(details.end - details.start)],
    ["track", `${track.group} · ${track.title}`],
    ...launch(details),
    ...details.facts
      .filter(([key]) => !/^(grid|block)_[xyz]$/.test(key) && key !== "name")
      .map(([key, value]): [string, string] => [words(key), fact(key, value)]),
  ];
  const full = details.facts.find(([key]) => key === "name")?.[1];
  const rows = facts.map(([key, value]) =>
    element("tr", {}, element("th", { scope: "row" }, key), element("td", {}, clean(value, 2000))),
  );
  const arrows = details.arrows.ends.map((place) =>
    element(
      "li",
      {},
      element(
        "button",
        { class: "link", click: () => actions.navigateTo(place) },
        `${details.arrows.forward ? "→" : "←"} ${clean(place.name, 80)}`,
      ),
      element("span", { class: "figure" }, time(place.end - place.start)),
    ),
  );
  if (details.arrows.more) arrows.push(element("li", {}, `and ${count(details.arrows.more)} more`));
  const average = time(same.total / Math.max(1, same.count));
  fill(
    parent,
    element(
      "div",
      { class: "row" },
      element("h2", { class: "grow" }, "Selection"),
      copyButton(
        "⧉",
        "Copy the selection's facts",
        () => `${[["name", clean(String(full ?? details.name), 2000)], ...facts.map(([k, v]) => [k, clean(v, 2000)])].map((line) => line.join("\t")).join("\n")}\n`,
        (text) => actions.message(text),
      ),
    ),
    element("p", { class: "name" }, clean(details.name, 400)),
    ...(full !== undefined && String(full) !== details.name
      ? [element("p", { class: "note name" }, clean(String(full), 2000))]
      : []),
    element(
      "p",
      { class: "row" },
      element("button", { click: () => actions.near(-1, true), title: "Shift+N" }, "‹ same name"),
      element("button", { click: () => actions.near(1, true), title: "N" }, "same name ›"),
      element(
        "span",
        { class: "note" },
        `${count(same.number)} of ${count(same.count)} on this track, ${time(same.total)} in all, ${average} each`,
      ),
    ),
    element("table", { class: "facts" }, element("tbody", {}, ...rows)),
    ...(arrows.length
      ? [
          element("h3", {}, details.arrows.message),
          element("ul", { class: "legend" }, ...arrows),
        ]
      : []),
    ...linkSections(details, actions),
  );
}

/** Sections of the panel of a selection, one a kind of link. */
function linkSections(details: Details, actions: Actions): HTMLElement[] {
  return details.links.flatMap((link) => [
    element("h3", {}, link.message),
    element(
      "ul",
      { class: "legend", "aria-label": link.message },
      ...link.ends.map((place) =>
        element(
          "li",
          {},
          element(
            "button",
            { class: "link", click: () => actions.navigateTo(place) },
            `${link.forward ? "→" : "←"} ${clean(place.name, 80)}`,
          ),
          element("span", { class: "figure" }, time(place.end - place.start)),
        ),
      ),
      ...(link.more ? [element("li", {}, `and ${count(link.more)} more`)] : []),
    ),
  ]);
}

/** Grid and block as they are written in a launch. */
function launch(details: Details): [string, string][] {
  const of = new Map(details.facts);
  return (["grid", "block"] as const)
    .filter((what) => of.has(`${what}_x`))
    .map((what) => [what, ["x", "y", "z"].map((d) => of.get(`${what}_${d}`)).join(" × ")]);
}

function fact(key: string, value: string | number | boolean): string {
  if (typeof value === "number" && key.endsWith("_ns")) return time(value);
  if (typeof value === "number" && /bytes$/.test(key)) return `${bytes(value)} (${count(value)})`;
  return String(value);
}

export function showStatistics(parent: HTMLElement, found: Statistics, actions: Actions): void {
  const whole = found.end - found.begin;
  const parts = (values: Record<string, number>, strip: string): Part[] =>
    Object.entries(values)
      .sort((a, b) => b[1] - a[1])
      .map(([key, ns]) => ({ message: words(key.replace(strip, "")), ns, colour: colourOf(key) }));
  const devices = found.devices.map((device) => {
    const busy = parts(device.busy, "busy_");
    const known = Object.values(device.idle_by_cause).reduce((a, b) => a + b, 0);
    const idle = parts(device.idle_by_cause, "idle_").map((p) => ({ ...p, message: `idle: ${p.message}` }));
    if (device.idle > known)
      idle.push({ message: known ? "idle, not in counted steps" : "idle", ns: device.idle - known, colour: "var(--line)" });
    const all = [...busy, ...idle];
    const categories = parts(device.categories, "kernel_");
    const total = categories.reduce((sum, part) => sum + part.ns, 0);
    return element(
      "div",
      {},
      element("h3", {}, device.title),
      bar(all, whole, "where the time of the range goes"),
      legend(all, whole, time),
      element("h3", {}, "By kind"),
      legend(categories.slice(0, 10), Math.max(1, total), time),
      element("h3", {}, "Longest in total"),
      element(
        "ul",
        { class: "legend" },
        ...device.kernels.map((k) =>
          element(
            "li",
            {},
            element("button", { class: "link grow", click: () => actions.navigateTo(k) }, clean(k.name, 80)),
            element("span", { class: "figure" }, `${count(k.count)} ×`),
            element("span", { class: "figure" }, time(k.total)),
          ),
        ),
      ),
    );
  });
  const threads = found.threads.map(({ title, calls, kinds }) => {
    const spent = parts(kinds, "api_");
    const total = spent.reduce((sum, part) => sum + part.ns, 0);
    return element(
      "div",
      {},
      element("h3", {}, `${clean(title, 80)}: ${count(calls)} CUDA calls, ${percent(total / whole)} of the range`),
      bar(spent, whole, `what the CUDA calls of ${clean(title, 80)} did`),
      legend(spent, whole, time),
    );
  });
  fill(
    parent,
    element("h2", {}, `Range of ${time(whole)}`),
    element(
      "p",
      { class: "row" },
      element("button", { click: () => actions.zoomRange() }, "Zoom (Z)"),
      element("button", { click: () => actions.clearRange() }, "Clear (Esc)"),
    ),
    ...devices,
    ...threads,
  );
}

export function showHits(
  parent: HTMLElement,
  found: Hits,
  text: string,
  navigateTo: (place: { track: number; row: number }) => void,
): void {
  fill(
    parent,
    element("h2", {}, `“${clean(text, 60)}”`),
    element(
      "p",
      { class: "note", role: "status" },
      found.total
        ? `${count(found.total)} found; Enter and Shift+Enter go through ${found.total > found.hits.length ? `the first ${count(found.hits.length)}` : "them"}`
        : "nothing found",
    ),
    element(
      "ul",
      { class: "legend" },
      ...found.names.map((n) =>
        element(
          "li",
          {},
          element("button", { class: "link grow", click: () => navigateTo(n) }, clean(n.name, 80)),
          element("span", { class: "figure" }, `${count(n.count)} ×`),
          element("span", { class: "figure" }, time(n.total)),
        ),
      ),
    ),
  );
}

export function placeText(place: Place): string {
  return `${clean(place.name)}, ${time(place.end - place.start)}`;
}

export function missing(layout: Layout): HTMLElement {
  const told = new Map<string, string>();
  for (const member of layout.members)
    for (const { table, reason, flag } of member.missing)
      told.set(table, `${table}: ${reason}${flag ? ` (${flag})` : ""}`);
  if (!told.size) return element("div");
  return element(
    "details",
    {},
    element("summary", {}, `Not in this capture (${told.size})`),
    element("ul", { class: "plain" }, ...[...told.values()].map((t) => element("li", {}, clean(t, 400)))),
  );
}
