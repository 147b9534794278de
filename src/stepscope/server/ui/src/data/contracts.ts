/** What the server answers: `python3 dev.py docs` makes it of the package's types. */

export interface Layout {
  classes: DrawnClass[];
  legend: LegendEntry[];
  causes: Record<string, string>;
  begin: number;
  end: number;
  members: RankInfo[];
  tracks: TrackInfo[];
  paths: string[];
  above: string;
  problems: ProblemNote[];
}

export interface DrawnClass {
  key: string;
  message: string;
  meaning: string;
  colour: string;
}

export interface LegendEntry {
  key: string;
  colour: string;
  message: string;
  section: string;
}

export interface RankInfo {
  rank: number;
  path: string;
  source: string;
  host: string;
  offset: number;
  missing: Missing[];
}

export interface Missing {
  table: string;
  reason: string;
  flag: string;
}

export interface TrackInfo {
  id: number;
  title: string;
  group: string;
  kind: "counter" | "slices";
  table: string;
  path: string;
  rank: number;
  thread: number;
  device: number;
  explained: boolean;
  unit: string;
}

export interface ProblemNote {
  stated: string;
  remedy: string;
}

export interface Diagnosed {
  diagnosis: Diagnosis;
  instances: Instance[][];
}

export interface Diagnosis {
  schema: string;
  trace: TraceSummary;
  step_ns: StepTime;
  accounting: DeviceAccounting[];
  verdict: string;
  findings: Finding[];
  warnings: string[];
  problems: Problem[];
  evidence: Evidence[];
  profiler_overhead: ProfilerOverhead | null;
  levers: Finding[];
  kernels: KernelSplit | null;
  ranks: RankTime[];
  outlier_steps: OutlierStep[];
  combined: Combined | null;
  gpu_utilization: number | null;
}

export interface TraceSummary {
  paths: string[];
  source: string;
  ranks: number;
  devices: number;
  steps: number;
  steady_steps: [number, number];
  step: StepSummary;
}

export interface StepSummary {
  kind: string;
  from: string;
  inner: InnerSteps[];
  coverage_gpu: number;
  coverage_time: number;
  options: StepOptions;
}

export interface InnerSteps {
  kind: string;
  count: number;
  median_ns: number;
}

export interface StepOptions {
  step: string;
  step_kernel: string;
}

export interface StepTime {
  median: number;
  mean: number;
  p95: number;
  coefficient_of_variation: number;
}

export interface DeviceAccounting {
  rank: number;
  device: number;
  wall_ns: number;
  compute_ns: number;
  exposed_communication_ns: number;
  exposed_copy_ns: number;
  memset_ns: number;
  idle_ns: number;
  idle_by_cause_ns: Record<string, number>;
  steps: number;
}

export interface Finding {
  cause: string;
  severity: "high" | "low" | "medium";
  share_of_step: number;
  time_ns_per_step: number;
  predicted_step_ns: number;
  prediction_low_ns: number;
  prediction_high_ns: number;
  ranks: number[];
  where: Location;
  message: string;
  recommendations: string[];
  next_capture: string | null;
  root_cause: string | null;
  replay_error: number | null;
  names: string[];
  evidence: Evidence[];
  inside: InsideKernel[];
  at_least: boolean;
  unreliable: string;
  unaffected_step_ns: number | null;
  gaps_end_at: string | null;
  further: FurtherRepair | null;
  includes_gain_of: Record<string, "all" | "some">;
  after_findings: boolean;
  reason: string;
}

export interface Location {
  range: string | null;
  operator: string | null;
  source: string | null;
  function: string | null;
}

export interface Evidence {
  figure: string;
  value: number;
  unit: string;
  sql: string;
  rows: number;
}

export interface InsideKernel {
  kernel: string;
  report: string;
  launch: number;
  same_grid: boolean;
  share: number;
  limiter: string;
  message: string;
  recommendations: string[];
}

export interface FurtherRepair {
  repair: string;
  predicted_step_ns: number;
  prediction_low_ns: number;
  prediction_high_ns: number;
  is_first: boolean;
}

export interface Problem {
  id: string;
  severity: "data_loss" | "error" | "info" | "notice";
  count: number;
  scope: string[];
  message: string;
  remedy: string;
  detail?: string;
}

export interface ProfilerOverhead {
  measured_ns: number;
  low_ns: number;
  high_ns: number;
  how: "estimated" | "unrecorded steps";
}

export interface KernelSplit {
  device: string;
  ceilings: string;
  measured: boolean;
  rank: number;
  categories: KernelCategory[];
  bound: StepBound | null;
  examine: string | null;
  evidence: Evidence[];
  vendor: "AMD" | "Intel" | "NVIDIA" | "unknown";
}

export interface KernelCategory {
  category: string;
  time_ns_per_step: number;
  share_of_step: number;
  achieved: number | null;
  known_share: number;
  bound: string;
}

export interface StepBound {
  bound_ns: number;
  speedup: number;
  fused_bound_ns: number;
  fused_speedup: number;
  known_share: number;
  assumed: string[];
}

export interface RankTime {
  rank: number;
  device: number;
  step_ns: number;
  compute_ns: number;
  waiting_ns: number;
  transfer_ns: number;
  copy_ns: number;
  idle_ns: number;
}

export interface OutlierStep {
  step: number;
  wall_ns: number;
  normal_step: number;
  normal_ns: number;
  part: string;
  name: string;
  excess_ns: number;
}

export interface Combined {
  causes: string[];
  predicted_step_ns: number;
  prediction_low_ns: number;
  prediction_high_ns: number;
  replayed: boolean;
}

export interface Instance {
  begin: number;
  end: number;
  cost: number;
  rank: number;
  what: string;
  tracks: number[];
  thread: number;
  responsible: Responsible[];
  waiting: Place[];
  number: number;
  of: number;
  typical: boolean;
}

export interface Responsible {
  track: number;
  row: number;
  depth: number;
  start: number;
  end: number;
  name: string;
  overlap: number;
}

export interface Place {
  track: number;
  row: number;
  depth: number;
  start: number;
  end: number;
  name: string;
}

export interface Progress {
  doing: string;
}

export interface Refusal {
  error: string;
}

export interface Packed {
  layout: Layout;
  tracks: Record<string, PackedSlices | PackedSamples>;
  names: Record<string, string>;
  steps: PackedSteps | null;
  steps_refused: string;
  diagnosed: Diagnosed | null;
  refused: string;
  panels: PackedPanels;
}

export interface PackedSlices {
  start: string;
  end: string;
  depth: string;
  name: string;
  code: string;
  facts: Record<string, PackedFact>;
}

export interface PackedFact {
  values?: string;
  texts?: Record<string, string>;
  codes?: string;
}

export interface PackedSamples {
  time: string;
  value: string;
}

export interface PackedSteps {
  titles: string[];
  devices: PackedDevice[];
}

export interface PackedDevice {
  figures: DeviceFigures;
  zero: Record<string, PackedZero>;
  start: string;
  length: string;
  step: string;
  codes: Record<string, string>;
  phases: boolean;
}

export interface DeviceFigures {
  rank: number;
  device: number;
  found: string;
  message: string;
  set_aside: string;
  first: number;
  last: number;
  count: number;
  median: number;
  outliers: Outlier[];
  ranges: string[];
  missing: number;
  begin: string;
  end: string;
  zero: string;
  columns: Record<string, string>;
}

export interface Outlier {
  step: number;
  normal: number;
  excess_ns: number;
  message: string;
}

export interface PackedZero {
  at: string;
  missing: number;
}

export interface PackedPanels {
  tables: PackedTables | null;
  flames: Record<string, FlameAnswer>;
  links: string;
  notes: NotesAnswer;
}

export interface PackedTables {
  start: string;
  ns: string;
  steady: string;
  track: string;
  row: string;
  depth: string;
  kernel: string;
  kernels: Record<string, string>;
  groups: Record<string, PackedGroups>;
  bounds: number[][];
  steps: [number, number][];
}

export interface PackedGroups {
  keys: string[];
  names: Record<string, string[]>;
  code: string;
}

export interface FlameAnswer {
  total: number;
  left_out: number;
  names: string[];
  nodes: FlameNodes;
  unit: string;
  kinds: string[];
  kind: string;
}

export interface FlameNodes {
  parent: number[];
  name: number[];
  total: number[];
  own: number[];
  count: number[];
}

export interface NotesAnswer {
  revision: number;
  path: string;
  notes: Note[];
}

export interface Note {
  id: string;
  revision: number;
  begin: number;
  end: number;
  text: string;
}

export interface JobLayout {
  classes: DrawnClass[];
  legend: LegendEntry[];
  causes: Record<string, string>;
  job: NamedJob;
}

export interface NamedJob {
  paths: string[];
  ranks: number;
}

export interface JobAnswer {
  diagnosis: JobDiagnosis;
  grid: JobGrid;
  here: number[];
}

export interface JobDiagnosis {
  schema: string;
  job: JobSummary;
  step_ns: JobStepTime;
  verdict: string;
  findings: JobFinding[];
  all_repaired_step_ns: number;
  roles: Role[];
  communicators: Communicator[];
  ranks: RankRow[];
  outliers: number[];
  fetch: Fetch[];
  stuck: Stuck[];
  warnings: string[];
  collective_logs: CollectiveLogs | null;
}

export interface JobSummary {
  digests: number;
  ranks: number;
  world_size: number | null;
  missing_ranks: number[];
  nodes: number;
  steps: number;
  step_kind: string;
  skipped: Skipped[];
}

export interface Skipped {
  path: string;
  reason: string;
}

export interface JobStepTime {
  median: number;
  mean: number;
  p95: number;
}

export interface JobFinding {
  cause: string;
  reason: "" | "extra_work" | "late_input" | "mixed" | "slow_copies" | "slow_gpu" | "slow_host" | "slow_link";
  root_cause: string | null;
  ranks: number[];
  place: string;
  communicators: string[];
  time_ns_per_step: number;
  share_of_step: number;
  predicted_step_ns: number;
  prediction_low_ns: number;
  prediction_high_ns: number;
  score: number | null;
  threshold: number | null;
  where: string;
  message: string;
  recommendations: string[];
  evidence: Record<string, number>;
}

export interface Role {
  role: number;
  ranks: number;
  example: number;
  device_name: string;
  kernels: number;
  need_ns: number;
  p95_ns: number;
  most_ns: number;
}

export interface Communicator {
  name: string;
  members: number;
  size: number;
  use: string;
  operations: number;
  transfer_ns: number;
  skew_ns: number;
  last_rank: number;
  last_share: number;
  score: number | null;
}

export interface RankRow {
  rank: number;
  hostname: string;
  device: number;
  role: number;
  need_ns: number;
  compute_ns: number;
  waiting_ns: number;
  transfer_ns: number;
  idle_ns: number;
  host_need_ns: number;
  kernel_rate: number;
  joined_last: number;
  sm_clock_mhz: number | null;
  score: number | null;
  late: boolean;
  capture: string;
}

export interface Fetch {
  rank: number;
  capture: string;
  hostname: string;
  why: string;
  step: number;
}

export interface Stuck {
  group: string;
  sequence: number;
  name: string;
  arrived: number[];
  never_arrived: number[];
  not_recorded: number[];
  since_ns: number;
  where: string;
  message: string;
}

export interface CollectiveLogs {
  logs: number;
  processes: number;
  communicators: number;
  operations: number;
  findings: LogFinding[];
  rows: LoggedRow[];
  cannot_tell: string[];
}

export interface LogFinding {
  kind: "ends_late" | "late_node" | "late_rank" | "slow_communicator" | "slow_pair";
  ranks: number[];
  members: string[];
  node: string;
  communicators: string[];
  operation: string;
  looked_at: number;
  showing: number;
  excess_ns: number;
  share: number;
  score: number | null;
  threshold: number | null;
  message: string;
  recommendations: string[];
}

export interface LoggedRow {
  communicator: string;
  name: string;
  ranks: number;
  size: number;
  nodes: number;
  operation: string;
  bytes: number;
  matched: number;
  transfer_ns: number;
  waiting_ns: number;
  bus_gbs: number | null;
  bus_low_gbs: number | null;
  bus_high_gbs: number | null;
  last: string;
  last_share: number;
}

export interface JobGrid {
  steps: number[];
  values: GridValue[];
}

export interface GridValue {
  key: string;
  title: string;
  message: string;
  signed: boolean;
}

export interface GridCells {
  value: string;
  cells: number[][];
}

export interface RankDetail {
  rank: number;
  device: number;
  device_name: string;
  hostname: string;
  peers: number;
  score: number | null;
  threshold: number | null;
  verdict: string;
  parts: RankPart[];
  wall_ns: number[];
  peers_wall_ns: number | null;
  deviations: Deviation[];
  kernels: SlowKernel[];
  findings: OwnFinding[];
  phases: NamedTime[];
  waits: NamedTime[];
  evidence: Pointer[];
  steps: RankStep[];
  capture: RankCapture;
}

export interface RankPart {
  part: string;
  cause: string;
  mean_ns: number;
  peers_ns: number | null;
  steps_ns: number[];
}

export interface Deviation {
  figure: string;
  unit: string;
  value: number;
  peers: number;
  low: number;
  high: number;
  outside: boolean;
}

export interface SlowKernel {
  name: string;
  category: string;
  per_step: number;
  median_ns: number;
  peers_ns: number;
  more_ns: number;
}

export interface OwnFinding {
  cause: string;
  message: string;
  time_ns: number;
  predicted_ns: number | null;
  of_program: boolean;
  advice: string;
}

export interface NamedTime {
  name: string;
  host_ns: number;
  gpu_ns: number | null;
  per_step: number | null;
}

export interface Pointer {
  what: string;
  step: number;
  start_ns: number;
  end_ns: number;
  sql: string;
}

export interface RankStep {
  number: number;
  begin_ns: number;
  end_ns: number;
}

export interface RankCapture {
  path: string;
  hostname: string;
  timeline: string;
  command: string;
}

export interface PairLayout {
  classes: DrawnClass[];
  legend: LegendEntry[];
  causes: Record<string, string>;
  pair: Record<"after" | "before", string[]>;
}

export interface Compared {
  comparison: Comparison;
  facts: string[];
  notes: string[];
  devices: Record<"after" | "before", PairDevice[]>;
}

export interface Comparison {
  schema: string;
  verdict: "faster" | "no_difference" | "not_comparable" | "slower";
  message: string;
  before: string[][];
  after: string[][];
  step: StepDifference;
  causes: CauseMoved[];
  parts: PartDifference[];
  kernels: KernelDifference[];
  kernel_floor: number;
  kernel_shift: number;
  ranges: PlaceDifference[];
  operators: PlaceDifference[];
  collectives: CollectiveDifference[];
  findings: FindingDifference[];
  predictions: PredictionCheck[];
  setup: SetupDifference[];
  warnings: string[];
  not_recorded: NotRecorded[];
}

export interface StepDifference {
  before_ns: number;
  after_ns: number;
  difference_ns: number;
  low_ns: number;
  high_ns: number;
  ratio: number;
  ratio_low: number;
  ratio_high: number;
  p_value: number;
  run_noise: number;
  run_noise_measured: boolean;
  before_steps: number[];
  after_steps: number[];
}

export interface CauseMoved {
  name: string;
  difference_ns: number;
}

export interface PartDifference {
  part: string;
  before_ns: number;
  after_ns: number;
  difference_ns: number;
  error_ns: number;
}

export interface KernelDifference {
  relation: string;
  before: string[];
  after: string[];
  category: string;
  range: string | null;
  operator: string | null;
  calls_before: number;
  calls_after: number;
  before_ns: number;
  after_ns: number;
  difference_ns: number;
  each_ratio: number | null;
  changed: boolean;
}

export interface PlaceDifference {
  name: string;
  host_before_ns: number | null;
  host_after_ns: number | null;
  device_before_ns: number | null;
  device_after_ns: number | null;
}

export interface CollectiveDifference {
  kind: string;
  group_size: number;
  count_before: number;
  count_after: number;
  bytes_before: number | null;
  bytes_after: number | null;
  waiting_before_ns: number;
  waiting_after_ns: number;
  transfer_before_ns: number;
  transfer_after_ns: number;
  exposed_before_ns: number;
  exposed_after_ns: number;
}

export interface FindingDifference {
  cause: string;
  fate: "gone" | "larger" | "new" | "smaller" | "unchanged";
  before_ns: number | null;
  after_ns: number | null;
  message: string;
  idle_before_ns: number | null;
  idle_after_ns: number | null;
}

export interface PredictionCheck {
  cause: string;
  predicted_ns: number;
  low_ns: number;
  high_ns: number;
  measured_ns: number;
  came_true: boolean | null;
  message: string;
}

export interface SetupDifference {
  name: string;
  before: string;
  after: string;
  weight: "confounds" | "note";
  message: string;
  sure: boolean;
}

export interface NotRecorded {
  what: "operators" | "ranges";
  side: "after" | "before";
  names: number;
  message: string;
}

export interface PairDevice {
  title: string;
  count: number;
  first: number;
  last: number;
  median: number;
  lengths: number[];
}

export interface PackedPair {
  layout: PairLayout;
  comparison: Compared;
  pair_steps: Record<string, StepPicture>;
}

export interface StepPicture {
  step: number;
  begin: number;
  length: number;
  first_kernel: number;
  counted: boolean;
  left_out: number;
  streams: number[];
  names: string[];
  range_sets: number[][];
  pieces: PackedPieces;
  spans: PackedSpans;
  operations: PackedOperations;
}

export interface PackedPieces {
  start: string;
  end: string;
  code: string;
}

export interface PackedSpans {
  start: string;
  end: string;
  row: string;
}

export interface PackedOperations {
  start: string;
  end: string;
  code: string;
  stream: string;
  name: string;
  kernel: string;
  range: string;
  operator: string;
}

export interface Memory {
  schema: string;
  paths: string[];
  devices: DeviceMemory[];
  prediction: Prediction[];
}

export interface DeviceMemory {
  rank: number;
  device: number;
  of_driver: boolean;
  events: number;
  peak: Moment;
  moment: Moment;
  holders: Holder[];
  timeline: Timeline;
  steps: StepMemory[];
  growth: Growth | null;
  fragmentation: Fragmentation | null;
  out_of_memory: OutOfMemory[];
  warnings: string[];
}

export interface Moment {
  what: string;
  time_ns: number | null;
  allocated_bytes: number;
  reserved_bytes: number | null;
  by_category_bytes: Record<string, number>;
  step: number | null;
}

export interface Holder {
  category: string;
  operator: string;
  module: string;
  line: string;
  bytes: number;
  blocks: number;
  largest_bytes: number;
}

export interface Timeline {
  time_ns: number[];
  allocated_bytes: number[];
  reserved_bytes: number[];
  by_category_bytes: Record<string, number[]>;
}

export interface StepMemory {
  step: number;
  begin_ns: number;
  begin_bytes: number;
  peak_bytes: number;
  end_bytes: number;
  kept_bytes: number;
}

export interface Growth {
  bytes_per_step: number;
  p_value: number;
  grows: boolean;
  message: string;
  holders: Holder[];
}

export interface Fragmentation {
  reserved_bytes: number | null;
  allocated_bytes: number;
  largest_free_bytes: number | null;
  inactive_split_bytes: number | null;
  free_segment_bytes: number | null;
  rounding_bytes: number | null;
  most_unused_bytes: number | null;
}

export interface OutOfMemory {
  time_ns: number;
  requested_bytes: number;
  device_free_bytes: number | null;
  allocated_bytes: number;
  reserved_bytes: number;
  missing_bytes: number;
  message: string;
  line: string;
}

export interface Prediction {
  change: string;
  peak_bytes: number;
  low_bytes: number;
  high_bytes: number;
  limit_bytes: number | null;
  fits: boolean | null;
  assumptions: string[];
}

export interface GuideBook {
  goals: GoalName[];
  answers: Record<string, Guidance>;
}

export interface GoalName {
  id: string;
  title: string;
}

export interface Guidance {
  schema: string;
  goal: string;
  title: string;
  meaning: string;
  here: string;
  routes: Route[];
  method: string[];
  see: string[];
}

export interface Route {
  tool: string;
  title: string;
  when: string;
  ready: boolean;
  missing: string[];
  answered: boolean | null;
  lacks: string[];
  record: string[];
  read: string[];
  look_for: string;
  overhead: string;
  source: string;
  next: string;
}

export interface Classes {
  classes: DrawnClass[];
  legend: LegendEntry[];
  causes: Record<string, string>;
}

export interface TileHeader {
  begin: number;
  bucket: number;
  columns: number;
  depths: Record<string, number>;
  rows: TileRow[];
  names: Record<string, string>;
}

export interface TileRow {
  track: number;
  depth: number;
  arrays: Record<string, ["f4" | "f8" | "u1" | "u4", number, number]>;
}

export interface Details {
  track: number;
  row: number;
  depth: number;
  start: number;
  end: number;
  name: string;
  class: string;
  table: string;
  facts: ([string, string | number | boolean])[];
  same: SameName;
  arrows: Links;
  links: Links[];
}

export interface SameName {
  count: number;
  number: number;
  total: number;
}

export interface Links {
  message: string;
  forward: boolean;
  ends: Place[];
  more: number;
}

export interface Hits {
  total: number;
  hits: Place[];
  names: NamedRows[];
}

export interface NamedRows {
  name: string;
  count: number;
  total: number;
  track: number;
  row: number;
}

export interface Statistics {
  begin: number;
  end: number;
  devices: DeviceStatistics[];
  threads: ThreadStatistics[];
}

export interface DeviceStatistics {
  title: string;
  busy: Record<string, number>;
  idle: number;
  idle_by_cause: Record<string, number>;
  categories: Record<string, number>;
  kernels: NamedRows[];
}

export interface ThreadStatistics {
  title: string;
  calls: number;
  kinds: Record<string, number>;
}

export interface TableAnswer {
  by: string;
  begin: number;
  end: number;
  wall_ns: number;
  steps: number;
  keys: string[];
  left_out: number;
  columns: TableColumns;
}

export interface TableColumns {
  group: number[];
  names: string[][];
  count: number[];
  total_ns: number[];
  mean_ns: number[];
  median_ns: number[];
  p95_ns: number[];
  share: number[];
  longest_kernel: string[];
}

export interface Instances {
  total: number;
  start: number[];
  end: number[];
  track: number[];
  row: number[];
  depth: number[];
}

export interface Change {
  id: string;
  revision: number;
  begin: number;
  end: number;
  text: string;
  deleted: boolean;
}

export interface StepsAnswer {
  rank: number;
  device: number;
  found: string;
  message: string;
  set_aside: string;
  first: number;
  last: number;
  count: number;
  median: number;
  outliers: Outlier[];
  ranges: string[];
  missing: number;
  begin: string;
  end: string;
  zero: string;
  columns: Record<string, string>;
  titles: string[];
  number: number;
}

export interface GridHeader {
  rows: number;
  columns: number;
  group: number;
  begin: number;
  bucket: number;
  arrays: ("busy" | "busy_code" | "idle" | "idle_code" | "phase")[];
}

export interface RowArrays {
  start: Float64Array;
  end: Float64Array;
  row: Uint32Array;
  name: Uint32Array;
  code: Uint8Array;
  column: Uint32Array;
  share: Float32Array;
  dominant: Uint8Array;
  count: Uint32Array;
}

export interface Counter {
  column: Uint32Array;
  low: Float32Array;
  high: Float32Array;
  last: Float32Array;
  before: Float32Array;
  limits: Float32Array;
}

/** What GPU time is grouped by: what a group is, its keys in `kernel_category`. */
export const GROUPINGS: Record<string, { title: string; select: string }> = {
  kernel: { title: "kernel", select: "kernel, category, math" },
  operator: { title: "outermost operator", select: "coalesce(outer_operator, operator) AS operator, phase" },
  inner: { title: "innermost operator", select: "operator, phase" },
  range: { title: "innermost range", select: "range, phase" },
  module: { title: "module", select: "module, phase" },
  source: { title: "source line", select: "source, phase" },
  category: { title: "category", select: "category, phase" },
};
