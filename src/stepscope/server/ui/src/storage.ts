/** What the browser remembers of a person: a theme, nothing of a capture. */

export function remembered(key: string): string | null {
  try {
    return localStorage.getItem(`stepscope.${key}`);
  } catch {
    return null; // a page from disk may have no storage
  }
}

export function remember(key: string, value: string): void {
  try {
    localStorage.setItem(`stepscope.${key}`, value);
  } catch {
    // as above
  }
}
