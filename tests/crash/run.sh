#!/bin/bash
# run.sh [OPTIONS of butterfly-crash]: kills a real butterflyd again and again while simulated guests send to each other at full
# rate. No frame is changed or comes twice, no front end notices anything, traffic stands still for no longer than promised.
# Without options: 20 kills of a daemon with 20 guests. 100 guests, 100,000 sessions, 100 kills: run.sh --pairs 50 --rounds 100.
set -euo pipefail
# shellcheck source=../lib/common.sh
. "$(dirname "$0")/../lib/common.sh"

need_programs butterflyd butterfly
export BIN
cd "$REPO"
cargo build --quiet --release ${CI:+--locked} --bin butterfly-crash
dir=$(mktemp -d /tmp/bfly-crash.XXXXXX)
cleanup() {
  trap '' INT TERM HUP
  # Of a test that failed: the holder outlives everything else.
  pkill -KILL -f -- "--hold-alone $dir/" 2>/dev/null || true
  rm -rf "$dir"
}
trap cleanup EXIT
[ $# -gt 0 ] || set -- --pairs 10 --rounds 20 --sessions 20000
TMPDIR=$dir "${CARGO_TARGET_DIR:-$REPO/target}/release/butterfly-crash" "$@"
