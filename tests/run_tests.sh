#!/usr/bin/env bash
# Set up what is missing and run the test suite; further arguments go to pytest.
#
#   tests/run_tests.sh           all of it: real runs on the tiny model too
#   tests/run_tests.sh quick     formulas and units only, for every save
#   tests/run_tests.sh gpu       acceptance on a GPU with 80 GB; figures in outputs/gpu_acceptance.json
#                                (-k "not runs": what needs neither vLLM nor a download)
#   tests/run_tests.sh gpuset    the packages of a GPU machine, on one without a GPU: 10 GB into .cache/gpuset or R3_GPUSET
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"
if [ "${1:-}" = gpuset ]; then
    exec bash tests/gpuset/run.sh "${@:2}"
fi
if [ "${1:-}" = quick ]; then
    set -- tests/common tests/r3 tests/hgpo tests/rrl tests/ext -m "not slow" "${@:2}"
fi
if [ "${1:-}" = gpu ]; then
    set -- tests/gpu "${@:2}"
fi
bash examples/install.sh --test
exec "$(bash examples/install.sh --print-python)" -m pytest "$@"
