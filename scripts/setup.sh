#!/usr/bin/env bash
# Makes .venv with everything opforge needs on this machine. Safe to run again; it does nothing when nothing has changed.
#
# A torch that python3 already has is used as it is: the environment sees its packages, also where that python3 is itself a virtual
# environment, as in most containers. A machine without one gets the CPU build. Packages that can be had neither here nor from an index are named, and `opforge doctor`
# says what that costs.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
venv=.venv
stamp=$venv/.opforge-setup
wanted=$(cat pyproject.toml scripts/setup.sh | sha256sum | cut -d' ' -f1)
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then exit 0; fi

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "opforge needs Python 3.11 or newer; set PYTHON=/path/to/python3.11" >&2; exit 3; }
echo "setup: making $venv; this takes a minute or two, and longer where torch has to be downloaded"
if ! [ -x $venv/bin/python ]; then
  if "$python" -c 'import torch' 2>/dev/null; then
    echo "setup: using the torch that $python has"
    "$python" -m venv --system-site-packages $venv
    # of a virtual environment, --system-site-packages shows the packages of the Python that it was made from, and not its own
    "$python" -c 'import site, sys; sys.prefix == sys.base_prefix or print(*(f"import site; site.addsitedir({path!r})" for path in site.getsitepackages()), sep="\n")' \
      >"$($venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/the-python-it-was-made-from.pth"
  else
    "$python" -m venv $venv || { echo "python3-venv is missing: apt-get install python3-venv" >&2; exit 3; }
  fi
fi
# pip says nothing while it works, and pages of traces where it reaches no index: those are kept in a file
said=$venv/pip.log
pip() {
  while sleep 8 >/dev/null 2>&1; do echo "setup: still installing after $SECONDS s"; done &
  local beat=$! ended=0
  $venv/bin/python -m pip --disable-pip-version-check --quiet "$@" >>"$said" 2>&1 || ended=$?
  kill $beat && wait $beat 2>/dev/null || true
  return $ended
}
has() { $venv/bin/python -c "import importlib.util, sys; sys.exit(importlib.util.find_spec('$1') is None)"; }

# byte code is made when a module is imported, for those that are: of all of them it takes a quarter of a minute (--no-compile).
# torch first, so that nothing below can pull in another one
has torch || pip install --no-compile "torch==2.13.0" || { echo "torch 2.13.0 cannot be installed here (see $said); install a torch and run this again" >&2; exit 3; }
torch=$($venv/bin/python -c 'import importlib.metadata; print(importlib.metadata.version("torch"))')
pins=$(mktemp)
trap 'rm -f "$pins"' EXIT
echo "torch==$torch" >"$pins"
if has triton; then echo "triton==$($venv/bin/python -c 'import importlib.metadata; print(importlib.metadata.version("triton"))')" >>"$pins"; fi

# all in one go: each pip costs seconds before it has begun
wanted_too=()
has triton || wanted_too+=("triton==3.6.0")
has tilelang || wanted_too+=("tilelang==0.1.15")
has psycopg || wanted_too+=("psycopg[binary]>=3.2,<4")
has transformers || wanted_too+=("transformers>=5.24,<6")
{ [ ${#wanted_too[@]} -gt 0 ] && pip install --no-compile --constraint "$pins" --editable ".[dev]" "${wanted_too[@]}"; } ||
  pip install --no-compile --constraint "$pins" --editable ".[dev]" || {
  # a machine that reaches no package index may have everything all the same
  echo "setup: pip could not install opforge (see $said); going on with what this machine has" >&2
  echo "$PWD/src" >"$($venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/opforge.pth"
  printf '#!/bin/sh\nexec "%s/.venv/bin/python" -m opforge "$@"\n' "$PWD" >$venv/bin/opforge && chmod +x $venv/bin/opforge
}
has triton || pip install --constraint "$pins" "triton==3.6.0" || echo "setup: Triton cannot be installed here; its kernels will be reported as missing" >&2
has tilelang || pip install --constraint "$pins" "tilelang==0.1.15" || echo "setup: TileLang cannot be installed here; its kernels will be reported as missing" >&2
has psycopg || pip install "psycopg[binary]>=3.2,<4" || echo "setup: psycopg cannot be installed here; a store on PostgreSQL will be reported as missing its driver" >&2
has transformers || pip install --no-compile --constraint "$pins" "transformers>=5.24,<6" || echo "setup: transformers cannot be installed here; models of its configurations will be reported as missing it" >&2
# a tool that the other environment has already is not installed again, and its command is in that one's folder
theirs=$("$python" -c 'import sysconfig; print(sysconfig.get_path("scripts"))')
for tool in ruff mypy pytest; do
  if ! [ -x $venv/bin/$tool ]; then
    if [ $tool != ruff ]; then
      printf '#!/bin/sh\nexec "%s/.venv/bin/python" -m %s "$@"\n' "$PWD" $tool >$venv/bin/$tool && chmod +x $venv/bin/$tool
    elif [ -x "$theirs/$tool" ]; then
      ln -sf "$theirs/$tool" $venv/bin/$tool
    else
      echo "setup: $tool cannot be installed here; make check needs it: $python -m pip install $tool" >&2
    fi
  fi
done
$venv/bin/opforge --version >/dev/null || { echo "setup failed: see $said" >&2; exit 3; }
echo "$wanted" >"$stamp"
