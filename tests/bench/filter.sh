#!/bin/bash
# filter.sh: what filtering costs beside OVS-DPDK's connection tracking (two zones, 11 rules a port) and beside testpmd, which decides nothing. Two
# filtered vnics, ten rules, one worker, established flows in random order; rounds interleaved on the same machine.
# Prints ratios of medians. Needs root, two cores, a quiet machine, and Debian's openvswitch-switch-dpdk.
#   ROUNDS=3 FLOWS=1,1000,100000 SIZES=64 TCP= RULES=10 SECS=3   environment; TCP=1: TCP segments instead of UDP
#   QUIET=60 TRIES=5                                        as in run.sh
set -euo pipefail
# shellcheck source=../lib/common.sh
. "$(dirname "$0")/../lib/common.sh"

ROUNDS=${ROUNDS:-3} FLOWS=${FLOWS:-1,1000,100000} SIZES=${SIZES:-64} RULES=${RULES:-10} SECS=${SECS:-3} QUIET=${QUIET:-60} TRIES=${TRIES:-5}
need_programs butterflyd butterfly
PEERS=$TESTS/peers
OUT=$BUILD/bench-filter
mkdir -p "$OUT"
rm -f "$OUT"/*.json

one() { # one NAME ROUND SUBCOMMAND OPTIONS...
  local name=$1 round=$2 status=0
  shift 2
  "$PEERS/peers.py" "$1" --sizes "$SIZES" --flows "$FLOWS" --random ${TCP:+--tcp} --secs "$SECS" --min-valid 2 --quiet "$QUIET" \
    --tries "$TRIES" --json "$OUT/$name-$round.json" "${@:2}" || status=$?
  # 3: not one valid second; the other rounds may do better.
  [ "$status" = 0 ] || [ "$status" = 3 ] || die "measuring $name failed"
}

for ((round = 1; round <= ROUNDS; round++)); do
  say "# round $round of $ROUNDS"
  one limit "$round" limit
  one ovs "$round" ovs ct
  one butterfly "$round" sut --name filtered --clear-cmd "$PEERS/butterfly.sh mark {a}" \
    --cycles-cmd "$PEERS/butterfly.sh cycles {a}" -- "$PEERS/butterfly.sh" filtered '{a}' '{b}' '{core}' "$RULES"
done

exec "$TESTS/bench/ratios.py" "$OUT"/*.json
