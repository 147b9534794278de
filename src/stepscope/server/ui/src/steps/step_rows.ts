/** The canvas of the steps and what scrolls it: how many steps stand in a row, and where a row is. */

import { AXIS_PX } from "../shared/canvas";
import { element } from "../shared/dom";
import { MOST_ROW_PX } from "./address";
import { LEFT_PX, RIGHT_PX } from "./painter";

/** Steps in a row, and pixels of a row. */
export interface Rows {
  group: number;
  rowPx: number;
}

export class StepRows {
  readonly canvas = element("canvas", {
    class: "steprows",
    tabindex: 0,
    role: "application",
    "aria-label":
      "Steps side by side. Up and down choose a step, Enter opens it in the timeline, W and S zoom, question mark shows all keys.",
  });
  private readonly spacer = element("div", {});
  private readonly scroller = element("div", { class: "scroll" }, this.canvas, this.spacer);
  readonly tip = element("div", { class: "tip", hidden: true });
  readonly root = element("div", { class: "stage" }, this.scroller, this.tip);

  constructor(changed: () => void) {
    new ResizeObserver(changed).observe(this.root);
    this.scroller.addEventListener("scroll", changed);
  }

  /** Of the canvas: the scroll bar stands beside it. */
  get width(): number {
    return this.root.clientWidth - (this.scroller.offsetWidth - this.scroller.clientWidth);
  }

  get height(): number {
    return this.root.clientHeight;
  }

  /** Pixels between the numbers of the steps and their lengths. */
  get chart(): number {
    return Math.max(50, this.width - LEFT_PX - RIGHT_PX);
  }

  get scroll(): number {
    return this.scroller.scrollTop;
  }

  /** Pixels a step where all of them fit. */
  fits(count: number): number {
    return (this.height - AXIS_PX - 2) / Math.max(1, count);
  }

  /** @param stepPx pixels a step; 0 for as many as fit */
  rows(count: number, stepPx: number): Rows {
    const fits = Math.max(1 / Math.max(1, count), this.fits(count));
    const px = Math.min(MOST_ROW_PX, stepPx ? Math.max(stepPx, Math.min(fits, MOST_ROW_PX)) : fits);
    return px < 1 ? { group: Math.ceil(1 / px), rowPx: 1 } : { group: 1, rowPx: Math.floor(px) };
  }

  /** Makes the scroll bar as long as all rows are high. */
  stretch(count: number, { group, rowPx }: Rows): void {
    this.spacer.style.height = `${Math.max(0, Math.ceil(count / group) * rowPx + AXIS_PX - this.height)}px`;
  }

  reveal(row: number, rowPx: number): void {
    const y = row * rowPx;
    const room = this.height - AXIS_PX;
    if (y < this.scroller.scrollTop) this.scroller.scrollTop = y;
    else if (y + rowPx > this.scroller.scrollTop + room) this.scroller.scrollTop = y + rowPx - room;
  }

  /** Row under the pointer, whether or not there is one; -1 on the axis. */
  row(event: MouseEvent, rowPx: number): number {
    const y = event.clientY - this.root.getBoundingClientRect().top - AXIS_PX;
    return y < 0 ? -1 : Math.floor((y + this.scroller.scrollTop) / rowPx);
  }
}
