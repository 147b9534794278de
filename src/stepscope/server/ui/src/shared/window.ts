/** The window of time that is shown. Pure arithmetic. */

/** Closer than this nothing can be seen: one nanosecond is then wider than the screen. */
const NARROWEST_NS = 50;

export class View {
  constructor(
    readonly first: number,
    readonly last: number,
    public begin = first,
    public end = last,
  ) {
    this.set(begin, end);
  }

  get span(): number {
    return this.end - this.begin;
  }

  set(begin: number, end: number): void {
    const whole = this.last - this.first;
    const margin = whole * 0.02;
    const span = Math.min(Math.max(end - begin, NARROWEST_NS), whole + 2 * margin);
    const middle = (begin + end) / 2;
    let low = middle - span / 2;
    low = Math.min(Math.max(low, this.first - margin), this.last + margin - span);
    this.begin = low;
    this.end = low + span;
  }

  fit(): void {
    const margin = (this.last - this.first) * 0.01;
    this.set(this.first - margin, this.last + margin);
  }

  /** Zooms so that what is at a share of the width stays there. */
  zoom(factor: number, at: number): void {
    const fixed = this.begin + this.span * at;
    const whole = (this.last - this.first) * 1.04;
    const span = Math.min(Math.max(this.span * factor, NARROWEST_NS), whole);
    this.set(fixed - span * at, fixed + span * (1 - at));
  }

  pan(share: number): void {
    const by = this.span * share;
    this.set(this.begin + by, this.end + by);
  }

  /** Shows a place with room around it. */
  frame(begin: number, end: number, room = 0.6): void {
    const around = Math.max((end - begin) * room, NARROWEST_NS);
    this.set(begin - around, end + around);
  }

  x(time: number, width: number): number {
    return ((time - this.begin) / this.span) * width;
  }

  time(x: number, width: number): number {
    return this.begin + (x / width) * this.span;
  }
}
