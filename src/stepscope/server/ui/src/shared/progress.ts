/** Says what a question waits for, and for how long it has. */

import { clean } from "./format";

/** Answers that come sooner need no words. */
const PATIENCE_MS = 400;
const EVERY_MS = 700;

/**
 * The answer to a question; until it is there, every now and then `message` what it waits for.
 *
 * @param progress what is being made, in words
 */
export async function waiting<T>(question: Promise<T>, progress: () => Promise<string>, message: (text: string) => void): Promise<T> {
  const since = performance.now();
  let over = false;
  let timer = 0;
  const tell = async (): Promise<void> => {
    const doing = await progress().catch(() => "");
    if (over) return;
    const seconds = Math.round((performance.now() - since) / 1000);
    message(`${clean(doing || "working", 200)} … ${seconds} s`);
    timer = window.setTimeout(() => void tell(), EVERY_MS);
  };
  timer = window.setTimeout(() => void tell(), PATIENCE_MS);
  try {
    return await question;
  } finally {
    over = true;
    clearTimeout(timer);
  }
}
