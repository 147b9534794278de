/** What stands around every view: the header, the footer, and the help with all keys. */

import { element, fill } from "./dom";
import { clean } from "./format";
import type { Key } from "./keys";

const LONGEST = 400;

export interface FrameActions {
  theme(): void;
  help(): void;
}

export class Frame {
  /** What has just been done; screen readers speak it. */
  readonly status = element("span", { role: "status", "aria-live": "polite" });
  /** Which part of the time is shown. */
  readonly where = element("span", { class: "where" });
  private readonly failure = element("span", { class: "error", role: "alert" });
  private readonly helpBox = element("dialog", { "aria-label": "Keys" });

  constructor(private readonly actions: FrameActions) {}

  /**
   * Fills the page.
   *
   * @param names of the window; `files` message what is shown, `tools` stand in the header
   */
  build(root: HTMLElement, names: string, files: string, tools: HTMLElement[], body: HTMLElement): void {
    document.title = `${names} · Stepscope`;
    fill(
      root,
      element(
        "header",
        {},
        element("h1", {}, "Stepscope"),
        element("span", { class: "file", title: files }, files),
        ...tools,
        element("button", { click: () => this.actions.theme(), "aria-label": "Dark or light" }, "◐"),
        element("button", { click: () => this.actions.help(), "aria-label": "Keys and mouse" }, "?"),
      ),
      body,
      element("footer", {}, this.where, this.status, this.failure),
      this.helpBox,
    );
  }

  message(text: string): void {
    this.status.textContent = text;
  }

  fail(message: string): void {
    this.failure.textContent = clean(message, LONGEST);
  }

  /** What failed last; empty for nothing. */
  get failed(): string {
    return this.failure.textContent ?? "";
  }

  get helping(): boolean {
    return this.helpBox.open;
  }

  help(keys: [string, string][]): void {
    const list = element("dl", {});
    for (const [shows, message] of keys) if (shows) list.append(element("dt", {}, shows), element("dd", {}, message));
    // the button first: it has the focus, and must not scroll the keys out of sight
    fill(
      this.helpBox,
      element(
        "div",
        { class: "row" },
        element("h2", { class: "grow" }, "Keys and mouse"),
        element("button", { click: () => this.helpBox.close() }, "Close (Esc)"),
      ),
      list,
    );
    this.helpBox.showModal();
    this.helpBox.scrollTop = 0;
  }
}

/** What the help message of a key. */
export const keyHelp = ({ shows, message }: Key): [string, string] => [shows, message];

/** What went wrong, in words. */
export const wrong = (error: unknown): string => (error instanceof Error ? error.message : String(error));
