/** Fetches what the view needs, a little more than it shows, and drops what it no longer does. */

import type { Source } from "../data/types";
import type { Colours } from "../shared/colours";
import type { View } from "../shared/window";
import { trackBitmap } from "./track_bitmap";
import type { TrackView } from "./tracks";

const MOST_COLUMNS = 16000;
const PAUSE_MS = 60;
const MOST_WORK_MS = 4;
const HIDDEN_MS = 50; // a page that is not shown gets no frames

export class TileLoader {
  private running: AbortController | null = null;
  private asked = "";
  private last = 0;
  private timer = 0;
  pending = false;

  constructor(
    private readonly source: Source,
    private readonly colours: () => Colours,
    private readonly arrived: () => void,
    private readonly failed: (message: string) => void,
  ) {}

  /** Width of a column for a view: a power of two, at most a pixel. */
  static bucket(view: View, width: number): number {
    return 2 ** Math.max(0, Math.floor(Math.log2(view.span / Math.max(1, width))));
  }

  want(view: View, width: number, trackViews: TrackView[]): void {
    const bucket = TileLoader.bucket(view, width);
    const missing = trackViews.filter(({ tile }) => {
      if (!tile || tile.bucket !== bucket) return true;
      const end = tile.begin + tile.bucket * tile.columns;
      const low = Math.max(view.begin, view.first);
      const high = Math.min(view.end, view.last);
      return tile.begin > low || end < high;
    });
    if (!missing.length) return;
    const shown = view.span / bucket;
    const beside = Math.max(0, Math.min(1, (MOST_COLUMNS / shown - 1) / 2)) * view.span;
    const low = Math.max(view.begin - beside, view.first - 2 * bucket);
    const high = Math.min(view.end + beside, view.last + 2 * bucket);
    const begin = Math.floor(low / bucket) * bucket;
    const columns = Math.max(1, Math.min(MOST_COLUMNS, Math.ceil((high - begin) / bucket)));
    const ids = missing.map((trackView) => trackView.info.id);
    const asked = `${bucket} ${Math.round(view.begin / bucket / 64)} ${ids.join()}`;
    if (this.pending && asked === this.asked) return;
    const wait = this.last + PAUSE_MS - performance.now();
    clearTimeout(this.timer);
    if (wait > 0) {
      this.timer = window.setTimeout(this.arrived, wait);
      return;
    }
    this.asked = asked;
    this.last = performance.now();
    void this.fetch(missing, begin, bucket, columns);
  }

  private async fetch(
    trackViews: TrackView[],
    begin: number,
    bucket: number,
    columns: number,
  ): Promise<void> {
    this.running?.abort();
    const control = new AbortController();
    this.running = control;
    this.pending = true;
    try {
      const ids = trackViews.map((trackView) => trackView.info.id);
      const tiles = await this.source.tiles(ids, begin, bucket, columns, control.signal);
      let since = performance.now();
      for (const trackView of trackViews) {
        const tile = tiles.get(trackView.info.id);
        if (!tile) continue;
        if (performance.now() - since > MOST_WORK_MS) {
          // pictures of many tracks take longer than a frame: one piece a frame, so that the view
          // moves in between
          await nextFrame();
          if (control.signal.aborted) return;
          since = performance.now();
        }
        trackView.tile = tile;
        trackView.picture = trackBitmap(tile, this.colours());
      }
    } catch (error) {
      if (control.signal.aborted) return;
      this.failed(error instanceof Error ? error.message : String(error));
      this.last = performance.now() + 2000;
    }
    if (this.running === control) {
      this.pending = false;
      this.arrived();
    }
  }
}

/** After the next frame was drawn. */
function nextFrame(): Promise<void> {
  return new Promise((go) => {
    const late = setTimeout(go, HIDDEN_MS);
    requestAnimationFrame(() => {
      clearTimeout(late);
      setTimeout(go);
    });
  });
}
