import "./app.css";

import { App } from "./app";
import { element, fill } from "./dom";
import { clean } from "./format";
import { ServerSource } from "./server";
import type { Source } from "./types";

declare global {
  interface Window {
    stepscope?: App;
  }
}

async function start(): Promise<void> {
  const root = document.getElementById("app")!;
  const source: Source = new ServerSource();
  try {
    const layout = await source.layout();
    window.stepscope = new App(root, source, layout);
  } catch (error) {
    const says = error instanceof Error ? error.message : String(error);
    fill(root, element("p", { role: "alert" }, clean(says, 800)));
  }
}

void start();
