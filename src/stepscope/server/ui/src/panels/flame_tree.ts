/** The tree of a flame graph: where its nodes stand, which of them match a search. */

import type { FlameAnswer } from "../data/contracts";

/** A tree ready to draw: where each node begins, in the unit of the weights. */
export interface Laid {
  answer: FlameAnswer;
  depth: Int32Array;
  left: Float64Array;
  children: number[][];
  roots: number[];
  deepest: number;
}

/** Places nodes beneath their parents, the heaviest first. */
export function laid(answer: FlameAnswer): Laid {
  const { parent, total } = answer.nodes;
  const size = parent.length;
  const depth = new Int32Array(size);
  const left = new Float64Array(size);
  const children: number[][] = Array.from({ length: size }, () => []);
  const roots: number[] = [];
  let deepest = 0;
  for (let i = 0; i < size; i++) {
    if (parent[i] < 0) roots.push(i);
    else {
      children[parent[i]].push(i);
      depth[i] = depth[parent[i]] + 1;
      deepest = Math.max(deepest, depth[i]);
    }
  }
  const place = (nodes: number[], from: number): void => {
    nodes.sort((a, b) => total[b] - total[a] || a - b);
    for (const node of nodes) {
      left[node] = from;
      from += total[node];
    }
  };
  place(roots, 0);
  for (let i = 0; i < size; i++) place(children[i], left[i]);
  return { answer, depth, left, children, roots, deepest };
}

/** Weight under nodes whose name matches; what is nested in a match counts once. */
export function matching(tree: Laid, pattern: RegExp): { nodes: Set<number>; total: number } {
  const { answer } = tree;
  const hit = answer.names.map((name) => pattern.test(name));
  const nodes = new Set<number>();
  const inside = new Uint8Array(answer.nodes.parent.length);
  let total = 0;
  answer.nodes.name.forEach((name, i) => {
    const up = answer.nodes.parent[i];
    const above = up >= 0 && inside[up];
    if (hit[name]) nodes.add(i);
    if (hit[name] && !above) total += answer.nodes.total[i];
    inside[i] = hit[name] || above ? 1 : 0;
  });
  return { nodes, total };
}
