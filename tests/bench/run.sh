#!/bin/bash
# run.sh: how fast Butterfly is beside dpdk-testpmd, the upper limit for switches built on DPDK. Two bypass vnics, one
# worker, mergeable buffers and not in-order as Linux guests have them; rounds interleaved on the same machine.
# Prints ratios of medians and what docs/performance.md promises. Needs root, two cores, and a quiet machine.
#   ROUNDS=3 SIZES=64,1400 FLOWS=1 IDLE=500 SECS=3   environment
#   QUIET=60 TRIES=5                                 seconds to wait for a quiet machine, runs until two seconds are valid
#   CHECK=1                                          exit status 1 if a promise is not kept
set -euo pipefail
# shellcheck source=../lib/common.sh
. "$(dirname "$0")/../lib/common.sh"

ROUNDS=${ROUNDS:-3} SIZES=${SIZES:-64,1400} FLOWS=${FLOWS:-1} IDLE=${IDLE:-500} SECS=${SECS:-3} QUIET=${QUIET:-60} TRIES=${TRIES:-5}
need_programs butterflyd butterfly
PEERS=$TESTS/peers
OUT=$BUILD/bench
mkdir -p "$OUT"
rm -f "$OUT"/*.json

one() { # one NAME ROUND SUBCOMMAND OPTIONS...
  local name=$1 round=$2 status=0
  shift 2
  "$PEERS/peers.py" "$1" --sizes "$SIZES" --flows "$FLOWS" --secs "$SECS" --min-valid 2 --quiet "$QUIET" --tries "$TRIES" \
    --json "$OUT/$name-$round.json" "${@:2}" || status=$?
  # 3: not one valid second; the other rounds may do better.
  [ "$status" = 0 ] || [ "$status" = 3 ] || die "measuring $name failed; repeat with: make bench ROUNDS=1"
}
butterfly() { # butterfly NAME ROUND IDLE
  one "$1" "$2" sut --name "$1" --clear-cmd "$PEERS/butterfly.sh mark {a}" \
    --cycles-cmd "$PEERS/butterfly.sh cycles {a}" -- "$PEERS/butterfly.sh" run '{a}' '{b}' '{core}' "$3"
}

for ((round = 1; round <= ROUNDS; round++)); do
  say "# round $round of $ROUNDS"
  one limit "$round" limit
  butterfly butterfly "$round" 0
  [ "$IDLE" = 0 ] || butterfly "butterfly+idle" "$round" "$IDLE"
done

exec "$TESTS/bench/ratios.py" ${CHECK:+--check} "$OUT"/*.json
