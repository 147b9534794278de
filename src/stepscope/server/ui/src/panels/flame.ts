/** A flame graph of the window, roots on top: click to zoom, search, keyboard. */

import type { Span } from "../data/types";
import { fit, FONT, scaled } from "../shared/canvas";
import { colourOf, markColour } from "../shared/colours";
import { element, fill } from "../shared/dom";
import { clean, count, percent, time } from "../shared/format";
import { waiting } from "../shared/progress";
import { themeNow } from "../shared/theme";
import { choice, windowOf, type Host, type Panel } from "./panel";
import { laid, matching, type Laid } from "./flame_tree";

const ROW = 18;
const LEAST_PX = 0.6;
const LABEL_PX = 26;

const KINDS: Record<string, string> = {
  host: "Ranges, operators, Python",
  range: "Ranges",
  operator: "Operators",
  python: "Python functions",
  samples: "CPU samples",
};
const WEIGHTS: [string, string][] = [
  ["cpu", "Time on the thread"],
  ["gpu", "GPU time launched beneath"],
];
const SCOPES: [string, string][] = [
  ["auto", "Range, else steady steps"],
  ["all", "Whole capture"],
];

export class Flame implements Panel {
  readonly title = "Flame graph";
  readonly key = "P";
  readonly body: HTMLElement;
  private kind = "";
  private weight = "cpu";
  private reverse = false;
  private scope = "auto";
  private tree: Laid | null = null;
  private zoomed = -1;
  private at = -1;
  private zoomPath: string[] = [];
  private found = new Set<number>();
  private asked = 0;

  private readonly kindBox = choice("What is stacked", [], () => this.change());
  private readonly weightBox = choice("What widths mean", WEIGHTS, () => this.change());
  private readonly scopeBox = choice("Window of the flame graph", SCOPES, () => this.change());
  private readonly reverseBox = element("input", { type: "checkbox", change: () => this.change() });
  private readonly findBox: HTMLInputElement;
  private readonly summary = element("span", { class: "note", role: "status" });
  private readonly message = element("p", { class: "note flamesays", role: "status", "aria-live": "polite" });
  private readonly findButton = element("button", { click: () => this.onTimeline(), title: "Search this name on the timeline" }, "Find on timeline");
  private readonly wholeButton = element("button", { click: () => this.zoom(-1), title: "Home" }, "Whole");
  private readonly canvas = element("canvas", {
    tabindex: 0,
    role: "application",
    "aria-label":
      "Flame graph. Arrow keys move between callers, callees and neighbours, Enter zooms, Backspace zooms out, Home shows all.",
  });
  private readonly scrolled: HTMLElement;

  constructor(private readonly host: Host) {
    this.findBox = element("input", {
      type: "search",
      placeholder: "Search, regex",
      "aria-label": "Search the flame graph by regular expression",
      input: () => this.search(),
      keydown: (event) => {
        const key = (event as KeyboardEvent).key;
        if (key === "Enter") this.canvas.focus();
        if (key === "Escape") {
          event.stopPropagation();
          this.findBox.value = "";
          this.search();
          this.canvas.focus();
        }
      },
    });
    this.scopeBox.hidden = !host.source.editable; // a page by itself has the graphs it was made with
    this.scrolled = element("div", { class: "scrolled" }, this.canvas);
    this.body = element(
      "div",
      { class: "fill" },
      element(
        "div",
        { class: "row tools" },
        this.kindBox,
        this.weightBox,
        element("label", { class: "row" }, this.reverseBox, "bottom up"),
        this.scopeBox,
        this.findBox,
        this.wholeButton,
        this.findButton,
        this.summary,
      ),
      this.message,
      this.scrolled,
    );
    this.canvas.addEventListener("pointermove", (event) => this.hover(event));
    this.canvas.addEventListener("pointerleave", () => this.tell(this.at));
    this.canvas.addEventListener("click", (event) => {
      const node = this.under(event);
      if (node < 0) return;
      this.at = node;
      this.zoom(node === this.zoomed ? this.tree!.answer.nodes.parent[node] : node);
    });
    this.canvas.addEventListener("keydown", (event) => this.keyed(event));
    new ResizeObserver(() => this.paint()).observe(this.scrolled);
  }

  focus(): void {
    this.canvas.focus();
  }

  refresh(): void {
    void this.ask();
  }

  state(): Record<string, string> {
    return {
      kind: this.kind,
      weight: this.weight,
      ...(this.reverse ? { reverse: "1" } : {}),
      scope: this.scope,
      ...(this.findBox.value ? { find: this.findBox.value } : {}),
      ...(this.zoomPath.length ? { zoom: JSON.stringify(this.zoomPath) } : {}),
    };
  }

  restore(state: Record<string, string>): void {
    this.kind = state.kind in KINDS ? state.kind : "";
    this.weight = WEIGHTS.some(([w]) => w === state.weight) ? state.weight : "cpu";
    this.scope = state.scope === "all" ? "all" : "auto";
    this.reverse = state.reverse === "1";
    this.weightBox.value = this.weight;
    this.scopeBox.value = this.scope;
    this.reverseBox.checked = this.reverse;
    this.findBox.value = state.find ?? "";
    try {
      const path: unknown = JSON.parse(state.zoom ?? "[]");
      this.zoomPath = Array.isArray(path) ? path.filter((name) => typeof name === "string") : [];
    } catch {
      this.zoomPath = [];
    }
  }

  private change(): void {
    this.kind = this.kindBox.value || this.kind;
    this.weight = this.weightBox.value;
    this.scope = this.scopeBox.value;
    if (this.reverse !== this.reverseBox.checked) this.zoomPath = [];
    this.reverse = this.reverseBox.checked;
    this.refresh();
    this.host.changed();
  }

  private window(): Span | null {
    // without steps the whole capture is what there is
    return windowOf(this.host, this.scope, this.scope === "all" || !this.host.explained());
  }

  private async ask(): Promise<void> {
    const number = ++this.asked;
    const { source } = this.host;
    const asked = waiting(source.flame(this.kind, this.weight, this.reverse, this.window()), () => source.progress(), (text) => {
      if (number === this.asked) this.summary.textContent = text;
    });
    const found = await this.host.asking(asked);
    if (number !== this.asked) return;
    if (!found) {
      this.tree = null;
      this.summary.textContent = `no flame graph: ${this.host.failure() || "see below"}`;
      this.paint();
      return;
    }
    this.kind = found.kind;
    const kinds = found.kinds.map((kind) => element("option", { value: kind }, KINDS[kind] ?? kind));
    fill(this.kindBox, ...kinds);
    this.kindBox.value = this.kind;
    this.weightBox.disabled = found.unit === "samples";
    this.tree = laid(found);
    this.at = -1;
    this.zoomed = this.follow(this.zoomPath);
    const left = found.left_out ? `; ${count(found.left_out)} nodes too small to be seen are left out` : "";
    this.summary.textContent = `${this.figure(found.total)} in ${count(found.nodes.parent.length)} nodes${left}`;
    this.search();
    this.tell(-1);
  }

  /** The node at the end of a path of names, or as far as it goes. */
  private follow(path: string[]): number {
    const tree = this.tree!;
    let at = -1;
    for (const name of path) {
      const below = at < 0 ? tree.roots : tree.children[at];
      const next = below.find((node) => this.name(node) === name);
      if (next === undefined) break;
      at = next;
    }
    return at;
  }

  private name(node: number): string {
    const { answer } = this.tree!;
    return answer.names[answer.nodes.name[node]];
  }

  private figure(value: number): string {
    return this.tree?.answer.unit === "samples" ? `${count(value)} samples` : time(value);
  }

  private search(): void {
    this.found = new Set();
    const text = this.findBox.value;
    this.findBox.setCustomValidity("");
    if (text && this.tree) {
      try {
        const { nodes, total } = matching(this.tree, new RegExp(text, "i"));
        this.found = nodes;
        const share = percent(total / Math.max(1, this.tree.answer.total));
        this.message.textContent = `${count(nodes.size)} nodes match, ${this.figure(total)} (${share})`;
      } catch {
        this.findBox.setCustomValidity("no regular expression");
        this.message.textContent = "no regular expression";
      }
    }
    this.paint();
  }

  private zoom(node: number): void {
    if (!this.tree) return;
    this.zoomed = node;
    this.zoomPath = [];
    for (let up = node; up >= 0; up = this.tree.answer.nodes.parent[up]) this.zoomPath.unshift(this.name(up));
    this.tell(node);
    this.paint();
    this.host.changed();
  }

  private onTimeline(): void {
    const node = this.at >= 0 ? this.at : this.zoomed;
    if (node >= 0) this.host.find(this.name(node));
    else this.host.say("choose a node of the flame graph first");
  }

  /** Begin and width of what is shown, in the unit of the weights. */
  private shown(): [number, number] {
    const tree = this.tree!;
    if (this.zoomed < 0) return [0, Math.max(1e-9, tree.answer.total)];
    return [tree.left[this.zoomed], Math.max(1e-9, tree.answer.nodes.total[this.zoomed])];
  }

  private paint(): void {
    const width = Math.max(1, this.scrolled.clientWidth - 2);
    const rows = this.tree ? this.tree.deepest + 1 : 0;
    // browsers refuse canvases of any height; deeper stacks than this are shown by zooming in
    const height = Math.max(this.scrolled.clientHeight - 4, Math.min(rows * ROW, 12_000), ROW);
    fit(this.canvas, width, height);
    const { context } = scaled(this.canvas);
    context.clearRect(0, 0, width, height);
    if (!this.tree) return;
    context.font = FONT;
    context.textBaseline = "middle";
    const { strong } = themeNow();
    for (const [node, x, wide] of this.boxes(width)) {
      const y = this.tree.depth[node] * ROW;
      const faded = this.found.size > 0 && !this.found.has(node);
      context.globalAlpha = faded ? 0.3 : 1;
      context.fillStyle = this.found.has(node) ? markColour("found") : hue(this.name(node));
      context.fillRect(x, y, Math.max(LEAST_PX, wide - (wide > 3 ? 1 : 0)), ROW - 1);
      if (wide >= LABEL_PX) {
        context.fillStyle = "#10141a";
        const text = clean(this.name(node), Math.max(2, Math.floor(wide / 5)));
        context.save();
        context.beginPath();
        context.rect(x, y, wide - 3, ROW);
        context.clip();
        context.fillText(text, Math.max(x, 0) + 4, y + ROW / 2);
        context.restore();
      }
      context.globalAlpha = 1;
      if (node === this.at) {
        context.strokeStyle = strong;
        context.lineWidth = 2;
        context.strokeRect(x + 1, y + 1, Math.max(2, wide - 2), ROW - 3);
      }
    }
  }

  /** Nodes that are wide enough to be drawn, and where. */
  private *boxes(width: number): Generator<[number, number, number]> {
    const tree = this.tree!;
    const [begin, span] = this.shown();
    const { total } = tree.answer.nodes;
    const open = [...tree.roots];
    while (open.length) {
      const node = open.pop()!;
      const low = Math.max(tree.left[node], begin);
      const high = Math.min(tree.left[node] + total[node], begin + span);
      const wide = ((high - low) / span) * width;
      if (wide < LEAST_PX) continue;
      yield [node, ((low - begin) / span) * width, wide];
      open.push(...tree.children[node]);
    }
  }

  private under(event: MouseEvent): number {
    if (!this.tree) return -1;
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    for (const [node, left, wide] of this.boxes(box.width))
      if (this.tree.depth[node] === Math.floor(y / ROW) && x >= left && x < left + wide) return node;
    return -1;
  }

  private hover(event: PointerEvent): void {
    const node = this.under(event);
    this.tell(node >= 0 ? node : this.at);
    this.canvas.style.cursor = node >= 0 ? "pointer" : "default";
  }

  private tell(node: number): void {
    if (!this.tree) return;
    if (node < 0) {
      if (!this.findBox.value) this.message.textContent = "Hover or use the arrow keys; click or Enter zooms.";
      return;
    }
    const { nodes, total } = this.tree.answer;
    const whole = percent(nodes.total[node] / Math.max(1, total));
    this.message.textContent =
      `${clean(this.name(node), 200)}: ${this.figure(nodes.total[node])} (${whole}), ` +
      `itself ${this.figure(nodes.own[node])}, ${count(nodes.count[node])} ×`;
  }

  private keyed(event: KeyboardEvent): void {
    const tree = this.tree;
    if (!tree || event.ctrlKey || event.metaKey || event.altKey) return;
    const { parent } = tree.answer.nodes;
    const from = this.at >= 0 ? this.at : this.zoomed >= 0 ? this.zoomed : tree.roots[0];
    const siblings = parent[from] >= 0 ? tree.children[parent[from]] : tree.roots;
    const beside = siblings.indexOf(from);
    const to: Record<string, () => void> = {
      ArrowDown: () => this.go(this.at < 0 ? from : (tree.children[from][0] ?? from)),
      ArrowUp: () => this.go(parent[from] >= 0 ? parent[from] : from),
      ArrowLeft: () => this.go(siblings[Math.max(0, beside - 1)]),
      ArrowRight: () => this.go(siblings[Math.min(siblings.length - 1, beside + 1)]),
      Enter: () => this.zoom(this.at),
      Backspace: () => this.zoom(this.zoomed >= 0 ? parent[this.zoomed] : -1),
      Home: () => this.zoom(-1),
      "/": () => this.findBox.focus(),
    };
    const run = to[event.key];
    if (!run || from === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    run();
  }

  private go(node: number): void {
    const tree = this.tree!;
    this.at = node;
    const [begin, span] = this.shown();
    const outside = tree.left[node] >= begin + span || tree.left[node] + tree.answer.nodes.total[node] <= begin;
    if (outside) this.zoom(tree.answer.nodes.parent[node]);
    const y = tree.depth[node] * ROW;
    const { scrollTop, clientHeight } = this.scrolled;
    if (y < scrollTop || y > scrollTop + clientHeight - ROW) this.scrolled.scrollTop = Math.max(0, y - clientHeight / 2);
    this.tell(node);
    this.paint();
  }
}

/** A colour by name without its digits: all layers look alike. */
function hue(name: string): string {
  let hash = 0x811c9dc5;
  for (const character of name.slice(0, 200).replace(/\d+/g, "")) {
    hash ^= character.codePointAt(0)!;
    hash = Math.imul(hash, 0x01000193) >>> 0;
  }
  return colourOf(`name_${hash % 8}`);
}
