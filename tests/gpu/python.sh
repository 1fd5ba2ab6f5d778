#!/usr/bin/env bash
# Runs Python from this checkout with .venv or, without it, with python3 and tests/gpu/wheels:
#
#     tests/gpu/python.sh -m edl bench teacher --device cuda
#
# PYTHON and WHEELS name another interpreter and another folder.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
wheels=${WHEELS:-$root/tests/gpu/wheels}
export PYTHONPATH=$root/src PYTHONSAFEPATH=1
if [[ -z ${PYTHON:-} && -x $root/.venv/bin/python ]]; then
  exec "$root/.venv/bin/python" "$@"
fi
python=${PYTHON:-python3}
if compgen -G "$wheels/*.whl" >/dev/null; then
  packages=$(mktemp -d)
  trap 'rm -rf "$packages"' EXIT
  "$python" -m pip install --quiet --disable-pip-version-check --no-index --no-deps --no-compile \
    --no-cache-dir --target "$packages" "$wheels"/*.whl
  export PYTHONPATH=$packages:$PYTHONPATH
fi
"$python" "$@"
