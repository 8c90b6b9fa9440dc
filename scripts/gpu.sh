#!/usr/bin/env bash
# On a machine with one or more GPUs: the tests that need one, then the records renewed, what users would be given wrongly first (scripts/renew.py).
# Records go to $OUT (default: results/) after everything, beside those that its file had, and after an interruption too: what was measured is kept.
# Run it again and it goes on where it ended: what was renewed is the newest, and comes last.
#
#   OPERATORS      these alone
#   NAME           of the file of records, before .jsonl.gz (default: the device's name)
#   LIMIT          seconds for one slice, everything in it (default: none)
#   BUDGET         seconds of measuring for each row (default: 0.12)
#   GRID=1         the operators' shape classes too
#   ANY_VERSION=1  a whole verification of the same code stands, also one by an earlier definition or verifier
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
left() { echo $((${LIMIT:-1000000} - SECONDS)); }
# what is known already decides what is most urgent: the records of the file in $OUT, else those of results/
file="$out/${NAME:-$device}.jsonl.gz"
for known in "$file" "results/${NAME:-$device}.jsonl.gz"; do
    if [ -f "$known" ]; then "$python" -m opforge records import "$known"; break; fi
done

[ "${TESTS:-1}" = 0 ] || timeout -s INT -k 20 "$(left)" "$python" -m pytest -q -m gpu tests 2>&1 | tail -15
"$python" -m opforge doctor
# ceilings that were measured on this machine are kept in its cache; a second slice does not measure them again
"$python" -m opforge machine --device cuda > "$out/$device-ceilings.txt"
[ "$(left)" -le 1000 ] && room=$(($(left) - 15)) || room=$(left)
for ((gpu = 0; gpu < gpus; gpu++)); do
    # shellcheck disable=SC2086
    CUDA_VISIBLE_DEVICES=$gpu "$python" scripts/renew.py --device cuda --limit "$room" --budget "${BUDGET:-0.12}" --share "$gpu/$gpus" ${GRID:+--grid} \
        ${ANY_VERSION:+--any-version} \
        ${OPERATORS:+--operators $OPERATORS} < /dev/null 2>&1 | tee "$out/renewed-$gpu.txt" &
done
wait
"$python" scripts/renew.py --device cuda --plan > "$out/left.txt" && head -n 1 "$out/left.txt"
# a store whose export failed is all there is of what was measured
"$python" -m opforge records export "$file" && rm -f "$OPFORGE_STORE" "$OPFORGE_STORE"-*
ls -la "$out"
