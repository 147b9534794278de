/** The page of a job of digests. Its style sheet is that of the other pages. */

import type { JobLayout } from "./data/contracts";
import { ask } from "./data/server";
import { JobApp } from "./job/job_view";
import { learnColours } from "./shared/colours";
import { element, fill } from "./shared/dom";
import { clean } from "./shared/format";
import { wrong } from "./shared/frame";

async function start(): Promise<void> {
  const root = document.getElementById("app")!;
  try {
    const layout = (await (await ask("layout", {})).json()) as JobLayout;
    learnColours(layout);
    new JobApp(root, layout);
  } catch (error) {
    fill(root, element("p", { role: "alert" }, clean(wrong(error), 800)));
  }
}

void start();
