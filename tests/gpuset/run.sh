#!/usr/bin/env bash
# Installs the package set for GPUs into a folder of its own, 10 GB, and tests what needs no GPU: `run_tests.sh gpuset`.
#
#   R3_GPUSET=FOLDER   the folder (.cache/gpuset); delete it when you have seen enough
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
cd "$root"
folder="${R3_GPUSET:-$root/.cache/gpuset}"
python="$folder/bin/python"
[ -x "$python" ] || python3 -m venv "$folder"
"$python" -m pip install --quiet uv
eval "$("$python" examples/uv_options.py)"
# Not install.sh: it ends where torch cannot use a GPU.
"$folder/bin/uv" pip install --quiet --python "$python" --index-strategy unsafe-best-match \
    ${uv_options[@]+"${uv_options[@]}"} --editable ".[gpu,test]"
# reasoning-gym comes without what its other tasks need.
if "$python" -m pip check | grep -v -e '^reasoning-gym ' -e '^No broken'; then exit 1; fi
"$python" -m pip install --quiet --no-deps --requirement examples/custom_reward/requirements.txt
echo "the package set: $(du -sh "$folder" | cut -f1), $("$python" -m pip list 2>/dev/null | tail -n +3 | wc -l) packages"
R3_GPUSET="$folder" "$python" -m pytest -q -p no:cacheprovider tests/gpuset
R3_DEVICE=gpu "$python" -m pytest -q -p no:cacheprovider tests/common tests/r3 tests/ext -m "not slow" "$@"
