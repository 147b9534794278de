/** The panels below the timeline: tables, flame graph, notes, guide. Each is a tab. */

import { GROUPINGS } from "../data/contracts";
import { element, fill } from "../shared/dom";
import { follow } from "../shared/pointer";
import { Flame } from "./flame";
import { GuidePanel } from "./guide";
import { MemoryPanel } from "./memory";
import { Notes } from "./notes";
import type { Host, Panel } from "./panel";
import { Tables } from "./tables";

const LEAST_PX = 120;

export class Drawer {
  readonly root: HTMLElement;
  readonly kernels: Tables;
  readonly operators: Tables;
  readonly flame: Flame;
  readonly notes: Notes;
  readonly memory: MemoryPanel;
  readonly guide: GuidePanel;
  private readonly panels: Record<string, Panel>;
  private readonly tabs = element("div", { class: "tabs", role: "tablist", "aria-label": "Panels" });
  private readonly holder = element("div", { class: "panel" });
  private open: string | null = null;
  private timer = 0;

  constructor(private readonly host: Host) {
    this.kernels = new Tables(host, "Kernels", "K", ["kernel"]);
    // as stepscope operators: by operator where the capture holds any
    const known = host.layout.tracks.some(({ table }) => table === "operator");
    const groupings = Object.keys(GROUPINGS).filter((by) => by !== "kernel");
    this.operators = new Tables(host, "Operators", "O", groupings, known ? "operator" : "range");
    this.flame = new Flame(host);
    this.notes = new Notes(host);
    this.memory = new MemoryPanel(host);
    this.guide = new GuidePanel(host);
    this.panels = {
      kernels: this.kernels, operators: this.operators, flame: this.flame, memory: this.memory,
      notes: this.notes, guide: this.guide,
    };
    const handle = element("div", {
      class: "handle",
      role: "separator",
      tabindex: 0,
      "aria-orientation": "horizontal",
      "aria-label": "Height of the panels; arrow keys change it",
      keydown: (event) => this.resizeByKey(event as KeyboardEvent),
      pointerdown: (event) => this.resize(event as PointerEvent),
    });
    this.root = element(
      "section",
      { class: "drawer", "aria-label": "Panels" },
      handle,
      this.tabs,
      this.holder,
    );
    this.show();
  }

  get shown(): string | null {
    return this.open;
  }

  /** Opens a panel, or closes it when it is the one that is open. */
  toggle(name: string): void {
    this.choose(this.open === name ? null : name);
  }

  choose(name: string | null): void {
    this.open = name;
    this.show();
    if (name) {
      this.panels[name].refresh();
      this.panels[name].focus();
    } else this.host.leave();
    this.host.changed();
  }

  /** Range, steps or the capture have changed: what is shown is asked anew, soon. */
  refresh(): void {
    clearTimeout(this.timer);
    if (!this.open) return;
    this.timer = window.setTimeout(() => {
      if (this.open) this.panels[this.open].refresh();
    }, 120);
  }

  state(): Record<string, string> {
    if (!this.open) return {};
    return { panel: this.open, ...this.panels[this.open].state() };
  }

  restore(state: Record<string, string>): void {
    // a memory snapshot has nothing else to show
    const only = this.host.layout.members.every(({ source }) => source === "torch_memory") ? "memory" : null;
    const name = state.panel in this.panels ? state.panel : only;
    if (name) this.panels[name].restore(state);
    this.open = name;
    this.show();
    if (name) this.panels[name].refresh();
  }

  private show(): void {
    this.root.classList.toggle("closed", this.open === null);
    fill(
      this.tabs,
      ...Object.entries(this.panels).map(([name, panel]) =>
        element(
          "button",
          {
            role: "tab",
            id: `tab-${name}`,
            "aria-selected": this.open === name ? "true" : "false",
            "aria-controls": "panel",
            title: `${panel.title} (${panel.key})`,
            click: () => this.toggle(name),
          },
          panel.title,
        ),
      ),
    );
    this.holder.id = "panel";
    this.holder.setAttribute("role", "tabpanel");
    if (this.open) {
      this.holder.setAttribute("aria-labelledby", `tab-${this.open}`);
      fill(this.holder, this.panels[this.open].body);
    } else fill(this.holder);
  }

  private resize(event: PointerEvent): void {
    const from = event.clientY + this.root.clientHeight;
    follow(event, (next) => this.setHeight(from - next.clientY), () => undefined);
  }

  private resizeByKey(event: KeyboardEvent): void {
    const by = { ArrowUp: 24, ArrowDown: -24 }[event.key];
    if (!by) return;
    event.preventDefault();
    event.stopPropagation();
    this.setHeight(this.root.clientHeight + by);
  }

  private setHeight(px: number): void {
    const most = window.innerHeight * 0.75;
    this.root.style.height = `${Math.min(most, Math.max(LEAST_PX, px))}px`;
    this.host.changed();
    if (this.open) this.panels[this.open].refresh();
  }
}
