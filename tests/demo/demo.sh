#!/bin/bash
# demo.sh: four real QEMU guests on one butterflyd, step by step, each step with what it proves. Ends with "demo: ok" and
# exit status 0, or says loudly what failed. `make demo` builds what it needs and runs it.
#   KEEP=1          leave everything running and say how to enter each guest
#   demo.sh --stop  end what KEEP=1 left
set -euo pipefail
# shellcheck source=../lib/common.sh
. "$(dirname "$0")/../lib/common.sh"
# shellcheck source=../lib/daemon.sh
. "$TESTS/lib/daemon.sh"
# shellcheck source=../guest/lib.sh
. "$TESTS/guest/lib.sh"

OUT=$BUILD/demo # what is left for people: graph, logs
KEEP=${KEEP:-}

# The guests: a and b attach to sockets that butterflyd owns, c owns its socket and butterflyd connects to it (the role in
# which a daemon may come and go under any QEMU). d has b's very addresses in another network.
declare -A VNI=([a]=42 [b]=42 [c]=42 [d]=43)
declare -A IP=([a]=10.0.0.1 [b]=10.0.0.2 [c]=10.0.0.3 [d]=10.0.0.2)
declare -A MAC=([a]=52:54:00:00:00:01 [b]=52:54:00:00:00:02 [c]=52:54:00:00:00:03 [d]=52:54:00:00:00:02)
GUESTS=(a b c d)

stop_kept() {
  local dir pid
  for dir in /tmp/bfly-demo.*; do
    [ -d "$dir" ] || continue
    vm --dir "$dir" stop --all 2>/dev/null || true
    pid=$(cat "$dir/daemon.pid" 2>/dev/null || true)
    # The process may have ended and its id be another's by now.
    if [ -n "$pid" ] && tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | grep -qF "$dir"; then end "$pid"; fi
    rm -rf "$dir"
    say "ended the demo in $dir"
  done
}
if [ "${1:-}" = --stop ]; then
  stop_kept
  exit 0
fi
[ $# -eq 0 ] || die "unknown option $1 (KEEP=1 is set in the environment)"

need_programs butterflyd butterfly
dir=$(mktemp -d /tmp/bfly-demo.XXXXXX)
export VM_DIR=$dir
rm -rf "$OUT"
mkdir -p "$OUT"

number=0 title='' finished=''
cleanup() {
  local status=$?
  trap '' INT TERM HUP
  cp "$dir"/*.log "$dir"/*.qemu "$OUT"/ 2>/dev/null || true
  if [ -n "$finished" ] && [ -n "$KEEP" ]; then
    how_to_enter
    echo "demo: ok"
    return
  fi
  if [ -z "$finished" ]; then
    {
      echo
      echo "demo: FAILED in step $number ($title), status $status"
      daemon_log
      echo "logs: $OUT    repeat with: make demo    to look around: make demo KEEP=1"
    } >&2
  fi
  vm stop --all 2>/dev/null || status=1
  daemon_stop || status=1
  cp "$dir/butterflyd.log" "$OUT"/ 2>/dev/null || true
  rm -rf "$dir"
  [ -n "$finished" ] || exit $((status ? status : 1))
  if [ "$status" -ne 0 ]; then
    echo "demo: FAILED while cleaning up" >&2
    exit "$status"
  fi
  echo "demo: ok"
}
trap cleanup EXIT
trap 'exit 130' INT TERM HUP

step() { # step TITLE WHAT-IT-PROVES
  number=$((number + 1))
  title=$1
  printf '\n== %s. %s\n   proves: %s\n' "$number" "$1" "$2"
}
ok() { printf '   ok: %s\n' "$*"; }
fail() {
  printf '   FAILED: %s\n' "$*" >&2
  exit 1
}
shown() { sed 's/^/   | /'; }

how_to_enter() {
  local guest
  echo
  echo "Everything is left running in $dir."
  for guest in "${GUESTS[@]}"; do
    echo "  guest $guest, VNI ${VNI[$guest]}, ${IP[$guest]}:  tests/guest/vm --dir $dir console $guest    (leave with Ctrl-])"
  done
  echo "  one command in a guest:  tests/guest/vm --dir $dir exec a ping -c 3 10.0.0.2"
  echo "  the client:              $BIN/butterfly nic show a -e ipc://$dir/api"
  echo "  end all of it:           tests/demo/demo.sh --stop"
}

# ---- 1

step "One daemon" "butterflyd starts, answers its API, and has no network yet"
daemon_start "$dir"
[ "$(bf nic list | wc -l)" -eq 0 ] || fail "a fresh daemon has vnics"
ok "butterflyd (process $DAEMON_PID) answers on ipc://$dir/api"

# ---- 2

step "Four vnics" "a request each gives a VM its port; the same MAC and IP may live in two networks"
for guest in "${GUESTS[@]}"; do
  add=(nic add --id "$guest" --mac "${MAC[$guest]}" --vni "${VNI[$guest]}" --ip "${IP[$guest]}" --bypass-filtering)
  [ "$guest" != c ] || add+=(--type VHOST_USER_CLIENT)
  path=$(bf "${add[@]}")
  [ "$path" = "$dir/qemu-vhost-$guest" ] || fail "nic add $guest answered \"$path\", not $dir/qemu-vhost-$guest"
  say "   butterfly ${add[*]}"
done
[ "$(bf nic list | tr '\n' ' ')" = "a b c d " ] || fail "nic list: $(bf nic list | tr '\n' ' ')"
ok "vnics a, b, c in VNI 42 and d in VNI 43, which has b's addresses"

# ---- 3

accel=$("$TESTS/guest/accel.sh")
step "Four guests boot" "stock Linux drivers attach, in both vhost-user socket roles"
for guest in "${GUESTS[@]}"; do
  options=(--socket "$dir/qemu-vhost-$guest" --mac "${MAC[$guest]}" --ip "${IP[$guest]}/24" --accel "$accel")
  [ "$guest" != c ] || options+=(--serve) # blocks at start until butterflyd has connected
  [ -z "$KEEP" ] || options+=(--limit 0)
  vm start "$guest" "${options[@]}" --no-wait
done
vm wait --all --timeout 90
for guest in "${GUESTS[@]}"; do
  wait_for 5 attached "$guest" || fail "butterfly does not see $guest attached"
  ok "$guest is up (QEMU $accel), butterflyd is the socket's $(nic_field "$guest" 'n["role"]')"
done

# ---- 4

step "Ping inside the network" "vnics of one VNI reach each other, by ARP and by ICMP, in every direction"
for pair in a:b b:c c:a; do
  ping_all "${pair%:*}" "${IP[${pair#*:}]}" || fail "${pair%:*} does not reach ${pair#*:}"
  ok "${pair%:*} to ${pair#*:}: 3 of 3 answered"
done

# ---- 5

# tcp FROM TO: Mbit/s, and the average size of the frames that the receiver got.
tcp() {
  local before_bytes before_packets bytes packets
  before_bytes=$(statistic "$2" rx_bytes) before_packets=$(statistic "$2" rx_packets)
  mbit=$(throughput "$1" "${IP[$2]}") || fail "no TCP from $1 to $2"
  bytes=$(($(statistic "$2" rx_bytes) - before_bytes)) packets=$(($(statistic "$2" rx_packets) - before_packets))
  [ "$packets" -gt 0 ] || fail "$2 received nothing"
  average=$((bytes / packets))
}
offloads() { # offloads on|off GUEST...
  local guest state=$1
  shift
  for guest in "$@"; do
    vm exec "$guest" "ethtool -K eth0 tx $state sg $state tso $state gso $state gro $state" >/dev/null ||
      fail "ethtool does not switch $guest's offloads $state"
  done
}

step "TCP with offloads" "guests hand each other whole 64 KiB segments with partial checksums; nothing is damaged"
for guest in b c; do iperf_server "$guest" || fail "no iperf3 server in $guest"; done
[[ $(vm exec a 'ethtool -k eth0') == *"tcp-segmentation-offload: on"* ]] || fail "a was not offered segmentation offload"
tcp a b
with=$mbit
[ "$average" -gt 1600 ] || fail "frames of $average bytes on average: the switch cut up the segments"
ok "a to b: $mbit Mbit/s, $average bytes per frame on average"
tcp a c
ok "a to c, the other socket role: $mbit Mbit/s, $average bytes per frame"
transfer a b "${IP[b]}" 8 || fail "8 MiB from a arrived damaged or not at all at b"
ok "8 MiB of random bytes from a to b: the same SHA-256 on both ends"

step "TCP without offloads" "frames of ordinary size with complete checksums, too"
offloads off a b
tcp a b
[ "$average" -le 1514 ] || fail "frames of $average bytes on average, though the guests segment themselves"
ok "a to b: $mbit Mbit/s (with offloads: $with), $average bytes per frame on average"
transfer b a "${IP[a]}" 4 || fail "4 MiB from b arrived damaged or not at all at a"
ok "4 MiB of random bytes from b to a: the same SHA-256 on both ends"
offloads on a b

# ---- 6

# Everything a guest got, twice: what its own interface counted, what the switch counted for it.
got() { echo "$(statistic "$1" rx_packets) $(nic_field "$1" 'n["out_packets"]')"; }

step "Nothing crosses networks" "not unicast to an address that both networks have, not a broadcast, in neither direction"
before_d=$(got d)
before_b=$(statistic b rx_packets)
ping_all a "${IP[b]}" 5 || fail "a does not reach b"
unanswered a 'arping -I eth0 -c 3 -w 5 10.0.0.99' || fail "somebody answered for 10.0.0.99, which nobody has"
[ $(($(statistic b rx_packets) - before_b)) -ge 8 ] || fail "b did not see the pings and broadcasts of its own network"
[ "$(got d)" = "$before_d" ] || fail "d (VNI 43) received frames of VNI 42: $before_d, then $(got d)"
ok "5 pings to ${IP[b]} and 3 broadcasts by a: b saw them all; d, with the same MAC and IP, not one frame"
before=$(for guest in a b c; do got "$guest"; done)
sent=$(nic_field d 'n["in_packets"]')
unanswered d "ping -c 3 -W 1 ${IP[a]}" || fail "d (VNI 43) got an answer from a (VNI 42)"
unanswered d "arping -b -I eth0 -c 3 -w 5 ${IP[a]}" || fail "d (VNI 43) got an ARP answer from a (VNI 42)"
sent=$(($(nic_field d 'n["in_packets"]') - sent))
[ "$sent" -ge 3 ] || fail "the switch received only $sent frames from d: that step proves nothing"
[ "$(for guest in a b c; do got "$guest"; done)" = "$before" ] || fail "VNI 42 received frames of VNI 43"
ok "d sent $sent frames looking for ${IP[a]}: a, b and c received none, d no answer"

# ---- 7

step "A guest dies and comes back" "a crash of QEMU detaches one vnic, disturbs nobody, and the socket takes the next one"
vm exec a "ping -i 0.2 ${IP[c]} >/tmp/ping 2>&1 & echo \$! >/tmp/ping.pid"
vm kill b
wait_for 5 detached b || fail "butterfly does not notice that b's QEMU was killed"
ok "b killed (SIGKILL); nic show: detached, $(nic_field b 'n["last_detach_reason"]')"
unanswered a "ping -c 2 -W 1 ${IP[b]}" || fail "somebody answers for b while it is dead"
vm restart b --timeout 90
wait_for 5 attached b || fail "b is up but not attached"
ping_all a "${IP[b]}" 5 || fail "a does not reach b after its restart"
iperf_server b || fail "no iperf3 server in b"
tcp a b
ok "b is back on the same socket: 5 of 5 pings, TCP $mbit Mbit/s, attached $(nic_field b 'n["attach_count"]') times"
# shellcheck disable=SC2016 # the guest's shell expands it
lost=$(vm exec a 'kill -INT $(cat /tmp/ping.pid); usleep 200000; tail -3 /tmp/ping')
[[ $lost == *" 0% packet loss"* ]] || fail "a's pings to c suffered meanwhile: $lost"
ok "a and c went on meanwhile: $(grep -o '.*packet loss' <<<"$lost")"

# ---- 8

step "What an operator sees" "state, counters and the graph of what runs here"
say "   butterfly status"
bf status | tee "$dir/status" | shown
say "   butterfly nic show b"
bf nic show b | shown
say "   butterfly fdb 42"
bf fdb 42 | shown
sed -n '/^strict graph/,/^}/p' "$dir/status" >"$OUT/graph.dot"
for node in switch:switch-42 vhost:vhost-{a,b,c,d}; do
  grep -qF "\"$node\" [" "$OUT/graph.dot" || fail "the graph does not show $node"
done
for format in svg png; do
  dot -T"$format" -o "$OUT/graph.$format" "$OUT/graph.dot" || fail "graphviz does not draw the graph"
  [ -s "$OUT/graph.$format" ] || fail "the picture of the graph is empty"
done
ok "the graph as a picture: $OUT/graph.svg and graph.png"
alive "$DAEMON_PID" || fail "butterflyd is gone"

# ---- 9

if [ -z "$KEEP" ]; then
  step "Everything ends" "vnics are deleted, sockets go, the daemon stops when asked"
  vm stop --all
  bf nic del a b c d
  [ "$(bf nic list | wc -l)" -eq 0 ] || fail "nics are left"
  for guest in a b d; do [ ! -e "$dir/qemu-vhost-$guest" ] || fail "$guest's socket is left"; done
  bf shutdown
  wait_for 5 gone "$DAEMON_PID" || fail "butterflyd goes on 5 s after butterfly shutdown"
  ok "nothing left"
fi
finished=1
