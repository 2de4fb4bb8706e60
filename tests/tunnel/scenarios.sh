# Sourced by run.sh: what happens to networks that span hosts.
# shellcheck shell=bash

# three HOSTS' OPTIONS...: a, b and c on three hosts, over IPv4 in one network.
three() {
  local number guest
  wire_add
  for number in 1 2 3; do uplink_daemon "h$number" "$number" ipv4 xdp "$@"; done
  number=0
  for guest in a b c; do
    number=$((number + 1))
    vnic "h$number" "$guest"
  done
}
# heard_once FROM RECEIVER...: of three broadcasts, each of them gets three frames. Kernels that know nobody have nothing to ask
# meanwhile.
heard_once() {
  local from=$1 guest got before=()
  shift
  wait_for 10 hears_nothing a b c || fail "a, b and c, which are not used, go on hearing something"
  for guest in a b c; do vm exec "$guest" 'ip -4 neigh flush dev eth0; ip -6 neigh flush dev eth0'; done
  for guest in "$@"; do before+=("$(statistic "$guest" rx_packets)"); done
  unanswered "$from" 'arping -b -I eth0 -c 3 -w 3 10.0.0.99' || fail "somebody answers for 10.0.0.99"
  for guest in "$@"; do
    got=$(($(statistic "$guest" rx_packets) - before[0]))
    [ "$got" -eq 3 ] || fail "$guest received $got frames of three broadcasts of $from"
    before=("${before[@]:1}")
  done
}
# triangle: each of a, b, c reaches the others, and the daemons know who is where.
triangle() {
  local pair
  for pair in a:b b:c c:a; do
    wait_for 10 ping_all "${pair%:*}" "$(ip4_of "${pair#*:}")" 1 || fail "${pair%:*} does not reach ${pair#*:}"
    ping_all "${pair%:*}" "$(ip4_of "${pair#*:}")" || fail "pings from ${pair%:*} to ${pair#*:} are lost"
  done
  transfer a c "$(ip4_of c)" 4 || fail "4 MiB from a to c did not arrive undamaged"
  transfer c b "$(ip4_of b)" 4 || fail "4 MiB from c to b did not arrive undamaged"
  for pair in a:h1 b:h2 c:h3; do quiet "${pair#*:}" "${pair%:*}" too-big; done
  [ "$(learnt_at h1 b)" = 192.0.2.2 ] || fail "h1 does not know that b is on h2: $(on h1 bf tunnels)"
  [ "$(learnt_at h1 c)" = 192.0.2.3 ] || fail "h1 does not know that c is on h3: $(on h1 bf tunnels)"
  heard_once a b c
  heard_once c a b
}
# learnt_at HOST GUEST: on which host that host believes a guest.
learnt_at() { on "$1" report tunnels "' '.join(x['peer'] for x in r['learnt'] if x['mac'] == '$(mac_of "$2")')"; }

three_hosts_groups() {
  three
  triangle
}
# Named one after the other while they run; then one of them is taken back.
three_hosts_peers() {
  local number other
  three --strict-peers
  for number in 1 2 3; do
    for other in 1 2 3; do
      [ "$number" -eq "$other" ] || on "h$number" bf peer add "192.0.2.$other"
    done
  done
  triangle
  on h1 bf peer del 192.0.2.2
  unanswered a "ping -c 2 -W 1 $(ip4_of b)" || fail "h1 hears h2, which is no peer of its any more"
  [ "$(drops_of h1 unknown-peer)" -gt 0 ] || fail "nothing of h2 was dropped as unknown-peer"
  ping_all a "$(ip4_of c)" || fail "a does not reach c any more"
}

# Guest b moves during a connection that rules admit: its vnic is deleted on one host, added on the other, and QEMU, which owns the
# socket, is found there. Each way: what b sends, and what a sends to b once b has said where it is, as a migration does.
vnic_moves() {
  local host other n
  wire_add
  for n in 1 2 3; do uplink_daemon "h$n" "$n" ipv4 xdp; done
  for n in 1 2 3; do
    on "h$n" bf sg rule add moving --ip-proto tcp --port 7000 --sg-members moving >/dev/null
    on "h$n" bf sg member add moving 10.0.0.1 10.0.0.2 >/dev/null
  done
  filtered h1 a moving
  filtered h2 b moving
  host=h2 other=h3
  for n in b:a a:b; do
    paced_transfer "${n%:*}" "${n#*:}" "$host" "$other"
    say "    from ${n%:*} to ${n#*:} while b moved from $host to $other"
    host=h3 other=h2
  done
}
# A live migration, by QEMU: the process on h3 goes on with the rings that the one on h2 leaves. Nobody but the switch says where the
# guest is now: it has no chance to speak before a reaches it. Filtered, as in a cloud.
live_migration() {
  local n said lost
  wire_add
  for n in 1 2 3; do uplink_daemon "h$n" "$n" ipv4 xdp; done
  for n in 1 2 3; do
    on "h$n" bf sg rule add moving --ip-proto icmp --sg-members moving >/dev/null
    on "h$n" bf sg rule add moving --ip-proto tcp --port 7000 --sg-members moving >/dev/null
    on "h$n" bf sg member add moving 10.0.0.1 10.0.0.2 >/dev/null
  done
  filtered h1 a moving
  on h2 bf nic add --id b --mac "$(mac_of b)" --vni 42 --type VHOST_USER_CLIENT --path "$VM_DIR/from.sock" \
    --ip 10.0.0.2 --enable-antispoof --sg moving >/dev/null
  on h3 bf nic add --id b --mac "$(mac_of b)" --vni 42 --type VHOST_USER_CLIENT --path "$VM_DIR/to.sock" \
    --ip 10.0.0.2 --enable-antispoof --sg moving >/dev/null
  vm start from --socket "$VM_DIR/from.sock" --serve --mac "$(mac_of b)" --ip 10.0.0.2/24 --limit 300
  vm start to --socket "$VM_DIR/to.sock" --serve --mac "$(mac_of b)" --limit 300 --incoming --no-wait
  wait_for 10 ping_all a 10.0.0.2 1 || fail "a does not reach b before it moves"
  [ "$(learnt_at h1 b)" = 192.0.2.2 ] || fail "h1 does not know that b is on h2: $(on h1 bf tunnels)"
  [ "$(on h3 nic_field b 'n["announced"]')" = 0 ] || fail "h3 has announced a guest that is not there"
  vm exec a 'ping -i 0.2 -c 60 -W 1 10.0.0.2 >/tmp/pings 2>&1 &'
  vm migrate from to || fail "QEMU did not migrate b"
  vm stop from
  wait_for 3 is_learnt h1 b 192.0.2.3 || fail "h1 was not told that b is on h3: $(on h1 bf tunnels)"
  [ "$(on h3 nic_field b 'n["announced"]')" -gt 0 ] || fail "h3 announced nothing"
  ping_all a 10.0.0.2 || fail "a does not reach b where it is now"
  vm exec --timeout 30 a 'while pidof ping >/dev/null; do usleep 100000; done'
  said=$(vm exec a 'cat /tmp/pings')
  lost=$(sed -n 's/^\([0-9]*\) packets transmitted, \([0-9]*\) .*/\1 \2/p' <<<"$said" | awk '{ print $1 - $2 }')
  say "    of 60 pings, 0.2 s apart, $lost were lost while b moved"
  [ "${lost:-60}" -le 25 ] || fail "the move took too long: $said"
  transfer a to 10.0.0.2 2 || fail "2 MiB from a to b, where it is now, did not arrive undamaged"
  quiet h3 b too-big
  vm stop to
}
# The same with `nic export` and `nic import`, while two connections run that b opened: a sends on one, which nothing but b's session
# lets in, and b on the other. Either while QEMU has stopped b on h2 and not started it on h3, or before the migration (when the
# session's numbers are old) and once more after it.
exported_while_stopped() { exported "$(export_b)" '' --tcp-pickup 0; }
exported_before() { exported '' "$(export_b)"; }
export_b() {
  echo "$BIN/butterfly nic export b --to 192.0.2.3 -e ipc://$HOSTS/h2/api | $BIN/butterfly nic import -e ipc://$HOSTS/h3/api"
}
exported() { # exported WHILE-STOPPED BEFORE-AND-AFTER [OPTION-OF-H3...]
  local n while=$1 around=$2 downtime sent pings lost still stalled passed before
  wire_add
  for n in 1 2; do uplink_daemon "h$n" "$n" ipv4 xdp; done
  uplink_daemon h3 3 ipv4 xdp "${@:3}"
  for n in 1 2 3; do on "h$n" bf sg rule add pings --ip-proto icmp --cidr 10.0.0.0/24 >/dev/null; done
  on h1 bf sg rule add pings --ip-proto tcp --port-start 7000 --port-end 7001 --cidr 10.0.0.0/24 >/dev/null
  filtered h1 a pings
  for n in 2:from 3:to; do
    on "h${n%:*}" bf nic add --id b --mac "$(mac_of b)" --vni 42 --type VHOST_USER_CLIENT --path "$VM_DIR/${n#*:}.sock" \
      --ip 10.0.0.2 --enable-antispoof --sg pings >/dev/null
  done
  vm start from --socket "$VM_DIR/from.sock" --serve --mac "$(mac_of b)" --ip 10.0.0.2/24 --limit 300
  vm start to --socket "$VM_DIR/to.sock" --serve --mac "$(mac_of b)" --limit 300 --incoming --no-wait
  wait_for 10 ping_all a 10.0.0.2 1 || fail "a does not reach b before it moves"
  # shellcheck disable=SC2016 # expanded there
  sent=$(vm exec a 'rm -f /tmp/up /tmp/open /tmp/sizes; mkfifo /tmp/open; head -c 12m /dev/urandom >/tmp/sent
    { i=0; while [ $i -lt 192 ]; do dd if=/tmp/sent bs=64k skip=$i count=1 2>/dev/null; usleep 50000; i=$((i + 1)); done |
      nc -l -p 7000; } >/dev/null 2>&1 &
    nc -l -p 7001 <>/tmp/open >/tmp/up &
    until grep -q :1B58 /proc/net/tcp /proc/net/tcp6 && grep -q :1B59 /proc/net/tcp /proc/net/tcp6; do usleep 20000; done
    { while :; do echo "$(cut -d" " -f1 /proc/uptime) $(stat -c %s /tmp/up)"; usleep 10000; done >/tmp/sizes; } >/dev/null 2>&1 &
    sha256sum </tmp/sent')
  vm exec from 'mkfifo /tmp/open; nc 10.0.0.1 7000 <>/tmp/open >/tmp/got 2>/dev/null &
    { while :; do head -c 16k /dev/zero; usleep 10000; done | nc 10.0.0.1 7001; } >/dev/null 2>&1 &'
  wait_for 10 grew from 500000 || fail "the connection to b does not begin"
  [ -z "$around" ] || sh -c "$around" >/dev/null || fail "b was not exported, or not imported"
  vm exec a '/bin/ping -D -i 0.01 -c 1000 -W 1 10.0.0.2 >/tmp/pings 2>&1 &'
  sleep 1
  before=$(on h2 nic_field b 'n["in_packets"]')
  downtime=$(vm migrate from to --told ${while:+--switch "$while >/dev/null"}) || fail "QEMU did not migrate b"
  [ -z "$around" ] || sh -c "$around" >/dev/null || fail "b was not exported, or not imported, once more"
  vm stop from
  vm exec --timeout 60 a 'while pidof ping >/dev/null; do usleep 100000; done'
  pings=$(vm exec a 'cat /tmp/pings')
  lost=$(sed -n 's/^\([0-9]*\) packets transmitted, \([0-9]*\) .*/\1 \2/p' <<<"$pings" | awk '{ print $1 - $2 }')
  # The longest time between two answers, and that in which what b sends did not grow.
  still=$(sed -n 's/^\[\([0-9.]*\)\].*icmp_seq.*/\1/p' <<<"$pings" | awk 'NR > 1 && $1 - last > most { most = $1 - last } { last = $1 } END { printf "%d", most * 1000 }')
  stalled=$(vm exec a 'cat /tmp/sizes' | awk '$2 != size { if (size > 0 && $1 - last > most) most = $1 - last; last = $1; size = $2 } END { printf "%d", most * 1000 }')
  passed=$(on h2 nic_field b 'n["passed_on"]')
  say "    QEMU stood still for $downtime ms; $lost of 1000 pings, 10 ms apart, were lost, none came for $still ms; what b sends stood still for" \
    "$stalled ms; $passed frames were passed on"
  wait_for 60 arrived to "$sent" || fail "the connection that b opened did not survive its move: $(on h3 bf sessions b)"
  [ "$(on h3 nic_field b 'n["in_packets"]')" -ge "$before" ] || fail "b's counters did not move"
  [ "$((lost * 10))" -le "$((downtime + 300))" ] || fail "more was lost than QEMU's stand-still of $downtime ms explains"
  # What is passed on before the import finds no session, and no machine either.
  quiet h3 b 'too-big ingress-denied'
  vm stop to
  vm exec a 'killall nc 2>/dev/null; true'
}
# What a move costs: pings each 5 ms from a station, a TAP vnic of h1, to the guest, and of the guest's own to the station. Each host is 5 ms
# away from the wire. Promised: with an export no more is lost than in QEMU's own stand-still, which it counts until the guest runs on the
# other host, and one round trip; nothing that was sent after that, and nothing that the guest sends. A round trip is what half of the pings
# take: of all, or of the last 20 before the stop, if those take longer. Without an export who sends to the guest has to hear of the move first.
loss_while_stopped() { loss "$(export_b)" ''; }
loss_before() { loss '' "$(export_b)"; }
loss_without_export() { loss '' ''; }
LATE=20 # ms: the distance of two pings, and QEMU's clock and the station's, which are read a moment later
SAID=100 # ms at most until a host has announced a guest that came
loss() { # loss WHILE-STOPPED BEFORE-AND-AFTER
  local n while=$1 around=$2 station downtime stop got replied asked told
  link
  wire_add
  for n in 1 2 3; do far_daemon "h$n" "$n"; done
  for n in 1 2 3; do on "h$n" bf sg rule add pings --ip-proto icmp --cidr 10.0.0.0/24 >/dev/null; done
  on h1 bf nic add --type TAP --id station0 --mac 52:54:00:00:00:09 --vni 42 --ip 10.0.0.9 --sg pings >/dev/null
  inside h1 ip addr add 10.0.0.9/24 dev station0
  inside h1 ip link set station0 up mtu 1450
  for n in 2:from 3:to; do
    on "h${n%:*}" bf nic add --id b --mac "$(mac_of b)" --vni 42 --type VHOST_USER_CLIENT --path "$VM_DIR/${n#*:}.sock" \
      --ip 10.0.0.2 --enable-antispoof --sg pings >/dev/null
  done
  vm start from --socket "$VM_DIR/from.sock" --serve --mac "$(mac_of b)" --ip 10.0.0.2/24 --limit 300 --memory 160 --virtio rx_queue_size=1024
  vm start to --socket "$VM_DIR/to.sock" --serve --mac "$(mac_of b)" --limit 300 --memory 160 --virtio rx_queue_size=1024 --incoming --no-wait
  wait_for 10 ping_all from 10.0.0.9 1 || fail "b does not reach the station"
  [ -z "$around" ] || sh -c "$around" >/dev/null || fail "b was not exported, or not imported"
  : >"$HOSTS/station.log"
  ip netns exec "$(net h1)" "$TESTS/lib/station.py" talk 10.0.0.9 10.0.0.2 "$HOSTS/talked" >"$HOSTS/station.log" 2>&1 &
  station=$!
  wait_for 10 grep -q ready "$HOSTS/station.log" || fail "the station does not talk: $(<"$HOSTS/station.log")"
  vm exec from '/bin/ping -q -i 0.01 10.0.0.9 >/tmp/pings 2>&1 &'
  sleep 1
  read -r downtime stop < <(vm migrate from to --whole ${while:+--switch "$while >/dev/null"}) || fail "QEMU did not migrate b"
  [ -z "$around" ] || sh -c "$around" >/dev/null || fail "b was not exported, or not imported, once more"
  vm stop from
  sleep 2 # more than enough for what would be lost later
  asked=$(vm exec to "$PING_ENDS")
  end "$station"
  read -r got replied < <(vm exec to "$ECHOES")
  told=$("$TESTS/lib/station.py" tell "$HOSTS/talked" got="$got" replied="$replied" asked="$asked" stop="$stop")
  say "    QEMU says that it stood still for $downtime ms; $told"
  so() { python3 -I -S -c 'import json, sys; t = json.loads(sys.argv[2]); sys.exit(not eval(sys.argv[1]))' "$1" "$told"; }
  if [ -n "$while$around" ]; then
    so "t['lost_ms'] <= $downtime + max(t['trip_ms']) + $LATE" || fail "more was lost than QEMU's stand-still and a round trip explain"
    so "t['from_to_ms'][1] <= $downtime + $LATE" || fail "what was sent to b when it ran on h3 was lost"
  else
    so "t['lost_ms'] <= $downtime + max(t['trip_ms']) + $SAID + $LATE" || fail "more was lost than QEMU's stand-still, a round trip and the announcement explain"
  fi
  so "t['answers_lost'] == t['own_lost'] == 0" || fail "what b sent was lost"
  so "t['repeated'] == 0" || fail "a ping came twice"
  so "t['pings'] > 400 and t['own_pings'] > 100" || fail "so few pings prove nothing"
  quiet h3 b 'too-big ingress-denied'
  vm stop to
}
# far_daemon HOST NUMBER: as uplink_daemon does it with xdp, behind a link of 5 ms.
far_daemon() {
  local home=$HOSTS/$1
  host_add "$1"
  mkfifo "$home/words" # the link's standard input: it would end where that ends
  : >"$home/link.log"
  # In the host's namespace, so that it ends with the host.
  ip netns exec "$(net "$1")" "$LINK" eth0 "$(net wire)/$1" --delay 5 <>"$home/words" >"$home/link.log" 2>&1 &
  wait_for 10 grep -q ready "$home/link.log" || fail "butterfly-link did not start: $(<"$home/link.log")"
  ip -n "$(net wire)" link set "$1" mtu 1500 master wire up
  ip -n "$(net "$1")" link set eth0 mtu 1500 up
  address "$1" eth0 "$2"
  host_daemon "$1" -i "192.0.2.$2" --uplink eth0
}
is_learnt() { [ "$(learnt_at "$1" "$2")" = "$3" ]; }
filtered() { # filtered HOST GUEST GROUP
  vnic "$1" "$2" 42 --ip "$(ip4_of "$2")" --enable-antispoof --sg "$3"
}
# paced_transfer FROM TO HOST OTHER: 6 MiB on one connection for some six seconds, in which b moves from HOST to OTHER.
paced_transfer() {
  local from=$1 to=$2 sent
  vm exec "$to" 'rm -f /tmp/got /tmp/open; mkfifo /tmp/open; nc -l -p 7000 <>/tmp/open >/tmp/got &
    until grep -q :1B58 /proc/net/tcp /proc/net/tcp6; do usleep 20000; done'
  sent=$(vm exec "$from" "head -c 6m /dev/urandom >/tmp/sent; rm -f /tmp/done
    { i=0; while [ \$i -lt 96 ]; do dd if=/tmp/sent bs=64k skip=\$i count=1 2>/dev/null; usleep 50000; i=\$((i + 1)); done |
      nc -w 20 $(ip4_of "$to") 7000; echo >/tmp/done; } >/dev/null 2>&1 &
    sha256sum </tmp/sent")
  wait_for 10 grew "$to" 1000000 || fail "the transfer from $from to $to does not begin"
  on "$3" bf nic del b
  filtered "$4" b moving
  vm exec "$from" '[ ! -e /tmp/done ]' || fail "the transfer from $from to $to was over before b had moved: this proves nothing"
  # A guest that was migrated says where it is.
  vm exec b 'arping -U -c 2 -I eth0 10.0.0.2 >/dev/null'
  wait_for 40 arrived "$to" "$sent" || fail "the connection from $from to $to did not survive b's move"
}
arrived() { [ "$(vm exec "$1" 'sha256sum </tmp/got')" = "$2" ]; }
grew() { [ "$(vm exec "$1" 'stat -c %s /tmp/got')" -gt "$2" ]; }

# Groups on both hosts: blocked, allowed by a rule on members, blocked again.
filtered_ends() {
  wire_add
  uplink_daemon h1 1 ipv6 xdp
  uplink_daemon h2 2 ipv6 xdp
  filtered h1 a clients
  filtered h2 b servers
  closed "before there is a rule"
  on h2 bf sg rule add servers --ip-proto tcp --port 7000 --sg-members clients >/dev/null
  closed "as long as a is no member of clients"
  on h2 bf sg member add clients 10.0.0.1 >/dev/null
  transfer a b 10.0.0.2 4 || fail "4 MiB from a, now a client, to b did not arrive undamaged"
  unanswered a 'ping -c 1 -W 1 10.0.0.2' || fail "b answers a ping, which no rule allows"
  on h2 bf sg member del clients 10.0.0.1 >/dev/null
  closed "since a is no member of clients any more"
  quiet h1 a "too-big"
  quiet h2 b "ingress-denied"
}
closed() { # closed WHEN: a does not get into b, and b's filter is why
  local before
  before=$(on h2 nic_field b 'd["ingress-denied"]')
  vm exec a 'nc -w 2 10.0.0.2 7000 </dev/null >/dev/null 2>&1' && fail "a gets into b $1"
  [ "$(on h2 nic_field b 'd["ingress-denied"]')" -gt "$before" ] || fail "nothing was denied at b $1"
}

# What a crash leaves: no XDP program, so the host goes on; and the next daemon starts and takes over.
daemon_killed() {
  wire_add
  uplink_daemon h1 1 ipv4 xdp
  uplink_daemon h2 2 ipv4 xdp
  vnic h1 a
  vnic h2 b
  wait_for 10 ping_all a 10.0.0.2 1 || fail "a does not reach b"
  has_program h1 || fail "no XDP program at h1's eth0: this proves nothing"
  host_kill h1
  wait_for 5 has_no_program h1 || fail "the XDP program is left: $(ip -n "$(net h1)" link show eth0)"
  inside h1 ping -c 2 -i 0.2 -W 2 -q 192.0.2.2 >/dev/null || fail "h1 does not reach h2 after the crash"
  host_daemon h1 -i 192.0.2.1 --uplink eth0
  vnic h1 a
  back a 10.0.0.2 || fail "a does not reach b after the restart"
  transfer b a 10.0.0.1 4 || fail "4 MiB from b did not arrive undamaged at a after the restart"
}

# peer_trouble HOST: what it says of its only peer.
peer_trouble() { on "$1" report tunnels "str(r['peers'][0]['trouble'])"; }
is_content() { [ "$(peer_trouble "$1")" = None ]; }
says_of_peer() { [[ $(peer_trouble "$1") == *"$2"* ]] && [[ $(on "$1" bf show) == *"peer 192.0.2.2: for "* ]]; }
# A peer whose daemon is dead is told of by who sends there: its kernel refuses VXLAN, or nobody answers ARP. One whose machine
# is gone, and one that has only nothing to say, is not.
silent_peer() { # silent_peer UPLINK TROUBLE
  wire_add
  uplink_daemon h1 1 ipv4 "$1" --peer 192.0.2.2
  uplink_daemon h2 2 ipv4 "$1" --peer 192.0.2.1
  vnic h1 a
  vnic h2 b
  meet a b
  is_content h1 || fail "h1 complains of a peer that works: $(on h1 bf tunnels)"
  # What goes one way only.
  on h2 bf nic del b
  unanswered a 'ping -c 12 -W 1 10.0.0.2' || fail "a machine that was deleted answers"
  is_content h1 || fail "h1 complains of a peer that takes what it is sent: $(on h1 bf tunnels)"
  [ "$(on h1 report tunnels "r['peers'][0]['unanswered_packets'] >= 5")" = True ] ||
    fail "h1 does not tell that nothing comes back: $(on h1 bf tunnels)"
  host_kill h2
  vm exec a '(ping -i 0.5 10.0.0.2 >/dev/null 2>&1 &)'
  wait_for 60 says_of_peer h1 "$2" || fail "h1 says nothing of a peer whose daemon is dead: $(on h1 bf tunnels) $(on h1 bf show)"
  host_daemon h2 -i 192.0.2.2 --uplink eth0 --peer 192.0.2.1
  vnic h2 b
  back a 10.0.0.2 || fail "a does not reach b after the restart"
  wait_for 5 is_content h1 || fail "h1 complains of a peer that is back: $(on h1 bf tunnels)"
  vm exec a 'killall ping'
}
has_program() { [[ $(ip -n "$(net "$1")" link show eth0) == *xdp* ]]; }
has_no_program() { ! has_program "$1"; }

# Two networks with the same addresses: a and b in VNI 42, c (as a) and d (as b) in VNI 43.
same_addresses() {
  local before guest file=$HOSTS/wire.pcap capture since
  wire_add
  capture_wire "$file"
  uplink_daemon h1 1 ipv4 xdp
  uplink_daemon h2 2 ipv4 xdp
  for guest in a:a b:b c:a d:b; do dress "${guest%:*}" "${guest#*:}"; done
  vnic h1 a
  vnic h2 b
  vnic h1 c 43
  vnic h2 d 43
  wait_for 10 ping_all a 10.9.0.2 1 || fail "a does not reach b"
  know a b
  know b a
  wait_for 10 hears_nothing c d || fail "c and d, which are not used yet, go on hearing something"
  since=$EPOCHREALTIME
  before=$(received c d)
  ping_all a 10.9.0.2 5 || fail "a does not reach b"
  unanswered a 'arping -I eth0 -c 3 -w 3 10.9.0.99' || fail "somebody answers for 10.9.0.99"
  transfer b a 10.9.0.1 2 || fail "2 MiB from b to a did not arrive undamaged"
  [ "$(received c d)" = "$before" ] || fail "VNI 43 heard something of VNI 42: c and d had $before frames," \
    "have $(received c d); on the wire: $(of_network 43 "$since")"
  wait_for 10 ping_all c 10.9.0.2 1 || fail "c does not reach d"
  wait_for 10 hears_nothing a b || fail "a and b, which are not used any more, go on hearing something"
  since=$EPOCHREALTIME
  before=$(received a b)
  ping_all d 10.9.0.1 5 || fail "d does not reach c"
  transfer c d 10.9.0.2 2 || fail "2 MiB from c to d did not arrive undamaged"
  [ "$(received a b)" = "$before" ] || fail "VNI 42 heard something of VNI 43: a and b had $before frames," \
    "have $(received a b); on the wire: $(of_network 42 "$since")"
  # One end only: nobody answers, though the address is there in the other network.
  on h2 bf nic del d
  unanswered c 'ping -c 2 -W 1 10.9.0.2' || fail "somebody answers c for d, which is gone"
  for guest in a:h1 b:h2 c:h1; do quiet "${guest#*:}" "${guest%:*}" too-big; done
  end "$capture"
}
# of_network VNI SINCE: the first frames of a network that same_addresses captured from a time on.
of_network() {
  end "$capture"
  tshark -r "$file" -t ad -Y "vxlan.vni == $1 && frame.time_epoch >= $2" 2>/dev/null | head -5
}
# know GUEST OTHER: for good. A guest asks again for a neighbour that it has not heard of for a while, seconds after it spoke to
# it: the other would hear that while nobody uses the network.
know() { vm exec "$1" "arp -i eth0 -s $(own_ip4_of "$2") $(mac_of "$2")"; }
# hears_nothing GUEST...: for a second. Rings that go on where the daemon before left them have their guest announced, up to 0.6 s
# apart.
hears_nothing() {
  local before
  before=$(received "$@")
  sleep 1
  [ "$(received "$@")" = "$before" ]
}
received() { # received GUEST...: frames, a line each
  local guest
  for guest in "$@"; do statistic "$guest" rx_packets; done
}
# dress GUEST AS: its addresses are those of AS, and nobody's of IPv6: nothing but what a scenario sends may be on its way.
dress() {
  vm exec "$1" "ip addr flush dev eth0; echo 1 >/proc/sys/net/ipv6/conf/eth0/disable_ipv6
    ip link set eth0 down; ip link set eth0 address $(mac_of "$2") up; ip addr add $(own_ip4_of "$2")/24 dev eth0"
}
# own_ip4_of GUEST: no scenario else has these, so no connection that one of them left open can go on in this one.
own_ip4_of() { local address; address=$(ip4_of "$1"); echo "${address/#10.0/10.9}"; }

# The host's own traffic and VXLAN share a network card. The daemon answers for an endpoint that the kernel does not hold.
host_ping() {
  local address
  wire_add
  uplink_daemon h1 1 ipv4 xdp
  uplink_daemon h2 2 ipv4 xdp-own
  vnic h1 a
  vnic h2 b
  iperf_server b
  wait_for 10 ping_all a 10.0.0.2 1 || fail "a does not reach b"
  vm exec a 'iperf3 -c 10.0.0.2 -t 20 >/dev/null 2>&1 &'
  wait_for 10 flows h2 b 2000 || fail "TCP from a to b does not begin"
  for address in 192.0.2.102 192.0.2.2; do
    host_pings h1 "$address"
  done
  host_pings h2 192.0.2.1
  [ -n "$(vm exec a 'pidof iperf3')" ] || fail "TCP from a to b ended meanwhile: this proves nothing"
  vm exec a 'killall iperf3'
}
host_pings() { # host_pings HOST ADDRESS: its kernel
  local said
  said=$(inside "$1" ping -c 10 -i 0.2 -W 2 -q "$2") || true
  [[ $said == *" 0% packet loss"* ]] || fail "$1 pings $2: $said"
}
flows() { [ "$(on "$1" nic_field "$2" 'n["out_packets"]')" -gt "$3" ]; }

# capture_wire FILE: from now on, until its caller ends $capture.
capture_wire() {
  : >"$HOSTS/dumpcap.log"
  ip netns exec "$(net wire)" dumpcap -q -i wire -w "$1" >"$HOSTS/dumpcap.log" 2>&1 &
  capture=$!
  wait_for 10 grep -q '^File:' "$HOSTS/dumpcap.log" || fail "dumpcap does not begin: $(<"$HOSTS/dumpcap.log")"
}
# captured ipv4|ipv6: all that is on the wire from the start of two daemons to their end, read back by somebody else.
captured() {
  local family=$1 file=$HOSTS/wire.pcap wrong name mtu=1450 reports=igmp capture
  [ "$family" = ipv4 ] || mtu=1430 reports=icmpv6.type==131
  wire_add
  capture_wire "$file"
  uplink_daemon h1 1 "$family" xdp-own
  uplink_daemon h2 2 "$family" xdp-own
  vnic h1 a
  vnic h2 b
  talk a b "$mtu"
  on h1 bf nic del a
  on h2 bf nic del b
  host_stop h1
  host_stop h2
  end "$capture"
  # That a guest got bytes twice (RFC 2883) is a warning, too, and not about us.
  wrong=$(expert "$file" '(_ws.malformed || _ws.expert.severity >= "Warning") && !tcp.options.sack.dsack')
  [ -z "$wrong" ] || fail "tshark warns: $(head -5 <<<"$wrong")"
  for name in vxlan arp icmp "$reports"; do
    [ "$family-$name" != ipv6-arp ] || name=icmpv6.type==136
    [ "$(expert "$file" "$name" | wc -l)" -gt 0 ] || fail "nothing of $name is in the capture: this proves nothing"
  done
  say "    $(expert "$file" '' | wc -l) frames on the wire, $(expert "$file" vxlan | wc -l) of VXLAN, no warning"
}
# expert FILE FILTER: all checksums are looked at; how TCP guests lose and repeat is none of our business.
expert() {
  tshark -r "$1" -Y "$2" -o tcp.analyze_sequence_numbers:FALSE -o ip.check_checksum:TRUE -o udp.check_checksum:TRUE \
    -o tcp.check_checksum:TRUE -o udp.ignore_ipv6_zero_checksum:TRUE -d tcp.port==7000,data \
    -d tcp.port==7001,data 2>/dev/null
}

# The hosts are in two networks, a router is between them. One host's kernel knows the route; the other endpoint has a vhost-user port,
# and is told of the gateway.
routed() {
  local family=$1 mtu=1450
  [ "$family" = ipv4 ] || mtu=1430
  wire_add
  host_add router
  plug router
  address router eth0 254
  ip -n "$(net router)" link add eth1 type veth peer name beyond netns "$(net wire)"
  kernel_end router eth1
  ip -n "$(net wire)" link set beyond up
  ip -n "$(net router)" addr add 198.51.100.254/24 dev eth1
  ip -n "$(net router)" addr add 2001:db8:1::254/64 dev eth1
  inside router sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward; echo 1 >/proc/sys/net/ipv6/conf/all/forwarding'
  host_add h1
  plug h1
  address h1 eth0 1
  ip -n "$(net h1)" route add default via "$(underlay ipv4 254)"
  ip -n "$(net h1)" route add default via "$(underlay ipv6 254)"
  host_add h2
  if [ "$family" = ipv4 ]; then
    host_daemon h1 -i 192.0.2.1 --uplink eth0 --peer 198.51.100.2
    host_daemon h2 -i 198.51.100.2/24 --uplink "vhost-user:$HOSTS/h2/wire.sock" --peer 192.0.2.1 --gateway 198.51.100.254
  else
    host_daemon h1 -i 2001:db8::1 --uplink eth0 --peer 2001:db8:1::2
    host_daemon h2 -i 2001:db8:1::2/64 --uplink "vhost-user-client:$HOSTS/h2/wire.sock" --peer 2001:db8::1 --gateway 2001:db8:1::254
  fi
  cable_start cable wire --vdev "$(cable_end 0 h2 "$family")" --vdev net_af_packet0,iface=beyond
  vnic h1 a
  vnic h2 b
  talk a b "$mtu"
  quiet h1 a too-big
  quiet h2 b too-big
}

# What an underlay should be: so large that machines notice nothing. One daemon raises its interface itself.
larger_mtu() {
  local guest
  wire_add
  ip -n "$(net wire)" link set wire mtu 1550
  for guest in h1:1 h2:2; do
    host_add "${guest%:*}"
    plug "${guest%:*}"
    ip -n "$(net wire)" link set "${guest%:*}" mtu 1550
    address "${guest%:*}" eth0 "${guest#*:}"
  done
  host_daemon h1 -i 192.0.2.1 --uplink eth0 --nic-mtu 1550
  ip -n "$(net h2)" link set eth0 mtu 1550
  host_daemon h2 -i 192.0.2.2 --uplink eth0
  vnic h1 a
  vnic h2 b
  wait_for 10 ping_all a 10.0.0.2 1 || fail "a does not reach b"
  for guest in "h1 a" "h2 b"; do
    # shellcheck disable=SC2086 # two words
    [ "$(on ${guest% *} nic_field ${guest#* } 'n["host_mtu"]')" = 1500 ] || fail "nic show ${guest#* } does not say host_mtu=1500"
  done
  pings a "try \$df -s 1472 10.0.0.2; try \$df -s 1452 fd00::2; try \$three -s 4000 10.0.0.2"
  transfer a b 10.0.0.2 4 || fail "4 MiB from a to b did not arrive undamaged"
  transfer b a fd00::1 4 || fail "4 MiB from b to a over IPv6 did not arrive undamaged"
  quiet h1 a ''
  quiet h2 b ''
}

# A far end that does not know the MTU of the wire sends in fragments: counted by name, and nothing else is harmed.
outer_fragments() {
  wire_add
  uplink_daemon h1 1 ipv4 xdp
  kernel_host kernel 2 ipv4 group
  vnic h1 a
  wait_for 10 ping_all a 10.0.0.2 1 || fail "a does not reach the kernel"
  # It looks at the wire's MTU only when it is given its own.
  ip -n "$(net kernel)" link set eth0 mtu 1550
  ip -n "$(net kernel)" link set vx mtu 1500
  ip -n "$(net kernel)" link set eth0 mtu 1500
  unanswered kernel 'ping -c 2 -W 1 -s 1472 10.0.0.1' || fail "a answers what cannot have arrived whole"
  [ "$(drops_of h1 outer-fragment)" -ge 1 ] || fail "no outer-fragment counted: $(on h1 bf uplink)"
  ping_all kernel 10.0.0.1 || fail "the kernel does not reach a any more"
}

uplink_down_at() { # uplink_down_at HOST GUEST: what the guest sends is dropped for that
  ! ping_all "$2" 10.0.0.2 1 && [ "$(drops_of "$1" uplink-down)" -gt 0 ]
}
uplink_mtu() { [ "$(on "$1" report uplink "r['mtu']")" = "$2" ]; }
sent_by() { on "$1" report tunnels "sum(n['out_packets'] for n in r['networks'])"; }
# The interface goes down and comes back, and gets a smaller MTU: said at once, and nothing old leaves when it is up again.
uplink_changes() {
  local sent
  wire_add
  uplink_daemon h1 1 ipv4 xdp
  uplink_daemon h2 2 ipv4 xdp
  vnic h1 a
  vnic h2 b
  meet a b
  ip -n "$(net h1)" link set eth0 down
  wait_for 10 uplink_down_at h1 a || fail "h1's interface is down, and uplink-down does not count: $(on h1 bf tunnels)"
  grep -q "interface is down" "$HOSTS/h1/butterflyd.log" || fail "h1's log does not say that the interface is down"
  sent=$(sent_by h1)
  unanswered a 'ping -c 3 -W 1 10.0.0.2' || fail "a reaches b over an interface that is down"
  [ "$(sent_by h1)" = "$sent" ] ||
    fail "frames count as sent though the interface is down"
  [ "$(drops_of h1 uplink-full)" -eq 0 ] || fail "frames were queued for an interface that is down"
  ip -n "$(net h1)" link set eth0 up
  meet a b
  ping_all a 10.0.0.2 || fail "a does not always reach b after the interface's return"
  ip -n "$(net h1)" link set eth0 mtu 1400
  wait_for 5 uplink_mtu h1 1400 || fail "h1 does not notice its smaller MTU: $(on h1 bf uplink)"
  pings a "find '/bin/ping -M do -c 1 -W 0.3' 1350 -s 1422 10.0.0.2; try \$df -s 1322 10.0.0.2"
}

scenarios() {
  local name
  for name in three_hosts_groups three_hosts_peers vnic_moves live_migration exported_while_stopped exported_before loss_while_stopped loss_before loss_without_export filtered_ends daemon_killed same_addresses host_ping \
    larger_mtu outer_fragments uplink_changes; do
    run "$name" "$name"
  done
  run silent_peer_refuses silent_peer xdp 'takes no VXLAN'
  run silent_peer_absent silent_peer xdp-own 'nobody answers'
  for name in routed captured; do
    run "${name}_ipv4" "$name" ipv4
    run "${name}_ipv6" "$name" ipv6
  done
}
