/**
 * The rows of one track in one window as pixels: one column of the picture is one column of the
 * tile. Made once a tile; while the view moves it is only copied, stretched by less than two.
 *
 * A column that holds slices shorter than itself is filled from below up to their share of it, and
 * by at least two pixels, so that a device busy for a tenth of the time looks like it and a single
 * short event is still seen.
 */

import type { TrackTile } from "../data/types";
import type { Colours } from "../shared/colours";

export const ROW_PX = 16;
/** Slices from this many columns on are drawn as rectangles with labels, the others as pixels. */
export const LABELLED = 6;
const GAP_PX = 1;
const LEAST_PX = 2;

export type Bitmap = HTMLCanvasElement;

export function trackBitmap(tile: TrackTile, colours: Colours): Bitmap | null {
  if (tile.counter || !tile.rows.length) return null;
  const width = tile.columns;
  const height = tile.depths * ROW_PX;
  const picture = document.createElement("canvas");
  picture.width = width;
  picture.height = height;
  const context = picture.getContext("2d")!;
  const image = context.createImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  const full = ROW_PX - GAP_PX;
  for (const row of tile.rows) {
    const top = row.depth * ROW_PX;
    for (let i = 0; i < row.column.length; i++) {
      const filled = Math.max(LEAST_PX, Math.round(full * Math.min(1, row.share[i])));
      const colour = colours.pixel[row.dominant[i]];
      let at = (top + full - filled) * width + row.column[i];
      for (let y = 0; y < filled; y++, at += width) pixels[at] = colour;
    }
    for (let i = 0; i < row.start.length; i++) {
      const length = row.end[i] - row.start[i];
      if (length >= LABELLED * tile.bucket) continue;
      const begin = (row.start[i] - tile.begin) / tile.bucket;
      const first = Math.max(0, Math.round(begin));
      const last = Math.min(width, Math.max(first + 1, Math.round(begin + length / tile.bucket)));
      const colour = colours.pixel[row.code[i]];
      for (let y = 0; y < full; y++) {
        const line = (top + y) * width;
        pixels.fill(colour, line + first, line + last);
        // a seam, so that neighbours of one colour are told apart
        if (last - first >= 3) pixels[line + last - 1] = (colour & 0x00ffffff) | 0x90000000;
      }
    }
  }
  context.putImageData(image, 0, 0);
  return picture;
}
