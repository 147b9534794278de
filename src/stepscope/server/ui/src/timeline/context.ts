/** What the parts of the timeline know of each other. */

import type { Layout } from "../data/contracts";
import type { Source } from "../data/types";
import type { Actions } from "../panels/explanation";
import type { View } from "../shared/window";
import type { Marks } from "./painter";
import type { TimelineView } from "./timeline_view";
import type { Tracks } from "./tracks";

export interface Timeline {
  readonly source: Source;
  readonly layout: Layout;
  readonly view: View;
  readonly tracks: Tracks;
  readonly timelineView: TimelineView;
  readonly marks: Marks;
  /** What the panels beside it may do. */
  readonly actions: Actions;
  /** Waits for an answer; null where there is none, which the page then message. */
  asking<T>(question: Promise<T>): Promise<T | null>;
  /** Something that is shown has changed: it is drawn in the next frame. */
  changed(): void;
  message(text: string): void;
}
