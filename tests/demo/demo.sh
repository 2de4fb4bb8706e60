#!/bin/bash
# demo.sh: two hosts, a butterflyd on each, four real QEMU guests, step by step, each step with what it proves. The hosts are
# network namespaces joined by a veth pair; the uplink is AF_XDP. Ends with "demo: ok" and exit status 0, or says loudly what
# failed. `make demo` builds what it needs and runs it.
#   KEEP=1          leave everything running and say how to enter each guest and host
#   demo.sh --stop  end what KEEP=1 left
set -euo pipefail
# shellcheck source=../lib/common.sh
. "$(dirname "$0")/../lib/common.sh"
# shellcheck source=../lib/daemon.sh
. "$TESTS/lib/daemon.sh"
# shellcheck source=../lib/hosts.sh
. "$TESTS/lib/hosts.sh"
# shellcheck source=../guest/lib.sh
. "$TESTS/guest/lib.sh"

OUT=$BUILD/demo # what is left for people: graphs, logs
KEEP=${KEEP:-}

# a and b live on host one, c and d on host two. d has b's very addresses in another network. butterflyd owns the sockets of a and
# b; c and d own theirs (the role in which a daemon may come and go under any QEMU).
declare -A HOST=([a]=one [b]=one [c]=two [d]=two)
declare -A VNI=([a]=42 [b]=42 [c]=42 [d]=43)
declare -A IP=([a]=10.0.0.1 [b]=10.0.0.2 [c]=10.0.0.3 [d]=10.0.0.2)
declare -A MAC=([a]=52:54:00:00:00:01 [b]=52:54:00:00:00:02 [c]=52:54:00:00:00:03 [d]=52:54:00:00:00:02)
GUESTS=(a b c d)

stop_kept() {
  local dir pid
  for dir in /tmp/bfly-demo.*; do
    [ -d "$dir" ] || continue
    # A process may have ended and its id be another's by now.
    for pid in "$dir"/hosts/*/daemon.pid; do
      [ ! -e "$pid" ] || grep -qsF "$dir" "/proc/$(<"$pid")/cmdline" || rm -f "$pid"
    done
    vm --dir "$dir" stop --all 2>/dev/null || true
    HOSTS=$dir/hosts
    hosts_end || true
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
  local status=$? host
  trap '' INT TERM HUP
  save_logs
  if [ -n "$finished" ] && [ -n "$KEEP" ]; then
    how_to_enter
    echo "demo: ok"
    return
  fi
  if [ -z "$finished" ]; then
    {
      echo
      echo "demo: FAILED in step $number ($title), status $status"
      for host in one two; do
        echo "host $host:"
        on "$host" daemon_log
        on "$host" bf drops || true
        on "$host" bf nic list --wide || true
      done
      echo "logs: $OUT    repeat with: make demo    to look around: make demo KEEP=1"
    } >&2
  fi
  vm stop --all 2>/dev/null || status=1
  hosts_end || status=1
  rm -rf "$dir"
  [ -n "$finished" ] || exit $((status ? status : 1))
  if [ "$status" -ne 0 ]; then
    echo "demo: FAILED while cleaning up" >&2
    exit "$status"
  fi
  echo "demo: ok"
}
save_logs() {
  local host
  cp "$dir"/*.log "$dir"/*.qemu "$OUT"/ 2>/dev/null || true
  for host in one two; do cp "$HOSTS/$host/butterflyd.log" "$OUT/butterflyd-$host.log" 2>/dev/null || true; done
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
at() { on "${HOST[$1]}" "${@:2}"; } # at GUEST COMMAND...: for the daemon of its host
field() { at "$1" nic_field "$1" "$2"; }

how_to_enter() {
  local guest host
  echo
  echo "Everything is left running in $dir."
  for guest in "${GUESTS[@]}"; do
    echo "  guest $guest on host ${HOST[$guest]}, VNI ${VNI[$guest]}, ${IP[$guest]}:  tests/guest/vm --dir $dir console $guest"
  done
  echo "  leave a guest with Ctrl-]; one command in it:  tests/guest/vm --dir $dir exec a ping -c 3 10.0.0.2"
  for host in one two; do
    echo "  host $host:  ip netns exec $(net "$host") bash    its client:  $BIN/butterfly tunnels -e ipc://$HOSTS/$host/api"
  done
  echo "  end all of it:           tests/demo/demo.sh --stop"
}

# ---- 1

step "Two hosts" "a daemon on each takes VXLAN from eth0 by AF_XDP; all else on eth0 stays the host's own"
hosts_begin "$dir/hosts"
host_add one
host_add two
join one two
address one eth0 1
address two eth0 2
host_daemon one -i 192.0.2.1 --uplink eth0
host_daemon two -i 192.0.2.2 --uplink eth0
for host in one two; do
  [ "$(on "$host" bf nic list | wc -l)" -eq 0 ] || fail "a fresh daemon has vnics"
  ok "host $host: butterflyd (process $(<"$HOSTS/$host/daemon.pid")) answers on ipc://$HOSTS/$host/api"
done
inside one ping -c 2 -i 0.2 -W 2 -q 192.0.2.2 >/dev/null || fail "host one does not ping host two"
ok "host one pings host two over the same interface"

# ---- 2

step "Four vnics" "a request each gives a VM its port; the same MAC and IP may live in two networks"
for guest in "${GUESTS[@]}"; do
  add=(nic add --id "$guest" --mac "${MAC[$guest]}" --vni "${VNI[$guest]}" --ip "${IP[$guest]}")
  case $guest in d) add+=(--bypass-filtering) ;; *) add+=(--sg team --enable-antispoof) ;; esac
  [ "${HOST[$guest]}" = one ] || add+=(--type VHOST_USER_CLIENT)
  path=$(at "$guest" bf "${add[@]}")
  [ "$path" = "$HOSTS/${HOST[$guest]}/qemu-vhost-$guest" ] || fail "nic add $guest answered \"$path\""
  say "   host ${HOST[$guest]}: butterfly ${add[*]}"
done
ok "a, b (host one) and c (host two) in VNI 42, filtered by group team; d (host two) in VNI 43 has b's addresses"

# ---- 3

accel=$("$TESTS/guest/accel.sh")
step "Four guests boot" "stock Linux drivers attach, in both vhost-user socket roles"
for guest in "${GUESTS[@]}"; do
  options=(--socket "$HOSTS/${HOST[$guest]}/qemu-vhost-$guest" --mac "${MAC[$guest]}" --ip "${IP[$guest]}/24" --accel "$accel")
  [ "${HOST[$guest]}" = one ] || options+=(--serve) # blocks at start until butterflyd has connected
  [ -z "$KEEP" ] || options+=(--limit 0)
  vm start "$guest" "${options[@]}" --no-wait
done
vm wait --all --timeout 90
for guest in "${GUESTS[@]}"; do
  wait_for 5 at "$guest" attached "$guest" || fail "butterfly does not see $guest attached"
  ok "$guest is up (QEMU $accel), butterflyd is the socket's $(field "$guest" 'n["role"]')"
done

# ---- 4

denied() { field "$1" 'd["ingress-denied"]'; }
blocked() { # blocked FROM TO
  local before
  before=$(denied "$2")
  unanswered "$1" "ping -c 2 -W 1 ${IP[$2]}" || fail "$1 reaches $2"
  [ "$(denied "$2")" -gt "$before" ] || fail "$2 did not answer $1, but its filter is not why"
  ok "$1 does not reach $2: ingress-denied at $2"
}
reach() { # reach FROM TO
  wait_for 10 ping_all "$1" "${IP[$2]}" 1 || fail "$1 does not reach $2"
  ping_all "$1" "${IP[$2]}" || fail "$1 does not always reach $2"
  ok "$1 to $2 ($([ "${HOST[$1]}" = "${HOST[$2]}" ] && echo "same host" || echo "other host")): 3 of 3 answered"
}
everywhere() {
  say "   both hosts: butterfly $*"
  on one bf "$@" >/dev/null
  on two bf "$@" >/dev/null
}

step "Blocked" "nothing enters a filtered vnic that no rule allows, from the same host or another"
blocked a b
blocked a c

# explained WHAT FROM TO: asks both hosts, without sending anything; WHAT is in the answer
explained() {
  say "   host ${HOST[$2]}: butterfly explain --from $2 --to ${IP[$3]} --far-endpoint ipc://$HOSTS/${HOST[$3]}/api"
  on "${HOST[$2]}" bf explain --from "$2" --to "${IP[$3]}" --far-endpoint "ipc://$HOSTS/${HOST[$3]}/api" >"$dir/explained" || true
  shown <"$dir/explained"
  grep -q "$1" "$dir/explained" || fail "the explanation does not say: $1"
}
explained "dropped: ingress-denied, counted at c" a c

step "Allowed" "a rule on the members of a group lets in whoever is one, wherever it runs"
everywhere sg rule add team --ip-proto all --sg-members team
everywhere sg member add team 10.0.0.1 10.0.0.2 10.0.0.3
for pair in a:b b:c c:a; do reach "${pair%:*}" "${pair#*:}"; done
explained "delivered to c" a c

# ---- 6

# tcp FROM TO: Mbit/s, and the average size of the frames that the receiver got.
tcp() {
  local before_bytes before_packets bytes packets
  before_bytes=$(statistic "$2" rx_bytes) before_packets=$(statistic "$2" rx_packets)
  mbit=$(throughput "$1" "${IP[$2]}" 2) || fail "no TCP from $1 to $2"
  bytes=$(($(statistic "$2" rx_bytes) - before_bytes)) packets=$(($(statistic "$2" rx_packets) - before_packets))
  [ "$packets" -gt 0 ] || fail "$2 received nothing"
  average=$((bytes / packets))
}
# on_wire HOST: bytes and packets that its uplink got from the other host.
on_wire() { on "$1" bf uplink --json | python3 -c 'import json, sys; u = json.load(sys.stdin); print(u["in_bytes"], u["in_packets"])'; }
# knows_mtu FROM TO BYTES: what FROM's stack says of the way
knows_mtu() {
  local said
  said=$(vm exec "$1" "/bin/ping -M do -c 1 -W 1 -s 1472 ${IP[$2]}") || true
  grep -qE "mtu *[:=] *$3" <<<"$said"
}

step "TCP on one host" "guests hand each other whole 64 KiB segments with partial checksums; nothing is damaged"
for guest in b c; do iperf_server "$guest" || fail "no iperf3 server in $guest"; done
tcp a b
[ "$average" -gt 1600 ] || fail "frames of $average bytes on average: the switch cut up the segments"
ok "a to b: $mbit Mbit/s, $average bytes per frame on average"
transfer a b "${IP[b]}" 8 || fail "8 MiB from a arrived damaged or not at all at b"
ok "8 MiB of random bytes from a to b: the same SHA-256 on both ends"

step "TCP between hosts" "segments are cut to what the wire carries, joined again, and guests are told what fits"
read -r before_bytes before_packets < <(on_wire two)
tcp a c
read -r bytes packets < <(on_wire two)
[ "$packets" -gt "$before_packets" ] || fail "host two got nothing from the wire"
wire=$(((bytes - before_bytes) / (packets - before_packets)))
[[ $wire -gt 1000 && $wire -le 1514 ]] || fail "frames of $wire bytes on average are not what the wire carries"
[ "$average" -gt 1600 ] || fail "frames of $average bytes on average: c did not get segments joined"
ok "a to c: $mbit Mbit/s, $wire bytes per frame on the wire, $average on average as c got them"
knows_mtu a c 1450 || fail "a did not find out that 1450 bytes fit"
ok "a has found out that packets of 1450 bytes fit (its MTU is 1500, and 50 are the tunnel's)"
transfer c a "${IP[a]}" 8 || fail "8 MiB from c arrived damaged or not at all at a"
ok "8 MiB of random bytes from c to a: the same SHA-256 on both ends"
vm exec a 'ethtool -K eth0 tx off sg off tso off gso off gro off' >/dev/null || fail "ethtool does not switch a's offloads off"
tcp a c
ok "a to c, a without offloads: $mbit Mbit/s, $average bytes per frame on average"
vm exec a 'ethtool -K eth0 tx on sg on tso on gso on gro on' >/dev/null || fail "ethtool does not switch a's offloads on"

# ---- 8

# Everything a guest got, twice: what its own interface counted, what the switch counted for it.
got() { echo "$(statistic "$1" rx_packets) $(field "$1" 'n["out_packets"]')"; }

step "Nothing crosses networks" "not unicast to an address that both networks have, not a broadcast, in neither direction"
before=$(got d) before_c=$(statistic c rx_packets)
ping_all c "${IP[b]}" 5 || fail "c does not reach b"
unanswered a 'arping -b -I eth0 -c 3 -w 3 10.0.0.99' || fail "somebody answered for 10.0.0.99, which nobody has"
[ $(($(statistic c rx_packets) - before_c)) -ge 8 ] || fail "c did not see the pings and broadcasts of its own network"
[ "$(got d)" = "$before" ] || fail "d (VNI 43) received frames of VNI 42: $before, then $(got d)"
ok "5 pings from c to ${IP[b]} and 3 broadcasts by a: c saw them all; d, next to it, with b's MAC and IP, not one frame"
before=$(for guest in a b c; do got "$guest"; done)
sent=$(field d 'n["in_packets"]')
unanswered d "ping -c 3 -W 1 ${IP[a]}" || fail "d (VNI 43) got an answer from a (VNI 42)"
[ "$(field d 'n["in_packets"]')" -ge $((sent + 3)) ] || fail "d sent too little: that step proves nothing"
[ "$(for guest in a b c; do got "$guest"; done)" = "$before" ] || fail "VNI 42 received frames of VNI 43"
ok "d looked for ${IP[a]}: a, b and c received nothing, d no answer"

# ---- 9

routed() { # routed FROM TO-ADDRESS: one hop less is left of the 64 with which Linux answers
  wait_for 10 ping_all "$1" "$2" 1 || fail "$1 does not reach $2 through the router"
  ping_all "$1" "$2" || fail "$1 does not always reach $2 through the router"
  said=$(vm exec "$1" "ping -c 1 -W 2 $2") || fail "$1 does not reach $2 any more"
  grep -q 'ttl=63' <<<"$said" || fail "what $2 answers did not pass one router: $said"
  ok "$1 to $2: 4 of 4 answered, ttl 63"
}
step "A router joins two networks" "each host routes for its own VMs, and rules are asked as ever"
everywhere network add --vni 42 --subnet 10.0.0.0/24 --gateway 10.0.0.254
everywhere network add --vni 43 --subnet 10.0.43.0/24 --gateway 10.0.43.254
everywhere router add r1
everywhere router attach r1 --vni 42
everywhere router attach r1 --vni 43
say "   each host: butterfly neighbour add, for the VM on the other one"
on one bf neighbour add --vni 43 --ip 10.0.43.4 --mac "${MAC[d]}" --host 192.0.2.2
on two bf neighbour add --vni 42 --ip "${IP[a]}" --mac "${MAC[a]}" --host 192.0.2.1
say "   host two: butterfly nic update --id d --ip 10.0.43.4: d gets an address of its network"
on two bf nic update --id d --ip 10.0.43.4 >/dev/null
vm exec d 'ip addr flush dev eth0; ip addr add 10.0.43.4/24 dev eth0; ip route add default via 10.0.43.254'
for guest in a c; do vm exec "$guest" 'ip route add default via 10.0.0.254'; done
routed a 10.0.43.4
routed c 10.0.43.4
before=$(denied a)
unanswered d "ping -c 2 -W 1 ${IP[a]}" || fail "d reaches a, though no rule of a lets it in"
[ "$(denied a)" -gt "$before" ] || fail "a did not answer d, but its filter is not why"
ok "d does not reach a by itself: ingress-denied at a. It may answer, as the session is a's"
everywhere sg rule add team --ip-proto icmp --cidr 10.0.43.4/32
routed d "${IP[a]}"
said=(explain --from a --to d --reply --far-endpoint "ipc://$HOSTS/two/api")
say "   host one: butterfly ${said[*]}"
on one bf "${said[@]}" >"$dir/explained" || fail "a reaches d, and the explanation does not know"
shown <"$dir/explained"
for line in "the gateway of VNI 42 passes it on to VNI 43" "leaves for 192.0.2.2" "delivered to d" "delivered to a"; do
  grep -q "$line" "$dir/explained" || fail "the explanation does not say: $line"
done

# ---- 10

step "The way out" "VMs reach what is outside by an interface of their host, and one is reached by an address of its own"
host_add outside
ip -n "$(net two)" link add eth1 type veth peer name eth0 netns "$(net outside)"
kernel_end two eth1
kernel_end outside eth0
# The first router of the Internet, and a machine of it.
ip -n "$(net outside)" addr add 203.0.113.1/24 dev eth0
ip -n "$(net outside)" addr add 198.51.100.1/32 dev lo
bf_two() {
  say "   host two: butterfly $*"
  on two bf "$@"
}
bf_two external add internet --uplink eth1 --address 203.0.113.2/24 --gateway 203.0.113.1
bf_two router attach r1 --external internet
bf_two floating add 203.0.113.4 --router r1 --external internet --to "${IP[c]}"
before=$(on two nic_field d 'd.get("nat-no-rule", 0)')
unanswered d "ping -c 2 -W 1 198.51.100.1" || fail "d is answered from outside, though it has no address there"
[ "$(on two nic_field d 'd.get("nat-no-rule", 0)')" -gt "$before" ] || fail "d reached nothing outside, but that is not why"
ok "d has no address outside, and nothing of it leaves: nat-no-rule"
bf_two snat add r1 --external internet --address 203.0.113.5
wait_for 10 ping_all d 198.51.100.1 1 || fail "d does not reach the machine outside by the address that it shares"
ping_all d 198.51.100.1 5 || fail "d does not always reach the machine outside"
said=(explain --from d --to 198.51.100.1 --port 80)
on two bf "${said[@]}" >"$dir/explained" || fail "d reaches the outside, and the explanation does not know"
grep -q "as 203.0.113.5 port" "$dir/explained" || fail "the explanation does not say by which port d leaves: $(cat "$dir/explained")"
ok "with snat it reaches 198.51.100.1: 5 of 5 answered, by ports of 203.0.113.5"
wait_for 10 ping_all c 198.51.100.1 1 || fail "c does not reach the machine outside"
ping_all c 198.51.100.1 5 || fail "c does not always reach the machine outside"
ok "c to 198.51.100.1: 5 of 5 answered; outside it is 203.0.113.4"
before=$(denied c)
! inside outside ping -c 2 -i 0.2 -W 1 -q 203.0.113.4 >/dev/null || fail "the outside reaches c, though no rule lets it in"
[ "$(denied c)" -gt "$before" ] || fail "c did not answer the outside, but its filter is not why"
ok "the outside does not reach c by itself: ingress-denied at c"
everywhere sg rule add team --ip-proto icmp --cidr 203.0.113.1/32
inside outside ping -c 5 -i 0.2 -W 2 -q 203.0.113.4 >/dev/null || fail "the outside does not reach c at 203.0.113.4"
ok "with a rule it does: 203.0.113.1 to 203.0.113.4, 5 of 5 answered"
said=(explain --from c --to 198.51.100.1)
say "   host two: butterfly ${said[*]}"
on two bf "${said[@]}" >"$dir/explained" || fail "c reaches the outside, and the explanation does not know"
shown <"$dir/explained"
grep -q "as 203.0.113.4" "$dir/explained" || fail "the explanation does not say which address c has outside"

# ---- 11

step "A guest dies and comes back" "a crash of QEMU detaches one vnic, disturbs nobody, and the socket takes the next one"
vm exec a "ping -i 0.2 ${IP[b]} >/tmp/ping 2>&1 & echo \$! >/tmp/ping.pid"
vm kill c
wait_for 5 on two detached c || fail "butterfly does not notice that c's QEMU was killed"
ok "c killed (SIGKILL); nic show: detached, $(field c 'n["last_detach_reason"]')"
unanswered a "ping -c 2 -W 1 ${IP[c]}" || fail "somebody answers for c while it is dead"
vm restart c --timeout 90
wait_for 5 on two attached c || fail "c is up but not attached"
back a "${IP[c]}" || fail "a does not reach c after its restart"
ok "c is back on the same socket: 5 of 5 pings from host one, attached $(field c 'n["attach_count"]') times"
# shellcheck disable=SC2016 # the guest's shell expands it
lost=$(vm exec a 'kill -INT $(cat /tmp/ping.pid); usleep 200000; tail -3 /tmp/ping')
[[ $lost == *" 0% packet loss"* ]] || fail "a's pings to b suffered meanwhile: $lost"
ok "a and b went on meanwhile: $(grep -o '.*packet loss' <<<"$lost")"

# ---- 12

step "Blocked again" "who is no member any more is cut off, a connection under way included"
iperf_server c || fail "no iperf3 server in c"
vm exec a "iperf3 -c ${IP[c]} -t 60 >/dev/null 2>&1 &"
flowing() { [ "$(field c 'n["out_packets"]')" -gt "$1" ]; }
wait_for 10 flowing $(($(field c 'n["out_packets"]') + 1000)) || fail "TCP from a to c does not begin"
before=$(denied c)
everywhere sg member del team 10.0.0.1
stopped() { [ "$(denied c)" -gt "$before" ]; }
wait_for 5 stopped || fail "nothing of a's connection was refused at c"
# IP packets that c's stack received: a may ask for c's address as often as it likes.
arrived() { vm exec "$1" "grep '^Ip:' /proc/net/snmp | tail -1 | cut -d ' ' -f 4"; }
got=$(arrived c)
ok "a's connection to c ran at full speed, and stopped: $(field c 'n["out_packets"]') packets, and no more"
blocked a c
[ "$(arrived c)" = "$got" ] || fail "c received something of a all the same"
reach b c
vm exec a 'killall iperf3; true'

# ---- 13

step "What an operator sees" "tunnels, uplink, counters and the graph of what runs here"
for command in tunnels uplink; do
  say "   host one: butterfly $command"
  on one bf "$command" | shown
done
say "   host two: butterfly nic show c"
on two bf nic show c | shown
say "   host two: butterfly fdb 42"
on two bf fdb 42 | shown
say "   host two: butterfly sessions c"
on two bf sessions c | shown
for host in one two; do
  on "$host" bf status >"$dir/status-$host"
  sed -n '/^strict graph/,/^}/p' "$dir/status-$host" >"$OUT/graph-$host.dot"
  for format in svg png; do
    dot -T"$format" -o "$OUT/graph-$host.$format" "$OUT/graph-$host.dot" || fail "graphviz does not draw the graph"
    [ -s "$OUT/graph-$host.$format" ] || fail "the picture of the graph is empty"
  done
done
say "   host two: butterfly status"
shown <"$dir/status-two"
for node in one:vhost-a one:vhost-b two:vhost-c two:vhost-d; do
  grep -qF "\"vhost:${node#*:}\" [" "$OUT/graph-${node%:*}.dot" || fail "the graph of host ${node%:*} does not show ${node#*:}"
done
ok "the graphs as pictures: $OUT/graph-one.svg, graph-two.svg and .png"

# ---- 14

if [ -z "$KEEP" ]; then
  step "Everything ends" "vnics are deleted, sockets go, the daemons stop when asked, and eth0 is as it was"
  vm stop --all
  on one bf nic del a b
  on two bf nic del c d
  for host in one two; do
    pid=$(<"$HOSTS/$host/daemon.pid")
    [ "$(on "$host" bf nic list | wc -l)" -eq 0 ] || fail "nics are left on host $host"
    on "$host" bf shutdown
    wait_for 5 gone "$pid" || fail "butterflyd of host $host goes on 5 s after butterfly shutdown"
    [[ $(ip -n "$(net "$host")" link show eth0) != *xdp* ]] || fail "the XDP program is left on host $host"
  done
  for guest in a b; do [ ! -e "$HOSTS/one/qemu-vhost-$guest" ] || fail "$guest's socket is left"; done
  ok "nothing left"
fi
finished=1
