/** Marks and notes: kept by the server beside the capture, shared by all open tabs. */

import type { Host, Panel } from "./drawer";
import { element, fill } from "./dom";
import { clean, time } from "./format";
import type { Note, NotesAnswer } from "./types";

const LONGEST = 10_000;

export class Notes implements Panel {
  readonly title = "Notes";
  readonly key = "M";
  readonly body: HTMLElement;
  notes: Note[] = [];
  private path = "";
  private at = -1;
  private readonly list = element("tbody", {});
  private readonly where = element("p", { class: "note" });
  private channel: BroadcastChannel | null = null;

  constructor(private readonly host: Host) {
    const editable = host.source.editable;
    this.body = element(
      "div",
      { class: "fill" },
      element(
        "div",
        { class: "row tools" },
        ...(editable
          ? [
              element("button", { click: () => void this.mark() }, "Mark (M)"),
              element("button", { click: () => void this.note() }, "Note on the range (Shift+M)"),
            ]
          : [element("span", { class: "note" }, "This page is a copy: stepscope ui keeps notes.")]),
        element("button", { click: () => void this.step(-1), "aria-label": "Previous note", title: "Shift+U" }, "‹"),
        element("button", { click: () => void this.step(1), "aria-label": "Next note", title: "U" }, "›"),
        this.where,
      ),
      element(
        "div",
        { class: "scrolled" },
        element(
          "table",
          { class: "grid notes" },
          element("caption", { class: "hidden" }, "Marks and notes"),
          element(
            "thead",
            {},
            element("tr", {}, ...["at", "length", "text", ""].map((t) => element("th", { scope: "col" }, t || "remove"))),
          ),
          this.list,
        ),
      ),
    );
    try {
      this.channel = new BroadcastChannel(`stepscope.notes${location.pathname}`);
      this.channel.addEventListener("message", () => void this.load());
    } catch {
      this.channel = null; // a page from disk may have none
    }
    window.addEventListener("focus", () => void this.load());
  }

  focus(): void {
    (this.list.querySelector("textarea, button") as HTMLElement | null)?.focus();
  }

  refresh(): void {
    this.show();
  }

  state(): Record<string, string> {
    return {};
  }

  restore(): void {
    // notes are the capture's, not the view's
  }

  /** Reads what there is; other tabs may have added some. */
  async load(): Promise<void> {
    const found = await this.host.asking(this.host.source.notes());
    if (found) this.take(found);
  }

  /** A mark where the pointer is, else in the middle of the view. */
  async mark(): Promise<void> {
    const view = this.host.view();
    const at = Math.round(this.host.cursor() ?? (view.begin + view.end) / 2);
    await this.add(at, at);
  }

  /** A note about the range, else about the selection. */
  async note(): Promise<void> {
    const selected = this.host.selected();
    const span = this.host.range() ?? (selected ? { begin: selected.start, end: selected.end } : null);
    if (!span) {
      this.host.say("choose a range or select something first");
      return;
    }
    await this.add(Math.round(span.begin), Math.round(span.end));
  }

  /** Goes to the next or previous note. */
  step(by: number): void {
    if (!this.notes.length) {
      this.host.say("there are no notes");
      return;
    }
    const size = this.notes.length;
    this.at = this.at < 0 ? (by > 0 ? 0 : size - 1) : (this.at + by + size) % size;
    this.go(this.notes[this.at]);
  }

  private go(note: Note): void {
    const view = this.host.view();
    const half = note.end > note.begin ? (note.end - note.begin) * 0.75 : (view.end - view.begin) / 2;
    const middle = (note.begin + note.end) / 2;
    this.host.frame({ begin: middle - half, end: middle + half });
    this.host.say(`${note.end > note.begin ? "note" : "mark"} at ${time(note.begin)}: ${clean(note.text, 100) || "(no text)"}`);
  }

  private async add(begin: number, end: number): Promise<void> {
    if (!this.host.source.editable) {
      this.host.say("this page is a copy: stepscope ui keeps notes");
      return;
    }
    const id = [...crypto.getRandomValues(new Uint8Array(12))].map((b) => b.toString(16).padStart(2, "0")).join("");
    const made = await this.save({ id, revision: 0, begin, end, text: "" }, "", false);
    if (!made) return;
    (this.list.querySelector(`textarea[data-id="${id}"]`) as HTMLElement | null)?.focus();
  }

  private async save(note: Note, text: string, deleted: boolean): Promise<boolean> {
    const change = { ...note, text: text.slice(0, LONGEST), deleted };
    const found = await this.host.asking(this.host.source.saveNote(change));
    if (!found) {
      // another tab was faster: show what it wrote, and keep this text where it can be copied
      const fresh = await this.host.source.notes().catch(() => null);
      if (fresh) this.take(fresh, { id: note.id, text });
      this.host.say(deleted ? "not removed" : "not saved; your text stands in its box, press Enter to save it");
      return false;
    }
    this.take(found);
    this.channel?.postMessage(found.revision);
    return true;
  }

  private take(found: NotesAnswer, kept?: { id: string; text: string }): void {
    this.notes = found.notes;
    this.path = found.path;
    this.at = Math.min(this.at, this.notes.length - 1);
    this.host.showNotes(this.notes);
    this.show(kept);
  }

  private show(kept?: { id: string; text: string }): void {
    this.where.textContent = this.notes.length
      ? `kept in ${clean(this.path, 300)}`
      : this.host.source.editable ? `none yet; they will be kept in ${clean(this.path, 300)}` : ""; // prettier-ignore
    const active = document.activeElement as HTMLTextAreaElement | null;
    const typing = active?.dataset?.id && this.list.contains(active) ? { id: active.dataset.id, text: active.value, at: active.selectionStart } : null;
    fill(this.list, ...this.notes.map((note) => this.row(note)));
    for (const text of [kept, typing]) {
      const box = text && this.box(text.id);
      if (box) box.value = text.text;
    }
    const again = typing && this.box(typing.id);
    if (again) {
      again.focus();
      again.setSelectionRange(typing.at, typing.at);
    }
  }

  private box(id: string): HTMLTextAreaElement | null {
    return this.list.querySelector(`textarea[data-id="${CSS.escape(id)}"]`);
  }

  private row(note: Note): HTMLElement {
    const { editable } = this.host.source;
    const says = note.end > note.begin ? "note" : "mark";
    const box = element("textarea", {
      rows: 1,
      maxlength: LONGEST,
      "data-id": note.id,
      "aria-label": `Text of the ${says} at ${time(note.begin)}`,
      placeholder: "text",
      dir: "auto",
      ...(editable ? {} : { readonly: true }),
    });
    box.value = note.text;
    let sent = note.text; // leaving the box after Enter must not save a second time
    const keep = (): void => {
      if (box.value === sent) return;
      sent = box.value;
      void this.save(note, box.value, false);
    };
    box.addEventListener("change", keep);
    box.addEventListener("keydown", (event) => {
      event.stopPropagation();
      if (event.key === "Enter" && !event.shiftKey) {
        event.preventDefault();
        keep();
        this.host.leave();
      }
      if (event.key === "Escape") {
        box.value = note.text;
        this.host.leave();
      }
    });
    return element(
      "tr",
      {},
      element("td", { class: "figure" }, element("button", { class: "link", click: () => this.go(note), "aria-label": `Show the ${says} at ${time(note.begin)}` }, time(note.begin))),
      element("td", { class: "figure" }, note.end > note.begin ? time(note.end - note.begin) : ""),
      element("td", { class: "grow" }, box),
      element(
        "td",
        {},
        ...(editable
          ? [element("button", { click: () => void this.save(note, note.text, true), "aria-label": `Remove the ${says} at ${time(note.begin)}` }, "✕")]
          : []),
      ),
    );
  }
}
