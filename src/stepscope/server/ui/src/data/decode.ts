/** Arrays out of what the server, or the page itself, holds: base64, and the binary form of tiles. */

import type { Counter, TileHeader } from "./contracts";
import type { Row, TrackTile } from "./types";

const ARRAYS = { f8: Float64Array, f4: Float32Array, u4: Uint32Array, u1: Uint8Array };

export function bytesOf(text: string): Uint8Array<ArrayBuffer> {
  const raw = atob(text);
  const made = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) made[i] = raw.charCodeAt(i);
  return made;
}

export const doubles = (text: unknown): Float64Array => new Float64Array(bytesOf(text as string).buffer);

/** Reads the binary form that `timeline/tile.py` documents. */
export function decode(data: ArrayBuffer): {
  tiles: Map<number, TrackTile>;
  names: Record<string, string>;
} {
  const length = new DataView(data).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(data, 4, length))) as TileHeader;
  const tiles = new Map<number, TrackTile>();
  for (const [track, depths] of Object.entries(header.depths)) {
    const { begin, bucket, columns } = header;
    tiles.set(Number(track), { begin, bucket, columns, depths, rows: [], counter: null });
  }
  for (const { track, depth, arrays } of header.rows) {
    const made: Record<string, unknown> = { depth };
    for (const [name, [kind, at, count]] of Object.entries(arrays)) {
      made[name] = new ARRAYS[kind](data, 4 + length + at, count);
    }
    const tile = tiles.get(track)!;
    if ("limits" in made) tile.counter = made as unknown as Counter;
    else tile.rows.push(made as unknown as Row);
  }
  return { tiles, names: header.names };
}
