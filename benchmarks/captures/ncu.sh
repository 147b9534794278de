#!/usr/bin/env bash
# Profiles the kernels of ncu_kernels.py with Nsight Compute on a machine with an NVIDIA GPU, prints
# every report's pages as ncu itself shows them, and packs all into parts of at most 15 MB.
# usage: ncu.sh OUTPUT_FOLDER
# unpack: cat OUTPUT_FOLDER/ncu.tar.xz.* | tar xJ
set -u
out=$(realpath -m "$1")
here=$(dirname "$(realpath "$0")")
work=$(mktemp -d)
ncu=${NCU:-$(command -v ncu || ls -d /usr/local/cuda*/bin/ncu /opt/nvidia/nsight-compute/*/ncu 2>/dev/null | tail -1)}
mkdir -p "$out"
[ -n "$ncu" ] || { echo "no ncu found; set NCU" >&2; exit 1; }
"$ncu" --version | tail -2

profile() {  # NAME GROUP AFTER OPTIONS...
  local name=$1 group=$2 after=$3; shift 3
  local start=$SECONDS
  timeout 100 "$ncu" --profile-from-start off -f -o "$work/$name" "$@" \
    python3 "$here/ncu_kernels.py" "$group" $after > "$work/$name.log" 2>&1
  echo "$name: exit $?, $((SECONDS - start)) s, $(grep -c '==PROF== Profiling' "$work/$name.log") kernels"
  grep -vE '==PROF==' "$work/$name.log" | tail -15
}

profile cuda_full cuda "" --set full --import-source yes
profile triton_full triton "" --set full --import-source yes
profile torch_basic torch "" --set basic
# the full set takes some 2.5 s for each of these kernels: only some, and none of many launches
profile torch_full torch "--cases mm_bf16,mm_tf32,mv_bf16,flash,layer_norm,softmax,cross_entropy,embedding,index_add,conv,adam_fused,transpose,gather,reduce" --set full --nvtx
profile small_basic small "" --set basic
profile small_full small "" --set full --import-source yes
profile small_after small --after --set full --import-source yes
profile cuda_after cuda --after --set full
python3 "$here/ncu_kernels.py" torch --trace "$work/torch.json" 2>&1 | tail -3
python3 "$here/ncu_kernels.py" triton --trace "$work/triton.json" 2>&1 | tail -3
gzip -f "$work"/*.json
cd "$work" || exit 1
for r in *.ncu-rep; do
  n=${r%.ncu-rep}
  "$ncu" --import "$r" --page details > "$n.details.txt" 2>&1
  "$ncu" --import "$r" --page details --csv > "$n.details.csv" 2>&1
  "$ncu" --import "$r" --page raw --csv > "$n.raw.csv" 2>&1
  case $n in small_full|cuda_full)
    "$ncu" --import "$r" --page source --csv --print-source sass > "$n.sass.csv" 2>&1
    "$ncu" --import "$r" --page details --csv --print-details all --print-metric-name name \
      > "$n.all.csv" 2>&1
    "$ncu" --import "$r" --page source --csv --print-source cuda > "$n.cuda.csv" 2>&1 ;;
  esac
done
ls -la "$work"
find "$work" -name '*.ncu-rep' -size +20M -delete  # their pages are here
tar cJf - . | split -b 15m - "$out/ncu.tar.xz."
ls -la "$out"
rm -rf "$work"
