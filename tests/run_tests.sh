#!/usr/bin/env bash
# Set up what is missing and run the test suite; arguments go to pytest.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"
bash examples/install.sh --test
exec "$(bash examples/install.sh --print-python)" -m pytest "$@"
