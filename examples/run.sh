#!/usr/bin/env bash
# Shared by the run_*.sh scripts: install what is missing, then `r3 run` with the given arguments.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
# Paths in the environment are the caller's; the run itself starts in the caller's folder too.
bash "$root/examples/install.sh"
exec "$(bash "$root/examples/install.sh" --print-python)" -m r3_ext.cli run "$@"
