#!/bin/bash
# run.sh: hours on one daemon. Two simulated guests send verified traffic at full rate in runs of a minute, every packet
# accounted for; meanwhile vnics of other networks are added, guests attach to them, leave or are killed, and the vnics
# are deleted again, without pause. Memory and descriptors of the daemon must not grow.
#   MINUTES=60   environment; SECS=60 per run
set -euo pipefail
# shellcheck source=../lib/common.sh
. "$(dirname "$0")/../lib/common.sh"
# shellcheck source=../lib/daemon.sh
. "$TESTS/lib/daemon.sh"

MINUTES=${MINUTES:-60} SECS=${SECS:-60}
VUGEN=$BUILD/peers/vugen
CROWD=50 # vnics that come and go at a time
mkdir -p "$BUILD/peers"
make -s -C "$TESTS/peers/vugen" "OUT=$BUILD/peers"

dir=$(mktemp -d /tmp/bfly-soak.XXXXXX)
generator='' churner=''
cleanup() {
  trap '' INT TERM HUP
  touch "$dir/stop"
  [ -z "$churner" ] || wait "$churner" 2>/dev/null || true
  [ -z "$generator" ] || end "$generator"
  daemon_stop || true
  rm -rf "$dir"
}
trap cleanup EXIT
trap 'exit 130' INT TERM HUP

daemon_start "$dir" -u 1
descriptors_idle=$(find "/proc/$DAEMON_PID/fd" -mindepth 1 | wc -l)
bf nic add --id a --mac 02:00:00:00:00:01 --vni 42 --bypass-filtering + \
  nic add --id b --mac 02:00:00:00:00:02 --vni 42 --bypass-filtering >/dev/null

# Adds a crowd, attaches guests to it, ends them in one of two ways, deletes it; until the file stop appears. Its count of
# rounds, and the reason if it gave up, are in files.
churn() {
  local i round=0 paths=() add=() ids=() guests
  for ((i = 0; i < CROWD; i++)); do
    [ $i -eq 0 ] || add+=(+)
    add+=(nic add --id "c$i" --mac "$(printf '02:00:00:01:00:%02x' "$i")" --vni $((1000 + i / 5)) --bypass-filtering)
    ids+=("c$i")
    paths+=("$dir/qemu-vhost-c$i")
  done
  mkfifo "$dir/churn.in"
  while [ ! -e "$dir/stop" ]; do
    bf "${add[@]}" >/dev/null || { echo "nic add failed in round $round" >"$dir/churn.failed"; return 1; }
    : >"$dir/churn.log"
    "$TESTS/peers/idle.py" "${paths[@]}" <>"$dir/churn.in" >"$dir/churn.log" 2>&1 &
    guests=$!
    if ! wait_for 30 grep -q ^READY "$dir/churn.log"; then
      echo "guests did not attach in round $round: $(tail -2 "$dir/churn.log")" >"$dir/churn.failed"
      kill -9 "$guests"
      return 1
    fi
    if [ $((round % 2)) = 0 ]; then kill -9 "$guests"; else kill "$guests"; fi
    wait "$guests" 2>/dev/null || true
    bf nic del "${ids[@]}" || { echo "nic del failed in round $round" >"$dir/churn.failed"; return 1; }
    round=$((round + 1))
    echo "$round" >"$dir/churn.rounds"
  done
}

resident() { awk '/^VmRSS/ { print $2 }' "/proc/$DAEMON_PID/status"; } # KiB
few_descriptors() { [ "$(descriptors)" -le $((descriptors_idle + 4)) ]; }
descriptors() { find "/proc/$DAEMON_PID/fd" -mindepth 1 | wc -l; }

churn &
churner=$!
end=$((SECONDS + MINUTES * 60)) run=0 resident_first='' descriptors_most=0
while [ $SECONDS -lt "$end" ]; do
  run=$((run + 1))
  for nic in a b; do bf nic show $nic --json >"$dir/before-$nic.json"; done
  RUNTIME_DIRECTORY=$dir timeout -k 5 $((SECS + 60)) "$VUGEN" -l 0 --no-pci --no-telemetry --no-huge --no-shconf \
    --file-prefix="bfly-soak-$$" -m 256 --vdev "net_virtio_user0,path=$dir/qemu-vhost-a,queues=1,in_order=0" \
    --vdev "net_virtio_user1,path=$dir/qemu-vhost-b,queues=1,in_order=0" -- --dir bidi --warm 1 --secs "$SECS" \
    --payload-check --size $((64 + run * 331 % 1400)) --flows 1000 --random --seed $run --json "$dir/vugen.json" \
    >"$dir/vugen.log" 2>&1 </dev/null &
  generator=$!
  wait "$generator" || die "run $run: the generator failed: $(tail -3 "$dir/vugen.log")"
  generator=''
  for nic in a b; do bf nic show $nic --json >"$dir/after-$nic.json"; done
  "$TESTS/dpdk/account.py" "$dir/vugen.json" "$dir"/before-{a,b}.json "$dir"/after-{a,b}.json || die "run $run does not add up"
  alive "$DAEMON_PID" || die "butterflyd is gone in run $run"
  [ ! -e "$dir/churn.failed" ] || die "adding and removing vnics: $(cat "$dir/churn.failed")"
  now=$(resident)
  [ "$(descriptors)" -le "$descriptors_most" ] || descriptors_most=$(descriptors)
  say "run $run: $(cat "$dir/churn.rounds" 2>/dev/null || echo 0) rounds of $CROWD vnics, $now KiB resident, at most $descriptors_most descriptors"
  # Caches and tables fill in the first runs; after that memory may wander, not climb.
  [ "$run" -ne 3 ] || resident_first=$now
  if [ "$run" -gt 3 ] && [ "$now" -gt $((resident_first + resident_first / 10 + 4096)) ]; then
    die "memory grew from $resident_first KiB after run 3 to $now KiB after run $run"
  fi
done
touch "$dir/stop"
wait "$churner" || die "adding and removing vnics: $(cat "$dir/churn.failed")"
churner=''
[ "$(cat "$dir/churn.rounds")" -gt 0 ] || die "no vnic came and went"
bf nic del a b
# Every vnic is gone: what is left is what a daemon holds by itself, and perhaps a client that just left.
wait_for 5 few_descriptors || die "$(descriptors) descriptors are open in a daemon without vnics"
daemon_stop || die "butterflyd did not stop"
say "$run passed, 0 failed"
