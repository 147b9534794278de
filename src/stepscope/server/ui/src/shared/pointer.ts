/** What every chart does with pointer and wheel: drags, zooming at the pointer, the tip beside it. */

import type { View } from "./window";

/** Farther than this a press is a drag. */
export const CLICK_PX = 4;
const TIP_PX = 14;

/** Zooms at a share of the width, as far as the wheel has turned. */
export function wheelZoom(view: View, event: WheelEvent, at: number): void {
  view.zoom(Math.exp(event.deltaY * 0.0022), at);
}

/** Follows a pointer that is pressed on an element until it is let go or taken away. */
export function follow(event: PointerEvent, moved: (event: PointerEvent) => void, ended: (event: PointerEvent) => void): void {
  const held = event.currentTarget as HTMLElement;
  held.setPointerCapture(event.pointerId);
  const stop = (last: PointerEvent): void => {
    held.removeEventListener("pointermove", moved);
    held.removeEventListener("pointerup", stop);
    held.removeEventListener("pointercancel", stop);
    ended(last);
  };
  held.addEventListener("pointermove", moved);
  held.addEventListener("pointerup", stop);
  held.addEventListener("pointercancel", stop);
}

/** Shows a text beside the pointer, on the side where there is room; nothing while a button is down. */
export function showTip(tip: HTMLElement, stage: HTMLElement, event: PointerEvent, text: string): void {
  tip.hidden = !text || event.buttons !== 0;
  tip.textContent = text;
  const box = stage.getBoundingClientRect();
  const [x, y] = [event.clientX - box.left, event.clientY - box.top];
  const right = x > box.width / 2;
  tip.style.left = right ? "auto" : `${x + TIP_PX}px`;
  tip.style.right = right ? `${box.width - x + TIP_PX}px` : "auto";
  tip.style.top = `${Math.min(y + 16, box.height - 30)}px`;
}

/** A chart whose only direction is time: a drag moves it, Ctrl and the wheel zoom. */
export interface Chart {
  canvas: HTMLCanvasElement;
  /** Pixels from the left edge of the canvas to the chart. */
  left: number;
  width(): number;
  view(): View;
  ready(): boolean;
  changed(): void;
  clicked(event: PointerEvent): void;
}

export class ChartPointer {
  /** Where the pointer was last, as a share of the chart's width. */
  share = 0.5;

  constructor(private readonly chart: Chart) {
    chart.canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    chart.canvas.addEventListener("pointerdown", (event) => this.press(event));
  }

  /** Pixels from the begin of the chart. */
  at(event: MouseEvent): number {
    const x = event.clientX - this.chart.canvas.getBoundingClientRect().left - this.chart.left;
    this.share = Math.min(1, Math.max(0, x / this.chart.width()));
    return x;
  }

  private wheel(event: WheelEvent): void {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    this.at(event);
    wheelZoom(this.chart.view(), event, this.share);
    this.chart.changed();
  }

  private press(event: PointerEvent): void {
    const { chart } = this;
    if (event.button !== 0 || !chart.ready()) return;
    const from = this.at(event);
    const { begin, end } = chart.view();
    let moved = false;
    follow(
      event,
      (next) => {
        moved ||= Math.abs(next.clientX - event.clientX) > CLICK_PX;
        if (!moved) return;
        const by = ((this.at(next) - from) / chart.width()) * (end - begin);
        chart.view().set(begin - by, end - by);
        chart.changed();
      },
      (last) => {
        chart.canvas.focus({ preventScroll: true });
        if (!moved && last.type === "pointerup") chart.clicked(last);
      },
    );
  }
}
