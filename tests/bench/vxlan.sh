#!/bin/bash
# vxlan.sh: what it costs to carry a network to another host, beside OVS-DPDK's VXLAN without connection tracking: encapsulation (VM to
# uplink) and decapsulation, one worker, a filtered vnic with ten rules, the uplink a second vhost-user port. Rounds interleaved on the same
# machine. Prints ratios of medians. Needs root, two cores, a quiet machine, and Debian's openvswitch-switch-dpdk.
#   ROUNDS=3 FLOWS=1,1000 SIZES=64 RULES=10 SECS=3 DIRS="uni rev"   environment
#   QUIET=60 TRIES=5                                               as in run.sh
set -euo pipefail
# shellcheck source=../lib/common.sh
. "$(dirname "$0")/../lib/common.sh"

ROUNDS=${ROUNDS:-3} FLOWS=${FLOWS:-1,1000} SIZES=${SIZES:-64} RULES=${RULES:-10} SECS=${SECS:-3} DIRS=${DIRS:-uni rev}
QUIET=${QUIET:-60} TRIES=${TRIES:-5}
need_programs butterflyd butterfly
PEERS=$TESTS/peers
OUT=$BUILD/bench-vxlan
mkdir -p "$OUT"
rm -f "$OUT"/*.json

one() { # one NAME ROUND DIR SUBCOMMAND OPTIONS...
  local name=$1 round=$2 dir=$3 status=0
  shift 3
  "$PEERS/peers.py" "$1" --dir "$dir" --sizes "$SIZES" --flows "$FLOWS" --random --secs "$SECS" --min-valid 2 --quiet "$QUIET" \
    --tries "$TRIES" --json "$OUT/$name-$dir-$round.json" "${@:2}" || status=$?
  # 3: not one valid second; the other rounds may do better.
  [ "$status" = 0 ] || [ "$status" = 3 ] || die "measuring $name failed"
}

for ((round = 1; round <= ROUNDS; round++)); do
  say "# round $round of $ROUNDS"
  for dir in $DIRS; do
    one ovs "$round" "$dir" ovs vxlan
    one butterfly "$round" "$dir" sut --vxlan --name vxlan --clear-cmd "$PEERS/butterfly.sh mark {a}" \
      --cycles-cmd "$PEERS/butterfly.sh cycles {a}" -- "$PEERS/butterfly.sh" vxlan '{a}' '{b}' '{core}' "$RULES"
  done
done

for dir in $DIRS; do
  if [ "$dir" = uni ]; then say "encapsulation"; else say "decapsulation"; fi
  "$TESTS/bench/ratios.py" "$OUT"/*-"$dir"-*.json
done
