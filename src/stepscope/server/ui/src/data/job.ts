/** Where a job of digests comes from: the server. */

import type { DrawnClass, LegendEntry } from "../shared/colours";
import type { GridCells, JobDiagnosis, JobGrid, RankDetail } from "./contracts";
import { ask } from "./server";

export interface JobLayout {
  job: { paths: string[]; ranks: number };
  classes: DrawnClass[];
  legend: LegendEntry[];
  causes: Record<string, string>;
}

export interface JobAnswer {
  diagnosis: JobDiagnosis;
  grid: JobGrid;
  /** Positions of the ranks whose full capture is here. */
  here: number[];
}

export class ServerJob {
  diagnosis(): Promise<JobAnswer> {
    return this.json("jobdiagnosis", {});
  }

  cells(value: string): Promise<GridCells> {
    return this.json("jobcells", { value });
  }

  /** @param row position of the rank among those of the diagnosis */
  rank(row: number): Promise<RankDetail> {
    return this.json("jobrank", { row });
  }

  async progress(): Promise<string> {
    return (await this.json<{ doing: string }>("progress", {})).doing;
  }

  private async json<T>(what: string, query: Record<string, string | number>): Promise<T> {
    return (await ask(what, query)).json() as Promise<T>;
  }
}
