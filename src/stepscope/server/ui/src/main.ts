import "./app.css";

import { App } from "./app";
import { CompareApp } from "./compare";
import { learnColours } from "./colours";
import { element, fill } from "./dom";
import { clean } from "./format";
import { packedPage, PageSource } from "./page";
import { PagePair, ServerPair, type PackedPair, type PairLayout, type PairSource } from "./pairsource";
import { ServerSource } from "./server";
import type { Layout, Source } from "./types";

async function start(): Promise<void> {
  const root = document.getElementById("app")!;
  try {
    const packed = await packedPage();
    if (packed && "pair_steps" in packed) {
      const source: PairSource = new PagePair(packed as unknown as PackedPair);
      const layout = await source.layout();
      learnColours(layout);
      new CompareApp(root, source, layout);
      return;
    }
    const source: Source = packed ? new PageSource(packed) : new ServerSource();
    const layout = (await source.layout()) as Layout | PairLayout;
    learnColours(layout);
    // the same page shows a run, or two: what is behind it says which
    if ("pair" in layout) new CompareApp(root, new ServerPair(), layout);
    else new App(root, source, layout);
  } catch (error) {
    const says = error instanceof Error ? error.message : String(error);
    fill(root, element("p", { role: "alert" }, clean(says, 800)));
  }
}

void start();
