#!/bin/bash
# run.sh [OPTION...]: mutation tests. Draws 300 mistakes by SEED (2), builds all of them into one set of test programs, switches each
# on alone, and writes which test noticed it to target/mutation/draw-SEED.md. Takes about an hour; --help has the options.
set -euo pipefail
# shellcheck source=../lib/common.sh
. "$(dirname "$0")/../lib/common.sh"

cd "$REPO"
"${CARGO:-cargo}" build --quiet ${CI:+--locked} -p butterfly-mutation
# Threads of a mutant that does not end wait beside everything else.
exec nice -n 19 "${CARGO_TARGET_DIR:-target}/debug/butterfly-mutation" --seed "${SEED:-2}" "$@"
