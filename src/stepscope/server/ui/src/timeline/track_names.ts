/** Names of the tracks, as elements: screen readers and keyboards reach them. */

import { element, fill } from "../shared/dom";
import { clean } from "../shared/format";
import { GROUP_PX, type Group, type Lane, type Tracks } from "./tracks";

export interface GutterActions {
  fold(target: Group | Lane): void;
  pin(lane: Lane): void;
  move(group: Group, by: number): void;
  moveLane(lane: Lane, by: number): void;
  /** Follows the pointer from here on, and moves the track with it. */
  drag(lane: Lane, event: PointerEvent): void;
}

export function showGutter(parent: HTMLElement, tracks: Tracks, actions: GutterActions): void {
  const made: HTMLElement[] = [];
  // the elements are made anew: whoever stands on one with the keyboard stays on its successor
  const focused = document.activeElement as HTMLElement | null;
  const stood = focused && parent.contains(focused) ? focused.dataset.stop : undefined;
  const inside = new Set(tracks.groups.flatMap((group) => group.children));
  for (const [group, lanes] of tracks.visible()) {
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
    for (const lane of lanes) {
      const pinned = tracks.isPinned(lane);
      const name = clean(tracks.stray(lane) ? abroad(lane) : lane.title, 90);
      const entry = element(
        "div",
        { class: lane.info.kind === "counter" ? "lane counter" : "lane", "data-track": lane.info.id },
        element(
          "button",
          {
            class: "title",
            "data-stop": `lane ${lane.info.id}`,
            title: `${name} (click folds; drag, or Alt and an arrow key, moves it)`,
            "aria-expanded": lane.folded ? "false" : "true",
            "aria-keyshortcuts": "Alt+ArrowUp Alt+ArrowDown",
            click: () => actions.fold(lane),
            pointerdown: (event) => actions.drag(lane, event as PointerEvent),
            keydown: (event) => {
              const { altKey, key } = event as KeyboardEvent;
              const by = altKey ? { ArrowUp: -1, ArrowDown: 1 }[key] : undefined;
              if (by === undefined) return;
              event.preventDefault();
              event.stopPropagation();
              actions.moveLane(lane, by);
            },
          },
          (lane.tile?.depths ?? 1) > 1 ? `${lane.folded ? "▸" : "▾"} ${name}` : name,
        ),
        tool(pinned ? "★" : "☆", `${pinned ? "Unpin" : "Pin"} ${name}`, () => actions.pin(lane), pinned),
      );
      entry.style.top = `${lane.y}px`;
      entry.style.height = `${lane.height}px`;
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
function abroad({ info }: Lane): string {
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
