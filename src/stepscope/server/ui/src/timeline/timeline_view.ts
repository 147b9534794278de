/** The elements of the timeline: canvases that scroll, the tip, and the names of the tracks beside. */

import type { Place } from "../data/contracts";
import { element } from "../shared/dom";
import { CLICK_PX } from "../shared/pointer";
import { showGutter } from "./track_names";
import { depths, GROUP_PX, type Group, type TrackView, type Tracks } from "./tracks";

export class TimelineView {
  readonly axis = element("canvas", { class: "axis", "aria-hidden": "true" });
  readonly rows = element("canvas", {
    class: "rows",
    tabindex: 0,
    role: "application",
    "aria-label":
      "Timeline. Arrow keys move, W and S zoom, full stop and comma select along a row, question mark shows all keys.",
  });
  private readonly spacer = element("div", { class: "spacer" });
  readonly scroller = element("div", { class: "scroll" }, this.rows, this.spacer);
  readonly tip = element("div", { class: "tip", hidden: true });
  readonly root: HTMLElement;
  private readonly names = element("div", { class: "rows" });
  readonly gutter: HTMLElement;

  constructor(
    private readonly tracks: Tracks,
    overlay: HTMLElement,
    private readonly changed: () => void,
    private readonly message: (text: string) => void,
    /** The filter is gone, because it hid what had to be shown. */
    private readonly unfiltered: () => void,
  ) {
    const ruler = element("div", { class: "note ruler" }, tracks.rulerTitle);
    this.gutter = element("nav", { class: "gutter", "aria-label": "Tracks" }, ruler, element("div", { class: "inner" }, this.names));
    this.root = element("div", { class: "stage" }, this.axis, this.scroller, overlay, this.tip);
    new ResizeObserver(changed).observe(this.root);
    this.scroller.addEventListener("scroll", changed);
    this.gutter.addEventListener("wheel", (event) => void (this.scroller.scrollTop += event.deltaY), { passive: true });
  }

  get width(): number {
    return this.root.clientWidth;
  }

  get height(): number {
    return Math.max(1, this.scroller.clientHeight);
  }

  focus(): void {
    this.rows.focus({ preventScroll: true });
  }

  /** Height on the canvas of all tracks where an event is. */
  y(event: MouseEvent): number {
    return event.clientY - this.scroller.getBoundingClientRect().top + this.scroller.scrollTop;
  }

  /** Places the tracks, and writes their names where anything about them has changed. */
  arrange(): void {
    const before = this.tracks.height;
    this.tracks.room = this.height;
    this.tracks.arrange();
    const signature = this.signature();
    if (before !== this.tracks.height || signature !== this.names.dataset.signature) {
      this.names.dataset.signature = signature;
      showGutter(this.names, this.tracks, {
        fold: (target) => this.fold(target),
        pin: (trackView) => this.edit(() => this.tracks.pin(trackView)),
        move: (group, by) => this.edit(() => this.tracks.move(group, by)),
        moveTrack: (trackView, by) =>
          this.edit(() => {
            if (!this.tracks.moveTrack(trackView, by)) this.message("it stands at the edge of its group");
          }),
        drag: (trackView, event) => this.drag(trackView, event),
      });
      this.stretch();
    }
    this.names.style.top = `${-this.scroller.scrollTop}px`;
  }

  /** Tracks in view, or less than a screen away. */
  near(): TrackView[] {
    const [scroll, height] = [this.scroller.scrollTop, this.height];
    return [...this.tracks.open()].filter(
      (trackView) => trackView.y < scroll + 2 * height && trackView.y + trackView.height > scroll - height,
    );
  }

  edit(change: () => void): void {
    change();
    this.tracks.arrange();
    this.changed();
  }

  /** Unfolds the track of a place and scrolls to it. */
  reveal(place: Pick<Place, "track" | "depth">): void {
    const trackView = this.tracks.trackViews.get(place.track);
    if (!trackView) return;
    if (this.tracks.reveal(trackView)) this.unfiltered();
    const y = trackView.y + Math.min(place.depth, depths(trackView)) * this.tracks.rowPx;
    const height = this.scroller.clientHeight;
    if (y < this.scroller.scrollTop || y > this.scroller.scrollTop + height - 24) {
      this.stretch();
      this.scroller.scrollTop = Math.max(0, y - height / 2);
    }
  }

  /** Brings tracks into view at once: where they stand, else together on top. */
  gather(trackViews: TrackView[]): void {
    const { tracks, scroller } = this;
    tracks.spotlight([]);
    const open = new Set(tracks.open());
    const top = Math.min(...trackViews.map((trackView) => trackView.y));
    const bottom = Math.max(...trackViews.map((trackView) => trackView.y + trackView.height));
    const height = scroller.clientHeight;
    if (!trackViews.every((trackView) => open.has(trackView)) || bottom - top > height - GROUP_PX) {
      tracks.spotlight(trackViews);
      this.stretch();
      scroller.scrollTop = 0;
      return;
    }
    this.stretch();
    if (top < scroller.scrollTop || bottom > scroller.scrollTop + height)
      scroller.scrollTop = Math.max(0, Math.min(top - GROUP_PX, (top + bottom - height) / 2));
  }

  /** Makes the scroll bar as long as the tracks are high. */
  private stretch(): void {
    this.spacer.style.height = `${Math.max(0, this.tracks.height - this.scroller.clientHeight)}px`;
  }

  private signature(): string {
    const parts: string[] = [];
    for (const [group, trackViews] of this.tracks.visible()) {
      parts.push(`${group.title}${group.folded}${group.brief}${group.y}`);
      for (const l of trackViews) parts.push(`${l.info.id}${l.folded}${l.tile?.depths}${l.y}`);
    }
    return parts.join();
  }

  private fold(target: Group | TrackView): void {
    this.edit(() => ("info" in target ? (target.folded = !target.folded) : this.tracks.fold(target)));
  }

  /** A track follows the pointer through its group. */
  private drag(trackView: TrackView, event: PointerEvent): void {
    if (event.button !== 0) return;
    let moved = false;
    const move = (next: PointerEvent): void => {
      if (!moved && Math.abs(next.clientY - event.clientY) <= CLICK_PX) return;
      moved = true;
      const y = this.y(next);
      const over = this.tracks.at(y);
      if (!over || over === trackView || !this.tracks.siblings(trackView).includes(over)) return;
      // only past its middle, else tracks of different heights would change places again and again
      const down = over.y > trackView.y;
      if (down ? y < over.y + over.height / 2 : y > over.y + over.height / 2) return;
      this.edit(() => this.tracks.moveTrack(trackView, down ? 1 : -1));
    };
    // on the window: the button that was pressed is made again while its track moves
    const stop = (): void => {
      window.removeEventListener("pointermove", move);
      window.removeEventListener("pointerup", stop);
      window.removeEventListener("pointercancel", stop);
      if (!moved) return;
      // the click that ends a drag folds nothing
      const swallow = (click: Event): void => click.stopPropagation();
      window.addEventListener("click", swallow, { capture: true, once: true });
      window.setTimeout(() => window.removeEventListener("click", swallow, { capture: true }), 50);
    };
    window.addEventListener("pointermove", move);
    window.addEventListener("pointerup", stop);
    window.addEventListener("pointercancel", stop);
  }
}
