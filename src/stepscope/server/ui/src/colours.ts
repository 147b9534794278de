/**
 * Colours of classes. Hues are those of Okabe and Ito and of Paul Tol's muted scheme, which people
 * with the common kinds of colour blindness can tell apart; families that mean alike differ in
 * lightness only. Labels and the legend always say the class in words too.
 */

const BY_KEY: Record<string, string> = {
  kernel_matmul: "#0072b2",
  kernel_convolution: "#004f80",
  kernel_attention: "#56b4e9",
  kernel_elementwise: "#e69f00",
  kernel_copy: "#f0c94b",
  kernel_compiled: "#c7861f",
  kernel_dropout: "#f3d58a",
  kernel_random: "#f3d58a",
  kernel_reduction: "#009e73",
  kernel_softmax: "#44c29f",
  kernel_normalisation: "#007a59",
  kernel_pooling: "#44c29f",
  kernel_loss: "#44c29f",
  kernel_optimizer: "#d55e00",
  kernel_index: "#999933",
  kernel_sort: "#b5b56a",
  kernel_recurrent: "#332288",
  kernel_communication: "#cc79a7",
  kernel_graph: "#6f63b5",
  kernel_other: "#8a8f98",
  copy_htod: "#117733",
  copy_dtoh: "#882255",
  copy_dtod: "#44aa99",
  copy_ptop: "#aa4499",
  copy_other: "#777777",
  memset: "#b0b4bb",
  busy_compute: "#0072b2",
  busy_communication: "#cc79a7",
  busy_copy: "#117733",
  busy_memset: "#b0b4bb",
  idle_input_starvation: "#d55e00",
  idle_host_sync: "#cc79a7",
  idle_host_compute: "#e69f00",
  idle_launch_bound: "#f0e442",
  idle_blocking_copy: "#0072b2",
  idle_allocator_churn: "#56b4e9",
  idle_compilation_or_warmup: "#882255",
  idle_checkpoint_stall: "#6f63b5",
  idle_cpu_offload: "#8a5fa8",
  idle_gil_contention: "#aa4499",
  idle_profiler_overhead: "#999933",
  idle_small_kernels: "#9aa0a8",
  idle_unexplained: "#5d626a",
  idle_straggler: "#cc79a7",
  idle_load_imbalance: "#cc79a7",
  idle_exposed_communication: "#cc79a7",
  idle_unfused_attention: "#56b4e9",
  idle_unfused_optimizer: "#d55e00",
  idle_low_precision_unused: "#0072b2",
  idle_fusion_opportunity: "#e69f00",
  api_launch: "#56b4e9",
  api_sync: "#cc79a7",
  api_copy: "#117733",
  api_allocation: "#e69f00",
  api_module: "#882255",
  api_other: "#9aa0a8",
  os_wait: "#ddcc77",
  os_other: "#9aa0a8",
  step_steady: "#7fa8c9",
  step_aside: "#8a8f98",
  lock_holding: "#009e73",
  lock_waiting: "#d55e00",
  overhead: "#999933",
  phase_forward: "#56b4e9",
  phase_backward: "#0072b2",
  phase_optimizer: "#d55e00",
  phase_none: "#b0b4bb",
  state_running: "#009e73",
  state_runnable: "#d55e00",
  state_sleeping: "#c3c8cf",
  state_disk: "#882255",
  state_stopped: "#5d626a",
};
const NAMED = [
  "#7fa8c9",
  "#c9a27f",
  "#8fbf9f",
  "#c08fb5",
  "#b5b56a",
  "#7fbfc4",
  "#b59acb",
  "#cf9a9a",
];

export class Colours {
  readonly css: string[];
  /** For pixels: 0xAABBGGRR. */
  readonly pixel: Uint32Array;
  readonly text: string[];
  readonly says: string[];

  constructor(readonly classes: { key: string; says: string }[]) {
    this.css = classes.map(({ key }) => colourOf(key));
    this.says = classes.map(({ key, says }) =>
      key.startsWith("kernel_") ? `${key.slice(7)}: ${says}` : says.replaceAll("_", " "),
    );
    this.pixel = new Uint32Array(
      this.css.map((c) => {
        const [r, g, b] = channels(c);
        return (0xff000000 | (b << 16) | (g << 8) | r) >>> 0;
      }),
    );
    this.text = this.css.map((c) => {
      const [r, g, b] = channels(c);
      return 0.299 * r + 0.587 * g + 0.114 * b > 125 ? "#10141a" : "#ffffff";
    });
  }
}

export function colourOf(key: string): string {
  const known = BY_KEY[key];
  if (known !== undefined) return known;
  const hue = /^name_(\d+)$/.exec(key);
  return hue ? NAMED[Number(hue[1]) % NAMED.length] : "#8a8f98";
}

function channels(css: string): [number, number, number] {
  const value = parseInt(css.slice(1), 16);
  return [value >> 16, (value >> 8) & 255, value & 255];
}
