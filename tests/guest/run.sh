#!/bin/bash
# run.sh [PATTERN]: scenarios with real QEMU guests on butterflyd: both socket roles, ring features and offloads on and
# off and unlike on both ends, crashes of either side, filtered vnics. All scenarios, or those whose name matches.
# Every transfer is compared by its SHA-256.
set -euo pipefail
# shellcheck source=../lib/common.sh
. "$(dirname "$0")/../lib/common.sh"
# shellcheck source=../lib/daemon.sh
. "$TESTS/lib/daemon.sh"
# shellcheck source=lib.sh
. "$TESTS/guest/lib.sh"

PATTERN=${1:-.}
LOGS=$BUILD/test/guests
need_programs butterflyd butterfly
"$TESTS/guest/build.sh"
accel=$("$TESTS/guest/accel.sh")
mkdir -p "$LOGS"

dir=$(mktemp -d /tmp/bfly-vm.XXXXXX)
export VM_DIR=$dir
cleanup() {
  trap '' INT TERM HUP
  vm stop --all 2>/dev/null || true
  end "$(cat "$dir/daemon.pid" 2>/dev/null || true)" # a scenario's that could not end it itself
  pkill -KILL -f -- "--hold-alone $dir/" 2>/dev/null || true
  rm -rf "$dir"
}
trap cleanup EXIT
trap 'exit 130' INT TERM HUP

fail() {
  say "    FAILED: $*"
  exit 1
}

# ---- What scenarios are made of

add_nic() { # add_nic NIC NUMBER ROLE: bypass vnics in VNI 42; ROLE is butterflyd's
  local add=(nic add --id "$1" --mac "52:54:00:00:00:0$2" --vni 42 --bypass-filtering)
  [ "$3" = server ] || add+=(--type VHOST_USER_CLIENT)
  bf "${add[@]}" >/dev/null
}
boot() { # boot NIC NUMBER ROLE VIRTIO-OPTIONS [VM-OPTIONS...]
  local options=(--socket "$dir/qemu-vhost-$1" --mac "52:54:00:00:00:0$2" --ip "10.0.0.$2/24" --accel "$accel"
    --limit 300 --virtio "$4")
  [ "$3" = server ] || options+=(--serve)
  vm start "$1" "${options[@]}" --no-wait "${@:5}"
}
pair() { # pair ROLE-A VIRTIO-A ROLE-B VIRTIO-B: two guests, up and attached
  add_nic a 1 "$1"
  add_nic b 2 "$3"
  boot a 1 "$1" "$2"
  boot b 2 "$3" "$4"
  up a b
}
up() {
  vm wait "$@" --timeout 90
  local nic
  for nic in "$@"; do wait_for 5 attached "$nic" || fail "$nic is up, but butterfly does not see it attached"; done
}
talk() { # pings of several sizes and a verified transfer each way between guests a and b
  local size
  for size in 0 56 1472 4000; do
    ping_all a 10.0.0.2 3 "-s $size" || fail "a does not reach b with pings of $size bytes"
  done
  transfer a b 10.0.0.2 8 || fail "8 MiB from a to b did not arrive undamaged"
  transfer b a 10.0.0.1 8 || fail "8 MiB from b to a did not arrive undamaged"
}
negotiated() { # negotiated NIC FEATURE: True or False
  nic_field "$1" "'$2' in n['features_negotiated']"
}
expect_feature() { # expect_feature NIC FEATURE True|False: is the case about what it says?
  [ "$(negotiated "$1" "$2")" = "$3" ] || fail "$1: $2 negotiated should be $3: $(nic_field "$1" 'n["features_negotiated"]')"
}
fast() { # fast MBIT: TCP from a to b reaches that much; a segment dropped at each turn would crawl
  local mbit
  iperf_server b
  mbit=$(throughput a 10.0.0.2) || fail "no TCP from a to b"
  [ "$mbit" -ge "$1" ] || fail "TCP from a to b crawls: $mbit Mbit/s, $1 are little"
  say "    TCP from a to b: $mbit Mbit/s"
}
no_drop_but() { # no_drop_but REASONS: every drop reason of both vnics is one of these
  local nic other
  for nic in a b; do
    other=$(nic_field "$nic" "' '.join(f'{k}={v}' for k, v in d.items() if v and k not in '$1'.split())")
    [ -z "$other" ] || fail "drops at $nic that nothing here asks for: $other"
  done
}

NO_OFFLOADS=csum=off,gso=off,guest_csum=off,guest_tso4=off,guest_tso6=off,guest_ecn=off,guest_ufo=off
NO_OFFLOADS+=,host_tso4=off,host_tso6=off,host_ecn=off,host_ufo=off
NO_GUEST_TSO=guest_tso4=off,guest_tso6=off,guest_ecn=off,guest_ufo=off

# ---- Scenarios

# shellcheck source=filtered.sh
. "$TESTS/guest/filtered.sh"
# shellcheck source=routed.sh
. "$TESTS/guest/routed.sh"
# shellcheck source=dhcp.sh
. "$TESTS/guest/dhcp.sh"

server_role() {
  pair server '' server ''
  expect_feature a mrg-rxbuf True
  expect_feature a host-tso4 True
  talk
  fast 100
  no_drop_but ring-full
}
client_role() {
  pair client '' client ''
  talk
  fast 100
  no_drop_but ring-full
}
mixed_roles_ipv6() {
  local guest number=0
  pair client '' server ''
  for guest in a b; do
    number=$((number + 1))
    vm exec $guest "cd /proc/sys/net/ipv6/conf/eth0; echo 0 >accept_dad; echo 0 >disable_ipv6
      ip -6 addr add fd00::$number/64 dev eth0"
  done
  ping_all a fd00::2 5 -6 || fail "a does not reach b over IPv6"
  transfer a b fd00::2 8 || fail "8 MiB over IPv6 did not arrive undamaged"
}
no_mergeable_buffers() {
  pair server mrg_rxbuf=off server mrg_rxbuf=off
  expect_feature a mrg-rxbuf False
  talk
  fast 50
  no_drop_but ring-full
}
mergeable_on_one_end() {
  pair server mrg_rxbuf=off client ''
  expect_feature a mrg-rxbuf False
  expect_feature b mrg-rxbuf True
  talk
  no_drop_but ring-full
}
no_offloads() {
  pair server $NO_OFFLOADS server $NO_OFFLOADS
  expect_feature a csum False
  expect_feature b guest-csum False
  talk
  fast 20
  no_drop_but ring-full
}
# a hands over large segments with partial checksums, b takes neither: what b gets must be complete all the same.
segments_to_a_guest_without() {
  pair server '' server "$NO_GUEST_TSO,guest_csum=off"
  expect_feature a host-tso4 True
  expect_feature b guest-tso4 False
  talk
  fast 20
}
checksums_to_a_guest_without() {
  pair server host_tso4=off,host_tso6=off,host_ecn=off server "$NO_GUEST_TSO,guest_csum=off"
  expect_feature a csum True
  expect_feature b guest-csum False
  talk
  fast 20
  no_drop_but ring-full
}
# A guest with several pairs of queues uses more and fewer of them under traffic, and goes on when the daemon dies.
several_queues() {
  local count
  daemon_stop
  daemon_start "$dir" --state-dir "$dir/state"
  add_nic a 1 server
  add_nic b 2 client
  boot a 1 server '' --queues 4 --cpus 2
  boot b 2 client '' --queues 16
  up a b
  expect_feature a mq True
  expect_feature b mq True
  talk
  vm exec a 'ethtool -l eth0 | grep -A 9 ^Current | grep "Combined:.2" || ethtool -l eth0'
  iperf_server b
  vm exec a 'ethtool -L eth0 combined 4; iperf3 -c 10.0.0.2 -P 6 -t 300 >/dev/null 2>/tmp/iperf.error &'
  for count in 1 4 2 3 1 4; do
    vm exec a "ethtool -L eth0 combined $count"
    vm exec b "ethtool -L eth0 combined $((5 - count))"
    wait_for 5 uses a "$count" || fail "a uses $count pairs, and nic show says: $(bf nic show a)"
    reaches_beside_load || fail "a does not reach b with $count pairs"
  done
  for count in 2 1; do
    daemon_kill
    daemon_start "$dir" --state-dir "$dir/state"
    wait_for 5 uses a 4 || fail "a uses four pairs, and the next daemon's nic show says: $(bf nic show a)"
    reaches_beside_load || fail "a does not reach b after a death"
  done
  vm exec a 'pidof iperf3 >/dev/null; cat /tmp/iperf.error' || fail "connections ended"
  vm exec a 'ethtool -S eth0' | grep -E "[rt]x_queue_[0-3]_packets:" | sed 's/^ */    /'
  transfer b a 10.0.0.1 8 || fail "8 MiB from b to a did not arrive undamaged"
  bf shutdown >/dev/null
  daemon_forget
  wait_for 10 no_holder || fail "the holder outlasts a shutdown"
  rm -rf "$dir/state"
  daemon_start "$dir"
}
# reaches_beside_load: does each echo request of a get its answer from b, but for those that a full ring may have lost? The
# load fills rings, above all that of a guest which turns to one pair from four; a pair that is dead answers nothing.
reaches_beside_load() {
  local before
  before=$(full_rings)
  ping_all a 10.0.0.2 && return
  say "    pings were lost; frames that found a ring full: $before, then $(full_rings)"
  [ "$(full_rings)" -gt "$before" ] && wait_for 10 ping_all a 10.0.0.2 1
}
full_rings() { echo $(("$(nic_field a 'd.get("ring-full", 0)')" + "$(nic_field b 'd.get("ring-full", 0)')")); }
uses() { [ "$(nic_field "$1" "sum(q['enabled'] for q in n['queues'])")" = $((2 * $2)) ]; }
jumbo_frames() {
  local guest
  pair server '' server mrg_rxbuf=off
  for guest in a b; do vm exec $guest 'ip link set eth0 mtu 9000; ethtool -K eth0 tso off gso off'; done
  ping_all a 10.0.0.2 5 '-s 8900' || fail "9 KB frames do not arrive"
  transfer a b 10.0.0.2 8 || fail "8 MiB in 9 KB frames did not arrive undamaged"
}
# Three lives of one guest, killed while a third party floods it and it sends itself.
killed_under_traffic() {
  local life
  pair server '' server ''
  iperf_server a
  for life in 1 2 3; do
    vm exec b 'iperf3 -c 10.0.0.1 -t 60 >/dev/null 2>&1 & iperf3 -c 10.0.0.1 -u -b 50M -R -t 60 >/dev/null 2>&1 & sleep 1'
    vm kill b
    wait_for 5 detached b || fail "life $life: b was killed, and butterfly still shows it attached"
    unanswered a 'ping -c 1 -W 1 10.0.0.2' || fail "life $life: something answers for a dead b"
    vm restart b --timeout 90
    up b
    back a 10.0.0.2 || fail "life $life: b came back, a does not reach it"
    vm exec a 'killall iperf3; until ! pidof iperf3 >/dev/null; do usleep 20000; done'
    iperf_server a
  done
  transfer b a 10.0.0.1 8 || fail "8 MiB from the last b did not arrive undamaged"
  [ "$(nic_field b 'n["attach_count"]')" = 4 ] || fail "attach_count of b is $(nic_field b 'n["attach_count"]'), not 4"
}
# The daemon is killed. QEMU with reconnect=1 comes back to its socket by itself, QEMU that owns its socket is found again;
# the configuration is lost and declared again.
daemon_killed() {
  local round
  add_nic a 1 server
  add_nic b 2 client
  boot a 1 server '' --reconnect 1
  boot b 2 client ''
  up a b
  ping_all a 10.0.0.2 || fail "a does not reach b before the daemon is killed"
  for round in 1 2; do
    daemon_kill
    daemon_start "$dir"
    [ "$(bf nic list | wc -l)" -eq 0 ] || fail "round $round: a fresh daemon has vnics"
    add_nic a 1 server
    add_nic b 2 client
    wait_for 10 attached a || fail "round $round: a's QEMU (reconnect=1) did not come back"
    wait_for 10 attached b || fail "round $round: b's QEMU (its own socket) was not found again"
    back a 10.0.0.2 || fail "round $round: a does not reach b after the daemon's restart"
    transfer a b 10.0.0.2 4 || fail "round $round: 4 MiB did not arrive undamaged"
  done
}
# The daemon has a state directory, and is killed under traffic. QEMU of either role, with reconnect=1 and without, notices
# nothing: no connection ends, no link goes down, TCP goes on, and what was declared is still there.
daemon_killed_with_state() {
  local round nic links lost
  daemon_stop
  daemon_start "$dir" --state-dir "$dir/state"
  add_nic a 1 server
  add_nic b 2 client
  add_nic c 3 server
  boot a 1 server ''
  boot b 2 client ''
  boot c 3 server '' --reconnect 1
  up a b c
  for nic in b c; do ping_all a "10.0.0.$([ $nic = b ] && echo 2 || echo 3)" || fail "a does not reach $nic"; done
  links=$(link_changes a b c)
  vm exec a 'ping -i 0.05 10.0.0.2 >/tmp/ping.b 2>&1 & ping -i 0.05 10.0.0.3 >/tmp/ping.c 2>&1 &'
  iperf_server b
  vm exec c 'iperf3 -c 10.0.0.2 -t 300 >/dev/null 2>/tmp/iperf.error &'
  for round in 1 2 3; do
    sleep 1
    daemon_kill
    daemon_start "$dir" --state-dir "$dir/state"
    # Another program holds, too, and nobody notices.
    "$BIN/butterflyd" --upgrade-holder "$dir/state" || fail "round $round: the holder stays as it is"
    [ "$(bf nic list | wc -l)" -eq 3 ] || fail "round $round: vnics are gone: $(bf nic list)"
    for nic in a b c; do attached $nic || fail "round $round: $nic is not attached"; done
    ping_all a 10.0.0.2 || fail "round $round: a does not reach b"
    transfer a b 10.0.0.2 4 || fail "round $round: 4 MiB did not arrive undamaged"
  done
  vm exec c 'pidof iperf3 >/dev/null; cat /tmp/iperf.error' || fail "a TCP connection did not outlast the deaths"
  vm exec a 'killall -INT ping; sleep 0.3'
  for nic in b c; do
    lost=$(vm exec a "tail -3 /tmp/ping.$nic" | sed -n 's/^\([0-9]*\) .* \([0-9]*\) packets received.*/\1-\2/p')
    say "    of pings to $nic, across three deaths, were lost: $((lost))"
    [ $((lost)) -le 12 ] || fail "too many pings to $nic were lost: $lost"
  done
  [ "$(link_changes a b c)" = "$links" ] || fail "links went down: $links before, $(link_changes a b c) now"
  # The record goes on: those of the first attachment are in it, if they were written down.
  [ "$(bf events | grep -c guest-attached)" -le 3 ] || fail "front ends came again"
  ! bf events | grep guest-detached || fail "front ends went"
  # A guest that boots anew finds the same socket.
  vm restart a --timeout 90
  up a
  back a 10.0.0.2 || fail "a came back and does not reach b"
  bf shutdown >/dev/null
  daemon_forget
  wait_for 10 no_holder || fail "the holder outlasts a shutdown"
  rm -rf "$dir/state"
  daemon_start "$dir"
}
# Packed rings of real drivers, beside a guest with split ones, both ways. The daemon dies under traffic, and its successor
# finds where they stand. A guest that boots anew begins at the beginning.
packed_rings() {
  local round nic
  daemon_stop
  daemon_start "$dir" --state-dir "$dir/state"
  add_nic a 1 server
  add_nic b 2 client
  add_nic c 3 server
  boot a 1 server packed=on --queues 2 --cpus 2
  boot b 2 client packed=on,indirect_desc=off
  boot c 3 server ''
  up a b c
  for nic in a b; do expect_feature $nic ring-packed True; done
  expect_feature c ring-packed False
  talk
  fast 100
  iperf_server b
  vm exec c 'iperf3 -c 10.0.0.2 -t 300 >/dev/null 2>/tmp/iperf.error &'
  for round in 1 2 3; do
    sleep 1
    daemon_kill
    daemon_start "$dir" --state-dir "$dir/state"
    for nic in a b c; do attached $nic || fail "round $round: $nic is not attached"; done
    ping_all a 10.0.0.2 || fail "round $round: a does not reach b"
    transfer a b 10.0.0.2 4 || fail "round $round: 4 MiB did not arrive undamaged"
    transfer c a 10.0.0.1 4 || fail "round $round: 4 MiB did not arrive undamaged at a"
  done
  vm exec c 'pidof iperf3 >/dev/null; cat /tmp/iperf.error' || fail "a TCP connection did not outlast the deaths"
  for nic in a b; do
    [ "$(nic_field $nic "all(q['packed'] and not q['broken'] for q in n['queues'] if q['running'])")" = True ] ||
      fail "the rings of $nic are not packed, or broken: $(bf nic show $nic)"
  done
  vm restart a --timeout 90
  up a
  back a 10.0.0.2 || fail "a came back and does not reach b"
  transfer b a 10.0.0.1 4 || fail "4 MiB did not arrive undamaged after a's restart"
  bf shutdown >/dev/null
  daemon_forget
  wait_for 10 no_holder || fail "the holder outlasts a shutdown"
  rm -rf "$dir/state"
  daemon_start "$dir"
}
link_changes() { local nic; for nic in "$@"; do vm exec "$nic" 'cat /sys/class/net/eth0/carrier_changes'; done | tr '\n' ' '; }
no_holder() { ! pgrep -f -- "--hold-alone $dir/" >/dev/null; }
vnic_replaced_under_traffic() {
  pair server '' client ''
  vm exec a 'ping -i 0.05 10.0.0.2 >/tmp/ping 2>&1 &'
  bf nic add --id b --mac 52:54:00:00:00:02 --vni 43 --bypass-filtering --type VHOST_USER_CLIENT >/dev/null
  wait_for 10 attached b || fail "b did not come back to its vnic in another VNI"
  unanswered a 'ping -c 2 -W 1 10.0.0.2' || fail "a in VNI 42 reaches b in VNI 43"
  bf nic add --id b --mac 52:54:00:00:00:02 --vni 42 --bypass-filtering --type VHOST_USER_CLIENT >/dev/null
  wait_for 10 attached b || fail "b did not come back to VNI 42"
  back a 10.0.0.2 || fail "a does not reach b after its return to VNI 42"
}
# A machine whose memory is not shared is told of; one whose memory is, is not, though its interface is down.
memory_not_shared() {
  local share
  add_nic a 1 server
  add_nic b 2 server
  boot b 2 server ''
  up b
  for share in off none; do
    boot a 1 server '' --share $share
    vm wait a --timeout 90
    wait_for 10 troubled a || fail "share=$share, and nic show says: $(bf nic show a)"
    bf events a | grep 'queue-trouble .*share=on' >/dev/null || fail "share=$share, and events say: $(bf events a)"
    vm stop a
  done
  [ "$(grep -c '^<WARNING> nic a: its memory .*share=on' "$DAEMON_DIR/butterflyd.log")" = 2 ] || fail "the log does not tell of both"
  [ "$(nic_field b 'n["trouble"]')" = None ] || fail "b shares its memory, and nic show says: $(bf nic show b)"
  boot a 1 server ''
  up a
  ping_all a 10.0.0.2 || fail "a does not reach b with shared memory"
  [ "$(nic_field a 'n["trouble"]')" = None ] || fail "a shares its memory now, and nic show says: $(bf nic show a)"
}
troubled() { nic_field "$1" 'n["trouble"]' | grep 'its memory .*share=on' >/dev/null; }

# ---- Running them

passed=0 failures=()
run() { # each in a subshell: a failure ends the scenario, not the run
  local name=$1 begun=$SECONDS
  [[ $name =~ $PATTERN ]] || return 0
  say "$name"
  rm -rf "${dir:?}"/*
  set +e # the subshell has its own: behind && or || bash would switch it off inside
  (
    set -e
    # Guests and daemon belong to the scenario; its own trap ends them.
    trap 'vm stop --all 2>/dev/null || true; daemon_stop || exit 1' EXIT
    daemon_start "$dir"
    "$name"
    alive "$DAEMON_PID" || fail "butterflyd is gone"
  )
  status=$?
  set -e
  if [ "$status" -eq 0 ]; then
    passed=$((passed + 1))
    say "    ok, $((SECONDS - begun)) s"
  else
    failures+=("$name")
    mkdir -p "$LOGS/$name"
    cp "$dir"/*.log "$dir"/*.qemu "$LOGS/$name/" 2>/dev/null || true
  fi
}
for scenario in server_role client_role mixed_roles_ipv6 no_mergeable_buffers mergeable_on_one_end no_offloads \
  segments_to_a_guest_without checksums_to_a_guest_without several_queues jumbo_frames killed_under_traffic daemon_killed \
  daemon_killed_with_state packed_rings vnic_replaced_under_traffic memory_not_shared changes_under_tcp port_sweep routed \
  dhcp; do
  run $scenario
done

[ $((passed + ${#failures[@]})) -gt 0 ] || die "no scenario matches $PATTERN"
for name in "${failures[@]}"; do
  say "failed: $name    repeat with: tests/guest/run.sh '^$name\$'    logs: $LOGS/$name"
done
say "$passed passed, ${#failures[@]} failed"
[ ${#failures[@]} -eq 0 ]
