/** Keys: what they match, and what the help message of them. */

export interface Key {
  /** Physical key, or the character where the place on the keyboard does not matter. */
  match: (event: KeyboardEvent) => boolean;
  shows: string;
  message: string;
  run: (event: KeyboardEvent) => void;
}

/** Physical keys, without Ctrl, Alt and the like. */
export const code =
  (...codes: string[]) =>
  (event: KeyboardEvent): boolean =>
    codes.includes(event.code) && !event.ctrlKey && !event.metaKey && !event.altKey;
/** Characters, wherever they are on the keyboard. */
export const typed =
  (...characters: string[]) =>
  (event: KeyboardEvent): boolean =>
    characters.includes(event.key) && !event.ctrlKey && !event.metaKey && !event.altKey;
