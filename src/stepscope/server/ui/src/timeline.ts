/** What the parts of the timeline know of each other. */

import type { Marks } from "./canvas";
import type { Actions } from "./panel";
import type { Stage } from "./stage";
import type { Tracks } from "./tracks";
import type { Layout, Source } from "./types";
import type { View } from "./view";

export interface Timeline {
  readonly source: Source;
  readonly layout: Layout;
  readonly view: View;
  readonly tracks: Tracks;
  readonly stage: Stage;
  readonly marks: Marks;
  /** What the panels beside it may do. */
  readonly actions: Actions;
  /** Waits for an answer; null where there is none, which the page then says. */
  asking<T>(question: Promise<T>): Promise<T | null>;
  /** Something that is shown has changed: it is drawn in the next frame. */
  changed(): void;
  says(text: string): void;
}
