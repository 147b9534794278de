import "./shared/app.css";

import { App } from "./app";
import { CompareApp } from "./compare/compare_view";
import type { Layout, PairLayout } from "./data/contracts";
import { StaticPair, ServerPair, type PairSource } from "./data/comparison";
import { ServerSource } from "./data/server";
import { packedPage, StaticSource } from "./data/static";
import type { Source } from "./data/types";
import { learnColours } from "./shared/colours";
import { element, fill } from "./shared/dom";
import { clean } from "./shared/format";
import { waiting } from "./shared/progress";

async function start(): Promise<void> {
  const root = document.getElementById("app")!;
  try {
    const packed = await packedPage();
    if (packed && "pair_steps" in packed) {
      const source: PairSource = new StaticPair(packed);
      const layout = await source.layout();
      learnColours(layout);
      new CompareApp(root, source, layout);
      return;
    }
    const source: Source = packed ? new StaticSource(packed) : new ServerSource();
    // of a rank's page the capture is opened first, which may take long
    const asked = source.layout() as Promise<Layout | PairLayout>;
    const layout = await waiting(asked, () => Promise.resolve("opening the capture"), (text) => fill(root, element("p", { class: "note opening", role: "status" }, text)));
    learnColours(layout);
    // the same page shows a run, or two: what is behind it tells which
    if ("pair" in layout) new CompareApp(root, new ServerPair(), layout);
    else new App(root, source, layout);
  } catch (error) {
    const message = error instanceof Error ? error.message : String(error);
    fill(root, element("p", { role: "alert" }, clean(message, 800)));
  }
}

void start();
