#!/usr/bin/env bash
# On a machine with a GPU: correctness first, then the whole bench, then the ceilings. Records and the report go to $OUT
# (default: results/). One command, so that scarce device time is spent once.
#
#   OPFORGE_SITE   a folder of Python packages to use beside the system's (TileLang, SQLAlchemy, …), for machines without an index
#   PYTHON         the interpreter (default: .venv's if there is one, else python3)
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}
out=${OUT:-results}
export PYTHONPATH="$PWD/src${OPFORGE_SITE:+:$OPFORGE_SITE}" OPFORGE_STORE="$out/gpu.sqlite"
mkdir -p "$out"
device=$("$python" -c 'import torch; print(torch.cuda.get_device_name().lower().replace(" ", "-"))') || { echo "torch sees no CUDA device here" >&2; exit 3; }

"$python" -m opforge doctor
"$python" -m opforge machine --device cuda | tee "$out/$device-ceilings.txt"
"$python" -m pytest -q -m gpu tests 2>&1 | tail -15
"$python" -m opforge verify --all --device cuda --backend cuda --backend triton --backend tilelang --backend torch 2>&1 | tee "$out/$device-verify.txt" | tail -40
"$python" -m opforge bench --all --device cuda --budget "${BUDGET:-0.3}" --report "$out/report" 2>&1 | tee "$out/$device-bench.txt" | tail -120
"$python" -m opforge records export "$out/$device.jsonl" --limit 100000
rm -f "$OPFORGE_STORE" "$OPFORGE_STORE"-*
ls -la "$out"
