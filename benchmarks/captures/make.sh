#!/usr/bin/env bash
# Makes labelled captures on a machine with an NVIDIA GPU: every scenario of workloads.py untraced,
# under torch.profiler and, where nsys can write a report, under nsys.
# usage: make.sh OUTPUT_FOLDER [SCENARIO...]
set -u
out=$1; shift
here=$(dirname "$(realpath "$0")")
work=$(mktemp -d)
mkdir -p "$out/torch" "$out/nsys"
scenarios=("$@")
[ ${#scenarios[@]} -gt 0 ] || mapfile -t scenarios < <(python3 -c "
import sys; sys.path.insert(0, '$here')
import workloads; print('\n'.join(sorted(workloads.TRUTH)))")
nsys=${NSYS:-$(command -v nsys)}
annotate=0
for s in "${scenarios[@]}"; do
  annotate=$((1 - annotate))
  python3 "$here/workloads.py" "$s" | tee -a "$work/truth.jsonl"
  python3 "$here/workloads.py" "$s" --capture torch --annotate $annotate --out "$work/$s.json.gz" | tee -a "$work/truth.jsonl"
  [ -n "$nsys" ] && (cd "$work" && "$nsys" profile -t cuda,nvtx --sample=none --cpuctxsw=none \
      -c cudaProfilerApi --capture-range-end=stop -f true -o "$work/$s" \
      python3 "$here/workloads.py" "$s" --capture nsys --annotate $annotate) 2>"$work/nsys.err" | grep '^{' | tee -a "$work/truth.jsonl"
done
cp "$work"/*.json.gz "$out/torch/" 2>/dev/null
cp "$work"/*.nsys-rep "$work"/*.qdstrm "$out/nsys/" 2>/dev/null
cp "$work/truth.jsonl" "$out/truth.jsonl"
[ -f "$work/nsys.err" ] && tail -5 "$work/nsys.err"
ls -la "$out"/torch "$out"/nsys
rm -rf "$work"
