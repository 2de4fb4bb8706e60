#!/bin/bash
# run.sh [OPTIONS of butterfly-kill-points]: a daemon, built with kill points, dies between each two steps of the order of publication, of
# each kind of control message, of orders to the holder and of commits, under load, and is started again. Without options: everything.
# --short: each point once. --only NAME: points whose names contain it. crates/point/src/lib.rs has the list.
# --inside N: N deaths of a host inside the test's own process.
set -euo pipefail
# shellcheck source=../lib/common.sh
. "$(dirname "$0")/../lib/common.sh"

cd "$REPO"
target=${CARGO_TARGET_DIR:-$REPO/target}
"${CARGO:-cargo}" build --quiet ${CI:+--locked} -p butterflyd -p butterfly-tests --features butterflyd/kill-points,butterfly-tests/kill-points \
  --bin butterflyd --bin butterfly-kill-points
dir=$(mktemp -d /tmp/bfly-kill-points.XXXXXX)
cleanup() {
  trap '' INT TERM HUP
  # Of a test that failed: the holder outlives everything else.
  pkill -KILL -f -- "--hold-alone $dir/" 2>/dev/null || true
  rm -rf "$dir"
}
trap cleanup EXIT
# Others of this directory must not find a program that dies.
cp "$target/debug/butterflyd" "$dir/butterflyd"
rm -f "$target/debug/butterflyd"
BIN=$dir TMPDIR=$dir "$target/debug/butterfly-kill-points" "$@"
