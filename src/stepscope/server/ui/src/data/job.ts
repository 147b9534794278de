/** Where a job of digests comes from: the server. */

import type { GridCells, JobAnswer, Progress, RankDetail } from "./contracts";
import { ask } from "./server";

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
    return (await this.json<Progress>("progress", {})).doing;
  }

  private async json<T>(what: string, query: Record<string, string | number>): Promise<T> {
    return (await ask(what, query)).json() as Promise<T>;
  }
}
