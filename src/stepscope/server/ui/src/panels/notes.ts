/** Marks and notes: kept by the server beside the capture, shared by all open tabs. */

import type { Note, NotesAnswer } from "../data/contracts";
import { element, fill } from "../shared/dom";
import { clean, count, time } from "../shared/format";
import { wrong } from "../shared/frame";
import type { Host, Panel } from "./panel";

/** Characters of a text; the server refuses longer ones. */
const LONGEST = 10_000;
/** From here on it is told how many there are. */
const NEARLY = 9_000;

export class Notes implements Panel {
  readonly title = "Notes";
  readonly key = "M";
  readonly body: HTMLElement;
  notes: Note[] = [];
  /** Made here, and not yet known to be kept. */
  private readonly unsaved = new Map<string, Note>();
  /** What was typed and is not yet known to be kept: a row that is drawn meanwhile shows it. */
  private readonly pending = new Map<string, string>();
  /** Revision that this page's own change made of an earlier one: what follows is no conflict. */
  private readonly own = new Map<string, number>();
  /** Why the server did not keep the text of a note. */
  private readonly refused = new Map<string, string>();
  /** One change after the other: the next one needs the revision that the last one made. */
  private saving: Promise<unknown> = Promise.resolve();
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
        ...(editable ? [element("span", { class: "note", id: "note-limit" }, `up to ${count(LONGEST)} characters each; Enter saves, Shift+Enter begins a line`)] : []),
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
    const note = { id, revision: 0, begin, end, text: "" };
    this.unsaved.set(id, note);
    this.show();
    this.box(id)?.focus(); // before the server answers: what is typed at once belongs to the note
    await this.save(note, "", false);
  }

  private async remove(note: Note): Promise<void> {
    if (this.unsaved.delete(note.id) && !this.notes.some(({ id }) => id === note.id)) this.show();
    else await this.save(note, note.text, true);
  }

  private async save(note: Note, text: string, deleted: boolean): Promise<boolean> {
    this.pending.set(note.id, text);
    const done = this.saving.then(() => this.change(note, text, deleted));
    this.saving = done;
    return done;
  }

  private async change(note: Note, text: string, deleted: boolean): Promise<boolean> {
    if (!deleted && this.tooLong(text)) return false;
    const revision = this.revision(note);
    let message = "";
    const asked = this.host.source.saveNote({ ...note, revision, text, deleted }).catch((error: unknown) => {
      message = wrong(error);
      throw error;
    });
    const found = await this.host.asking(asked);
    if (this.pending.get(note.id) === text) this.pending.delete(note.id);
    if (!found) {
      // another tab may have been faster: show what it wrote, and keep this text in its box
      const fresh = await this.host.source.notes().catch(() => null);
      if (fresh) this.take(fresh, { id: note.id, text });
      this.refuse(note.id, `${deleted ? "Not removed" : "Not saved"}: ${message}`, text);
      return false;
    }
    this.unsaved.delete(note.id);
    this.refused.delete(note.id);
    const made = found.notes.find(({ id }) => id === note.id)?.revision;
    if (made) this.own.set(`${note.id} ${revision}`, made);
    this.take(found);
    this.channel?.postMessage(found.revision);
    return true;
  }

  /** The revision that a change is of: its row may be from before this page's last changes. */
  private revision(note: Note): number {
    let revision = note.revision;
    for (let next; (next = this.own.get(`${note.id} ${revision}`)); ) revision = next;
    return revision;
  }

  private tooLong(text: string): boolean {
    const length = lengthOf(text);
    if (length <= LONGEST) return false;
    this.host.say(`not saved: ${tooMany(length)}`);
    return true;
  }

  /** Says beside a note why it was not kept; its text stays in its box. */
  private refuse(id: string, message: string, text: string): void {
    this.refused.set(id, clean(message, 400));
    this.show({ id, text });
    this.host.say(clean(message, 200));
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
    const known = new Set(this.notes.map(({ id }) => id));
    const made = [...this.unsaved.values()].filter(({ id }) => !known.has(id));
    const all = [...this.notes, ...made].sort((a, b) => a.begin - b.begin);
    fill(this.list, ...all.map((note) => this.row(note)));
    for (const text of [kept, typing]) {
      const box = text && this.box(text.id);
      if (!box) continue;
      box.value = text.text;
      box.dispatchEvent(new Event("input")); // how long it is
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
    const kind = note.end > note.begin ? "note" : "mark";
    const box = element("textarea", {
      rows: 1,
      "aria-describedby": `note-limit note-message-${note.id}`,
      ...(this.refused.has(note.id) ? { "aria-invalid": "true" } : {}),
      "data-id": note.id,
      "aria-label": `Text of the ${kind} at ${time(note.begin)}`,
      placeholder: "text",
      dir: "auto",
      ...(editable ? {} : { readonly: true }),
    });
    box.value = this.pending.get(note.id) ?? note.text;
    let sent = box.value; // leaving the box after Enter must not save a second time
    const keep = (): void => {
      if (box.value === sent) return;
      sent = box.value;
      void this.save(note, box.value, false);
    };
    const message = element("p", { class: "error", id: `note-message-${note.id}`, role: "alert" }, this.refused.get(note.id) ?? "");
    box.addEventListener("input", () => {
      const length = lengthOf(box.value);
      if (length > LONGEST) message.textContent = tooMany(length);
      else if (length >= NEARLY) message.textContent = `${count(length)} of ${count(LONGEST)} characters`;
      else message.textContent = this.refused.get(note.id) ?? "";
      const wrongly = length > LONGEST || this.refused.has(note.id);
      message.classList.toggle("error", wrongly);
      box.setAttribute("aria-invalid", String(wrongly));
    });
    box.addEventListener("change", keep);
    box.addEventListener("keydown", (event) => {
      event.stopPropagation();
      if (event.key === "Enter" && !event.shiftKey) {
        event.preventDefault();
        if (this.tooLong(box.value)) return;
        keep();
        this.host.leave();
      }
      if (event.key === "Escape") {
        box.value = note.text;
        this.pending.delete(note.id);
        this.refused.delete(note.id);
        this.host.leave();
      }
    });
    return element(
      "tr",
      {},
      element("td", { class: "figure" }, element("button", { class: "link", click: () => this.go(note), "aria-label": `Show the ${kind} at ${time(note.begin)}` }, time(note.begin))),
      element("td", { class: "figure" }, note.end > note.begin ? time(note.end - note.begin) : ""),
      element("td", { class: "grow" }, box, message),
      element(
        "td",
        {},
        ...(editable
          ? [element("button", { click: () => void this.remove(note), "aria-label": `Remove the ${kind} at ${time(note.begin)}` }, "✕")]
          : []),
      ),
    );
  }
}

/** Characters of a text as Python counts them. */
const lengthOf = (text: string): number => (text.length < NEARLY ? text.length : [...text].length);
const tooMany = (length: number): string => `${count(length)} of ${count(LONGEST)} characters: too long to be saved, shorten it`;
