import "./app.css";

import { App } from "./app";
import { element, fill } from "./dom";
import { clean } from "./format";
import { pageSource } from "./page";
import { ServerSource } from "./server";
import type { Source } from "./types";

async function start(): Promise<void> {
  const root = document.getElementById("app")!;
  try {
    const source: Source = (await pageSource()) ?? new ServerSource();
    const layout = await source.layout();
    new App(root, source, layout);
  } catch (error) {
    const says = error instanceof Error ? error.message : String(error);
    fill(root, element("p", { role: "alert" }, clean(says, 800)));
  }
}

void start();
