#!/usr/bin/env bash
# HGPO on TextWorld: agents of several turns, with advantages from nested groups of turns that share a history.
# Arguments are those of `r3 run` (--profile NAME, --run NAME, --method gigpo) and hydra overrides; DATA, VAL_DATA and
# MODEL name local files. Without a GPU the embedded profile runs: games and a tiny player are made once, in minutes.
set -euo pipefail
here="$(dirname "${BASH_SOURCE[0]}")"
bash "$here/install.sh" --games
exec bash "$here/run.sh" --method hgpo "$@"
