/** Which tool when: goals, and for each the ways to find out, with commands about this capture. */

import type { Guidance, GuideBook, Route } from "../data/contracts";
import { element, fill } from "../shared/dom";
import { clean } from "../shared/format";
import { waiting } from "../shared/progress";
import { copyButton } from "./copy";
import { choice, type Host, type Panel } from "./panel";

const LONGEST = 1000;

export class GuidePanel implements Panel {
  readonly title = "Guide";
  readonly key = "Q";
  readonly body: HTMLElement;
  private found: GuideBook | null = null;
  private asked = false;
  private goal = "";
  private readonly goalBox = choice("What do you want to know?", [], () => this.choose());
  private readonly summary = element("span", { class: "note", role: "status", "aria-live": "polite" });
  private readonly answer = element("div", { class: "scrolled guide" });

  constructor(private readonly host: Host) {
    this.goalBox.hidden = true;
    this.body = element(
      "div",
      { class: "fill" },
      element("div", { class: "row tools" }, this.goalBox, this.summary),
      this.answer,
    );
  }

  refresh(): void {
    if (!this.found && !this.asked) void this.ask();
  }

  state(): Record<string, string> {
    return this.goal ? { goal: this.goal } : {};
  }

  restore(state: Record<string, string>): void {
    this.goal = state.goal ?? "";
  }

  focus(): void {
    this.goalBox.focus();
  }

  private async ask(): Promise<void> {
    this.asked = true;
    const { source } = this.host;
    const answer = waiting(source.guide(), () => source.progress(), (text) => {
      this.summary.textContent = text;
    });
    this.found = await this.host.asking(answer);
    this.asked = false;
    this.summary.textContent = this.found ? "" : this.host.failure() || "no guide";
    if (!this.found) return;
    const { goals, answers } = this.found;
    if (!(this.goal in answers)) this.goal = goals[0].id;
    fill(this.goalBox, ...goals.map(({ id, title }) => element("option", { value: id }, title)));
    this.goalBox.value = this.goal;
    this.goalBox.hidden = false;
    this.paint();
  }

  private choose(): void {
    this.goal = this.goalBox.value;
    this.paint();
    this.host.changed();
  }

  private paint(): void {
    if (!this.found) return;
    const guidance: Guidance = this.found.answers[this.goal];
    fill(
      this.answer,
      element("p", {}, ...marked(guidance.meaning)),
      element("p", { class: "note" }, ...marked(guidance.here)),
      element("ol", {}, ...guidance.routes.map((route) => this.way(route))),
      element("h3", {}, "The method, whatever the goal is"),
      element("ol", {}, ...guidance.method.map((step) => element("li", {}, step))),
    );
    this.answer.scrollTop = 0;
  }

  private way(route: Route): HTMLElement {
    const commands = [...route.record, ...route.read].map((text) => this.command(text));
    const notes = [
      ...route.lacks.map((text) => ["the capture lacks it", text]),
      ...(route.record.length ? route.missing.map((text) => ["not here", text]) : []),
      ["look for", route.look_for],
      ...(route.record.length && route.overhead
        ? [["overhead", route.overhead + (route.source ? ` [${route.source}]` : "")]]
        : []),
      ["next", route.next],
    ];
    return element(
      "li",
      { "data-tool": route.tool },
      element("p", {}, element("strong", {}, route.title), ": ", ...marked(route.when)),
      ...commands,
      ...notes.map(([name, text]) => element("p", { class: "note" }, `${name}: `, ...marked(text))),
    );
  }

  private command(text: string): HTMLElement {
    const shown = clean(text, LONGEST);
    return element(
      "p",
      { class: "row" },
      element("code", { class: "grow" }, shown),
      copyButton("copy", "Copy the command", () => shown, (message) => this.host.say(message)),
    );
  }
}

/** Text in which what stands between backticks is code. */
export function marked(text: string): (Node | string)[] {
  return clean(text, LONGEST)
    .split("`")
    .map((part, index) => (index % 2 ? element("code", {}, part) : part));
}
