#!/usr/bin/env bash
# On a machine with one or more GPUs: the whole bench, its operators dealt out to the GPUs, then the tests that need one.
# Records go to $OUT (default: results/) after everything, and after an interruption too: what was measured is kept.
#
#   OPERATORS      which, most important first (default: all)
#   BENCH          further options of `opforge bench`, e.g. "--most 1 --dtype bfloat16"
#   NAME           of the file of records, before .jsonl.gz (default: the device's name)
#   LIMIT          seconds after which the bench is ended (default: none)
#   TESTS=0        leaves the tests out
#   OPFORGE_SITE   a folder of Python packages to use beside the system's (TileLang, SQLAlchemy, …), for machines without an index
#   PYTHON         the interpreter (default: .venv's if there is one, else python3)
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}
out=${OUT:-results}
export PYTHONPATH="$PWD/src${OPFORGE_SITE:+:$OPFORGE_SITE}" OPFORGE_STORE="$out/gpu.sqlite" COLUMNS=${COLUMNS:-180}
mkdir -p "$out"
read -r gpus device <<< "$("$python" -c 'import torch; print(torch.cuda.device_count(), torch.cuda.get_device_name().lower().replace(" ", "-"))')"
[ "${gpus:-0}" -ge 1 ] || { echo "gpu.sh: torch sees no CUDA device here" >&2; exit 3; }
operators=${OPERATORS:-$("$python" -m opforge list --json | "$python" -c "import json, sys; print(*(entry[\"operator\"] for entry in json.load(sys.stdin)))")}

"$python" -m opforge doctor
"$python" -m opforge machine --device cuda --again > "$out/$device-ceilings.txt"
for ((gpu = 0; gpu < gpus; gpu++)); do
    share=$(echo $operators | tr ' ' '\n' | awk -v n="$gpus" -v k="$gpu" '(NR - 1) % n == k' | tr '\n' ' ')
    # shellcheck disable=SC2086
    CUDA_VISIBLE_DEVICES=$gpu timeout -s INT -k 20 "${LIMIT:-1000000}" "$python" -m opforge bench $share --device cuda --budget "${BUDGET:-0.3}" ${BENCH:-} \
        --report "$out/report-$gpu" > "$out/bench-$gpu.txt" 2>&1 &
done
wait
tail -n 60 "$out"/bench-*.txt
"$python" -m opforge records export "$out/${NAME:-$device}.jsonl.gz"
[ "${TESTS:-1}" = 0 ] || "$python" -m pytest -q -m gpu tests 2>&1 | tail -15
rm -f "$OPFORGE_STORE" "$OPFORGE_STORE"-*
ls -la "$out"
