/** Dark or light: what the person chose, else what the system message. */

/** Colours of the page for what is drawn, from its style sheet. */
export interface Theme {
  back: string;
  band: string;
  line: string;
  text: string;
  faint: string;
  strong: string;
}

export function themeNow(): Theme {
  const style = getComputedStyle(document.documentElement);
  const of = (name: string): string => style.getPropertyValue(name).trim();
  return {
    back: of("--back"),
    band: of("--band"),
    line: of("--line"),
    text: of("--text"),
    faint: of("--faint"),
    strong: of("--strong"),
  };
}

/** Before anything is drawn. */
export function startTheme(): void {
  const theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  document.documentElement.dataset.theme = remembered("theme") ?? theme;
}

export function toggleTheme(): Theme {
  const root = document.documentElement;
  root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
  remember("theme", root.dataset.theme);
  return themeNow();
}

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
