/** Names of the tracks, as elements: screen readers and keyboards reach them. */

import { element, fill } from "../shared/dom";
import { clean } from "../shared/format";
import { GROUP_PX, type Group, type TrackView, type Tracks } from "./tracks";

export interface GutterActions {
  fold(target: Group | TrackView): void;
  pin(trackView: TrackView): void;
  move(group: Group, by: number): void;
  moveTrack(trackView: TrackView, by: number): void;
  /** Follows the pointer from here on, and moves the track with it. */
  drag(trackView: TrackView, event: PointerEvent): void;
}

export function showGutter(parent: HTMLElement, tracks: Tracks, actions: GutterActions): void {
  const made: HTMLElement[] = [];
  // the elements are made again: whoever stands on one with the keyboard stays on its successor
  const focused = document.activeElement as HTMLElement | null;
  const stood = focused && parent.contains(focused) ? focused.dataset.stop : undefined;
  const inside = new Set(tracks.groups.flatMap((group) => group.children));
  for (const [group, trackViews] of tracks.visible()) {
    const title = clean(group.title, 80);
    const head = element(
      "div",
      { class: inside.has(group) ? "group inside" : "group", role: "heading", "aria-level": inside.has(group) ? 3 : 2 },
      element(
        "button",
        {
          class: "title",
          "data-stop": `group ${group.title}`,
          "aria-expanded": group.folded || group.brief ? "false" : "true",
          title,
          click: () => actions.fold(group),
        },
        `${group.folded || group.brief ? "▸" : "▾"} ${title}`,
      ),
      tool("↑", `Move ${title} up`, () => actions.move(group, -1)),
      tool("↓", `Move ${title} down`, () => actions.move(group, 1)),
    );
    head.style.top = `${group.y}px`;
    made.push(head);
    if (group.folded) continue;
    for (const trackView of trackViews) {
      const pinned = tracks.isPinned(trackView);
      const name = clean(tracks.stray(trackView) ? abroad(trackView) : trackView.title, 90);
      const entry = element(
        "div",
        { class: trackView.info.kind === "counter" ? "track counter" : "track", "data-track": trackView.info.id },
        element(
          "button",
          {
            class: "title",
            "data-stop": `track ${trackView.info.id}`,
            title: `${name} (click folds; drag, or Alt and an arrow key, moves it)`,
            "aria-expanded": trackView.folded ? "false" : "true",
            "aria-keyshortcuts": "Alt+ArrowUp Alt+ArrowDown",
            click: () => actions.fold(trackView),
            pointerdown: (event) => actions.drag(trackView, event as PointerEvent),
            keydown: (event) => {
              const { altKey, key } = event as KeyboardEvent;
              const by = altKey ? { ArrowUp: -1, ArrowDown: 1 }[key] : undefined;
              if (by === undefined) return;
              event.preventDefault();
              event.stopPropagation();
              actions.moveTrack(trackView, by);
            },
          },
          (trackView.tile?.depths ?? 1) > 1 ? `${trackView.folded ? "▸" : "▾"} ${name}` : name,
        ),
        tool(pinned ? "★" : "☆", `${pinned ? "Unpin" : "Pin"} ${name}`, () => actions.pin(trackView), pinned),
      );
      entry.style.top = `${trackView.y}px`;
      entry.style.height = `${trackView.height}px`;
      made.push(entry);
    }
  }
  // names stand beside the middle of their first row, as labels stand in it
  parent.style.setProperty("--row", `${tracks.rowPx}px`);
  parent.style.height = `${Math.max(tracks.height, GROUP_PX)}px`;
  fill(parent, ...made);
  if (stood !== undefined)
    (parent.querySelector(`[data-stop="${CSS.escape(stood)}"]`) as HTMLElement | null)?.focus({ preventScroll: true });
}

/** Name of a track that stands outside its group: the rank first, because names are cut at their end. */
function abroad({ info }: TrackView): string {
  const [rank] = /^Rank -?\d+ · /.exec(info.group) ?? [""];
  return `${rank}${info.title} · ${info.group.slice(rank.length)}`;
}

function tool(text: string, message: string, run: () => void, on = false): HTMLElement {
  return element(
    "button",
    { class: on ? "tool on" : "tool", "aria-label": message, title: message, click: run },
    text,
  );
}
