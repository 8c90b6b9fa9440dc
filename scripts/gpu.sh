#!/usr/bin/env bash
# On a machine with one or more GPUs: the tests that need one, then the bench, its plan dealt out to the GPUs as they become free.
# Records go to $OUT (default: results/) after everything, beside those that its file had, and after an interruption too: what was measured is kept.
#
#   OPERATORS      these alone, each with its workloads and dtypes, instead of the plan
#   PLAN           a file of lines, each the operators and options of one `opforge bench`, most important first (default: scripts/gpu-plan.txt)
#   NAME           of the file of records, before .jsonl.gz (default: the device's name)
#   LIMIT          seconds after which no line is begun and the bench under way is ended (default: none)
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
queue=$(mktemp)
if [ -n "${OPERATORS:-}" ]; then
    # shellcheck disable=SC2086
    printf '%s\n' $OPERATORS > "$queue"
else
    grep -vE '^\s*(#|$)' "${PLAN:-scripts/gpu-plan.txt}" > "$queue"
fi

# the first line that nobody has taken; locked, because every GPU asks
next() { flock "$queue.lock" sh -c 'head -n 1 "$1"; sed -i 1d "$1"' next "$queue"; }

left() { echo $((${LIMIT:-1000000} - SECONDS)); }

work() {
    local gpu=$1 line
    while [ "$(left)" -gt 15 ] && line=$(next) && [ -n "$line" ]; do
        echo "== GPU $gpu at $SECONDS s: $line"
        # shellcheck disable=SC2086
        CUDA_VISIBLE_DEVICES=$gpu timeout -s INT -k 20 "$(left)" "$python" -m opforge bench $line --device cuda --report "$out/report-$gpu" < /dev/null 2>&1
        echo "== GPU $gpu: exit code $? at $SECONDS s"
    done
}

[ "${TESTS:-1}" = 0 ] || timeout -s INT -k 20 "$(left)" "$python" -m pytest -q -m gpu tests 2>&1 | tail -15
"$python" -m opforge doctor
"$python" -m opforge machine --device cuda --again > "$out/$device-ceilings.txt"
for ((gpu = 0; gpu < gpus; gpu++)); do
    work "$gpu" > "$out/bench-$gpu.txt" &
done
wait
grep -h "^== GPU" "$out"/bench-*.txt
[ ! -s "$queue" ] || { echo "not begun, for want of time:"; cat "$queue"; }
# a store whose export failed is all there is of what was measured
file="$out/${NAME:-$device}.jsonl.gz"
[ ! -f "$file" ] || "$python" -m opforge records import "$file"
"$python" -m opforge records export "$file" && rm -f "$OPFORGE_STORE" "$OPFORGE_STORE"-*
rm -f "$queue" "$queue.lock"
ls -la "$out"
