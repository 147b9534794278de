/** Memory: categories stacked over time, the peak, and who held it. A click goes to that time. */

import type { DeviceMemory, Memory } from "../data/contracts";
import { fit, FONT, scaled } from "../shared/canvas";
import { markColour } from "../shared/colours";
import { element, fill, swatch } from "../shared/dom";
import { clean, count, percent, time } from "../shared/format";
import { waiting } from "../shared/progress";
import { themeNow } from "../shared/theme";
import { highest, stacked } from "./memory_stack";
import { choice, type Host, type Panel } from "./panel";

const CHART_PX = 180;
const SCALE_PX = 70;
const MOST_ROWS = 200;

export class MemoryPanel implements Panel {
  readonly title = "Memory";
  readonly key = "Y";
  readonly body: HTMLElement;
  private found: Memory | null = null;
  private asked = false;
  private device = 0;
  private readonly deviceBox = choice("Device", [], () => this.choose());
  private readonly summary = element("span", { class: "note", role: "status", "aria-live": "polite" });
  private readonly legend = element("div", { class: "row tools" });
  private readonly canvas = element("canvas", { role: "img", "aria-label": "Allocated memory by category over time" });
  private readonly table = element("div");

  constructor(private readonly host: Host) {
    this.deviceBox.hidden = true;
    this.body = element(
      "div",
      { class: "fill" },
      element("div", { class: "row tools" }, this.deviceBox, this.summary),
      this.legend,
      element("div", { class: "scrolled" }, this.canvas, this.table),
    );
    this.canvas.addEventListener("click", (event) => this.goTo(event));
    this.canvas.addEventListener("pointermove", (event) => this.hover(event));
    this.canvas.addEventListener("pointerleave", () => this.tell());
  }

  refresh(): void {
    if (this.found) this.paint();
    else if (!this.asked) void this.ask();
  }

  state(): Record<string, string> {
    return this.device ? { device: String(this.device) } : {};
  }

  restore(state: Record<string, string>): void {
    this.device = Math.max(0, Number.parseInt(state.device ?? "0", 10) || 0);
  }

  focus(): void {
    this.deviceBox.focus();
  }

  private async ask(): Promise<void> {
    this.asked = true;
    const { source } = this.host;
    const answer = waiting(source.memory(), () => source.progress(), (text) => {
      this.summary.textContent = text;
    });
    this.found = await this.host.asking(answer);
    this.asked = false;
    if (!this.found) {
      this.summary.textContent = this.host.failure() || "no memory is known";
      return;
    }
    fill(
      this.deviceBox,
      ...this.found.devices.map((d, at) =>
        element("option", { value: at }, `rank ${d.rank}, ${d.device < 0 ? "host" : `GPU ${d.device}`}`),
      ),
    );
    this.device = Math.min(this.device, this.found.devices.length - 1);
    this.deviceBox.value = String(this.device);
    this.deviceBox.hidden = this.found.devices.length < 2;
    this.paint();
  }

  private choose(): void {
    this.device = Number(this.deviceBox.value);
    this.paint();
    this.host.changed();
  }

  private current(): DeviceMemory {
    return this.found!.devices[this.device];
  }

  private paint(): void {
    this.tell();
    this.draw();
    const device = this.current();
    fill(
      this.legend,
      ...Object.keys(device.timeline.by_category_bytes).map((name) =>
        element("span", { class: "row" }, swatch(markColour(`held_${name}`)), name.replaceAll("_", " ")),
      ),
    );
    const rows = device.holders.slice(0, MOST_ROWS).map((holder) =>
      element(
        "tr",
        {},
        element("td", { class: "figure" }, mib(holder.bytes)),
        element("td", { class: "figure" }, percent(holder.bytes / Math.max(1, device.moment.allocated_bytes))),
        element("td", { class: "figure" }, count(holder.blocks)),
        ...[holder.category, holder.operator, holder.module, holder.line].map((text) => element("td", {}, clean(text))),
      ),
    );
    const head = ["MiB", "share", "blocks", "category", "operator", "module", "line"];
    const more = device.holders.length - rows.length;
    const notes = [device.growth?.message, ...device.out_of_memory.map((o) => o.message), ...device.warnings];
    fill(
      this.table,
      element(
        "table",
        { class: "memory", "aria-label": "Who held memory at the peak" },
        element("thead", {}, element("tr", {}, ...head.map((text) => element("th", { scope: "col" }, text)))),
        element("tbody", {}, ...rows),
      ),
      ...(more > 0 ? [element("p", { class: "note" }, `${count(more)} more rows: stepscope memory --limit 0`)] : []),
      ...notes.filter((note) => note).map((note) => element("p", { class: "note" }, clean(note!))),
    );
  }

  private draw(): void {
    const width = Math.max(200, this.body.clientWidth - 24);
    fit(this.canvas, width, CHART_PX);
    const { context } = scaled(this.canvas);
    const theme = themeNow();
    const device = this.current();
    const { timeline } = device;
    context.font = FONT;
    context.fillStyle = theme.back;
    context.fillRect(0, 0, width, CHART_PX);
    const times = timeline.time_ns;
    if (times.length < 2) return;
    const span = times[times.length - 1] - times[0];
    const most = Math.max(highest(timeline), 1);
    const x = (at: number): number => SCALE_PX + ((times[at] - times[0]) / span) * (width - SCALE_PX);
    const y = (size: number): number => CHART_PX - 2 - (size / most) * (CHART_PX - 14);
    for (const { name, base, top } of stacked(timeline)) {
      context.fillStyle = markColour(`held_${name}`);
      context.beginPath();
      context.moveTo(x(0), y(base[0]));
      for (let at = 0; at < times.length; at++) {
        if (at) context.lineTo(x(at), y(top[at - 1])); // what is allocated stays until the next event
        context.lineTo(x(at), y(top[at]));
      }
      for (let at = times.length - 1; at >= 0; at--) {
        context.lineTo(x(at), y(base[at]));
        if (at) context.lineTo(x(at), y(base[at - 1]));
      }
      context.fill();
    }
    context.strokeStyle = theme.strong;
    context.setLineDash([4, 3]);
    context.beginPath();
    timeline.reserved_bytes.forEach((size, at) => context.lineTo(x(at), y(size)));
    context.stroke();
    context.setLineDash([]);
    context.fillStyle = theme.text;
    for (const share of [0, 0.5, 1]) context.fillText(`${mib(most * share)} MiB`, 2, y(most * share) + (share === 1 ? 10 : -2));
    if (device.peak.time_ns !== null) {
      const at = SCALE_PX + ((device.peak.time_ns - times[0]) / span) * (width - SCALE_PX);
      context.fillStyle = theme.strong;
      context.fillRect(Math.round(at), 0, 1, CHART_PX);
    }
  }

  private under(event: MouseEvent): number | null {
    const times = this.found?.devices[this.device]?.timeline.time_ns ?? [];
    if (times.length < 2) return null;
    const width = this.canvas.clientWidth - SCALE_PX;
    const share = (event.offsetX - SCALE_PX) / width;
    return share < 0 || share > 1 ? null : times[0] + share * (times[times.length - 1] - times[0]);
  }

  private hover(event: MouseEvent): void {
    const at = this.under(event);
    if (at === null) return this.tell();
    const { timeline } = this.current();
    let row = timeline.time_ns.findIndex((t) => t > at) - 1;
    if (row < 0) row = timeline.time_ns.length - 1;
    const parts = Object.entries(timeline.by_category_bytes)
      .filter(([, sizes]) => sizes[row] > 0)
      .sort(([, a], [, b]) => b[row] - a[row])
      .map(([name, sizes]) => `${name.replaceAll("_", " ")} ${mib(sizes[row])}`);
    this.summary.textContent = `${time(timeline.time_ns[row])}: ${mib(timeline.allocated_bytes[row])} MiB; ${parts.join(", ")}`;
  }

  private goTo(event: MouseEvent): void {
    const at = this.under(event);
    const view = this.host.view();
    if (at === null) return;
    const half = (view.end - view.begin) / 2;
    this.host.frame({ begin: at - half, end: at + half });
  }

  private tell(): void {
    if (!this.found) return;
    const { peak } = this.current();
    const reserved = peak.reserved_bytes === null ? "" : `, ${mib(peak.reserved_bytes)} MiB reserved (dashed)`;
    const when = peak.time_ns === null ? "before the first event" : `at ${time(peak.time_ns)}`;
    this.summary.textContent = `peak ${mib(peak.allocated_bytes)} MiB allocated ${when}${reserved}`;
  }
}

function mib(size: number): string {
  return (size / 2 ** 20).toLocaleString("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
}
