#!/usr/bin/env bash
# Collects the packages that a machine with PyTorch needs besides, for one that has no index:
#
#     tests/gpu/wheels.sh [PYTHON-VERSION [FOLDER]]      3.12, tests/gpu/wheels
#
# NumPy stays out: it comes with PyTorch. The result is for Linux on x86-64, and below 60 MB.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
version=${1:-3.12}
folder=${2:-tests/gpu/wheels}
limit_kb=60000

mapfile -t needed < <(python3 - <<'PYTHON'
import tomllib
with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)["project"]
extras = project["optional-dependencies"]
tests = [one for one in extras["dev"] if one.startswith(("pytest>", "pytest-", "hypothesis"))]
print("\n".join([*project["dependencies"], *extras["embedded"], *tests, "psutil>=6.0"]))
PYTHON
)
platforms=()
for glibc in 2_28 2_27 2_24 2_17 2_12 2_5; do platforms+=(--platform "manylinux_${glibc}_x86_64"); done
for year in 2014 2010 1; do platforms+=(--platform "manylinux${year}_x86_64"); done

rm -rf "$folder"
mkdir -p "$folder"
python3 -m pip download --quiet --disable-pip-version-check --only-binary=:all: \
  --implementation cp --python-version "$version" "${platforms[@]}" --dest "$folder" "${needed[@]}"
rm -f "$folder"/numpy-*.whl
size_kb=$(du -sk "$folder" | cut -f1)
echo "$(find "$folder" -name '*.whl' | wc -l) wheels in $folder: $((size_kb / 1000)) MB"
if ((size_kb > limit_kb)); then
  echo "more than $((limit_kb / 1000)) MB: too much to carry" >&2
  exit 1
fi
