#!/bin/bash
# butterfly.sh: butterflyd as the switch under test of peers.py: two bypass vnics on given sockets, one worker that polls.
#   butterfly.sh run A B CORE [IDLE]   in the foreground: sockets A and B, worker on CORE, IDLE more vnics with idle guests
#   butterfly.sh filtered A B CORE RULES  two filtered vnics with so many rules, the last of which lets the other one in
#   butterfly.sh vxlan A B CORE RULES     the first of them, and B is the uplink to the host of the other (peers.py --vxlan)
#   butterfly.sh routed A B CORE RULES    two filtered vnics in networks that a router joins (butterfly-bench --router)
#   butterfly.sh snat A B CORE RULES      the first of them, behind an address that machines share, and B is the next router outside
#   butterfly.sh connect A B CORE      the same, but butterflyd connects to sockets that the generator owns
#   butterfly.sh mark A                the measurement begins: note the worker's counters
#   butterfly.sh cycles A              busy cycles per packet since mark
# For example:
#   peers.py sut --name butterfly --clear-cmd 'butterfly.sh mark {a}' --cycles-cmd 'butterfly.sh cycles {a}' \
#     -- butterfly.sh run {a} {b} {core}
# SESSIONS=N in the environment: a table of so many sessions, all of which one vnic may have, and open as fast as it likes.
set -euo pipefail
# shellcheck source=../lib/common.sh
. "$(dirname "$0")/../lib/common.sh"
# shellcheck source=../lib/daemon.sh
. "$TESTS/lib/daemon.sh"

DAEMON_SESSION='' # peers.py favours the session that it started

usage() {
  sed -n '2,10s/^# \{0,1\}//p' "$0"
  exit 2
}
[ $# -ge 2 ] || usage
mode=$1
a=$2
# butterflyd names its sockets itself: they live in a directory beside A, and A and B are links to them.
dir=${a%.sock}.d

counters() { # busy cycles and packets of all workers
  "$BIN/butterfly" workers --json -e "ipc://$dir/api" -t 10000 | python3 -c '
import json, sys
w = json.load(sys.stdin)["workers"]
print(sum(x["busy_cycles"] for x in w), sum(x["packets"] for x in w))'
}

guests='' # the trap sees it
run() {
  local b=$1 core=$2 idle=${3:-0} i paths=() add=() first=(nic add --id a --mac 02:00:00:00:00:01 --vni 42 --bypass-filtering)
  local second=(nic add --id b --mac 02:00:00:00:00:02 --vni 42 --bypass-filtering)
  rm -rf "$dir" # of an earlier run that was killed
  mkdir -p "$dir"
  cleanup() {
    trap '' INT TERM HUP
    # shellcheck disable=SC2086 # nothing if empty
    end $guests
    # peers.py ends the whole group. A second signal ends a daemon at once, and its session table would stay in memory.
    wait_for 2 gone "$DAEMON_PID" || daemon_stop || true
    rm -rf "$dir" "$a" "$b"
  }
  local rules=() n uplink=none endpoint=42.0.0.1
  if [ "$mode" = vxlan ]; then
    uplink=vhost-user:$dir/uplink endpoint=192.168.50.1
    # Nobody answers ARP there: the next hop is learnt from what the generator sends first.
  fi
  if [ "$mode" = routed ] || [ "$mode" = snat ]; then
    # As butterfly-bench --router has it. The id of the router is what peers know its MAC address by.
    rules+=(+ network add --vni 42 --subnet 10.0.0.0/31 --gateway 10.0.0.0 + router add r1 + router attach r1 --vni 42)
    if [ "$mode" = routed ]; then
      rules+=(+ network add --vni 43 --subnet 10.0.0.2/31 --gateway 10.0.0.3 + router attach r1 --vni 43)
    else
      rules+=(+ external add world --vni 43 --address 10.0.0.3/31 --gateway 10.0.0.2 + router attach r1 --external world
        + snat add r1 --external world --address 192.0.2.9 + neighbour add --vni 43 --ip 10.0.0.2 --mac 02:00:00:00:00:02)
    fi
  fi
  if [ "$mode" = filtered ] || [ "$mode" = vxlan ] || [ "$mode" = routed ] || [ "$mode" = snat ]; then
    first=(nic add --id a --mac 02:00:00:00:00:01 --vni 42 --ip 10.0.0.1 --sg fw)
    second=(nic add --id b --mac 02:00:00:00:00:02 --vni 42 --ip 10.0.0.2 --sg fw)
    for ((n = 1; n < idle; n++)); do
      rules+=(+ sg rule add fw --ip-proto tcp --port "$n" --cidr "10.$((1 + n % 250)).0.0/16")
    done
    rules+=(+ sg rule add fw --ip-proto all --cidr 10.0.0.0/24)
    idle=0
  fi
  [ "$mode" != vxlan ] || first[7]=100 # the VNI
  [ "$mode" != routed ] || second[7]=43
  [ "$mode" != snat ] || second=(nic add --id b --mac 02:00:00:00:00:02 --vni 43 --bypass-filtering)
  trap cleanup EXIT
  trap 'exit 143' INT TERM HUP
  daemon_start "$dir" -i "$endpoint" -u "$core" --poll --uplink "$uplink" ${SESSIONS:+--sessions "$SESSIONS" --session-share 100 --session-rate 100000000}
  if [ "$mode" = connect ]; then
    first+=(--type VHOST_USER_CLIENT --path "$a")
    second+=(--type VHOST_USER_CLIENT --path "$b")
  fi
  if [ "$mode" = vxlan ]; then
    bf "${first[@]}" "${rules[@]}" >/dev/null
  else
    bf "${first[@]}" + "${second[@]}" "${rules[@]}" >/dev/null
  fi
  if [ "$idle" -gt 0 ]; then
    # Five to a network, as many tenants with a few machines each.
    for ((i = 0; i < idle; i++)); do
      [ ${#add[@]} -eq 0 ] || add+=(+)
      add+=(nic add --id "idle$i" --mac "$(printf '02:00:00:01:%02x:%02x' $((i / 256)) $((i % 256)))"
        --vni $((1000 + i / 5)) --bypass-filtering)
      paths+=("$dir/qemu-vhost-idle$i")
    done
    bf "${add[@]}" >/dev/null
    mkfifo "$dir/idle.in"
    "$TESTS/peers/idle.py" "${paths[@]}" <>"$dir/idle.in" >"$dir/idle.log" 2>&1 &
    guests=$!
    wait_for 60 idle_ready "$guests" || die "the idle guests did not attach: $(tail -3 "$dir/idle.log")"
    alive "$guests" || die "the idle guests ended: $(tail -3 "$dir/idle.log")"
  fi
  # Last: peers.py takes the sockets for the sign that the switch is ready.
  if [ "$mode" != connect ]; then
    if [ "$mode" = vxlan ]; then ln -sfn "$dir/uplink" "$b"; else ln -sfn "$dir/qemu-vhost-b" "$b"; fi
    ln -sfn "$dir/qemu-vhost-a" "$a"
  fi
  wait "$DAEMON_PID"
}
idle_ready() { ! alive "$1" || grep -q '^READY' "$dir/idle.log"; }

case $mode in
  run | connect | filtered | vxlan | routed | snat)
    [ $# -ge 4 ] || usage
    run "${@:3}"
    ;;
  mark) counters >"$dir/mark" ;;
  cycles)
    read -r cycles0 packets0 <"$dir/mark"
    read -r cycles1 packets1 < <(counters)
    [ "$packets1" -gt "$packets0" ] || die "the worker moved no packet since mark"
    echo "cycles per packet: $(((cycles1 - cycles0) * 10 / (packets1 - packets0)))" | sed 's/\(.\)$/.\1/'
    ;;
  *) usage ;;
esac
