# Sourced by run.sh: real guests in two networks that a router joins.
# shellcheck shell=bash

ROUTER_MAC=b2:f0:f7:0c:47:15 # of router "r": b2:f0, and FNV-1a of its id
A_IP=10.42.0.11
B_IP=10.50.0.12
A_SIX=fd00:42::11
B_SIX=fd00:50::12

# routed_guest NIC NUMBER VNI GROUP: a filtered vnic, whose guest knows its own network and a gateway.
# shellcheck disable=SC2154 # run.sh sets dir and accel
routed_guest() {
  local mac=52:54:00:00:00:0$2 ip=10.$3.0.1$2
  bf nic add --id "$1" --mac "$mac" --vni "$3" --ip "$ip" "fd00:$3::1$2" --enable-antispoof --sg "$4" >/dev/null
  vm start "$1" --socket "$dir/qemu-vhost-$1" --mac "$mac" --ip "$ip/24" --accel "$accel" --limit 300 --no-wait
}
# through GUEST ADDRESS: every echo request gets its answer, and each answer passed one router.
through() {
  local said
  said=$(vm exec --timeout 30 "$1" "ping -c 5 -i 0.2 -W 2 $2") || return 1
  [ "$(grep -c ' ttl=63 ' <<<"$said")" -eq 5 ]
}
# knows_router GUEST GATEWAY: the guest's kernel asked for its gateway, and got the router's address; it knows nobody else.
knows_router() { [[ $(vm exec "$1" 'ip neigh show') == "$2 dev eth0 lladdr $ROUTER_MAC "* ]]; }

# The same by IPv6, whose hosts also have addresses of their link. Its kernel may know the router by more of these.
through_six() {
  local said
  said=$(vm exec --timeout 30 "$1" "ping -6 -c 5 -i 0.2 -W 2 ${3:-} $2") || return 1
  [ "$(grep -c ' ttl=63 ' <<<"$said")" -eq 5 ]
}
knows_router_by_six() { vm exec "$1" 'ip -6 neigh show' | grep -q "^$2 dev eth0 lladdr $ROUTER_MAC router "; }

# Both guests have IPv6 addresses and gateways: pings, a trace with a line for the router, TCP both ways, and a path whose
# MTU the guest is told.
routed_six() {
  local guest number=10 vni said
  for guest in a b; do
    number=$((number + 1))
    vni=$([ $guest = a ] && echo 42 || echo 50)
    vm exec $guest "cd /proc/sys/net/ipv6/conf/eth0; echo 0 >accept_dad; echo 0 >disable_ipv6
      ip -6 addr add fd00:$vni::$number/64 dev eth0; ip -6 route add default via fd00:$vni::1"
  done
  through_six a $B_SIX || fail "a's pings by IPv6 do not pass one router: $(vm exec a "ping -6 -c 2 -W 2 $B_SIX")"
  unanswered b "ping -6 -c 1 -W 1 $A_SIX" || fail "b reaches a by IPv6, which no rule lets in"
  knows_router_by_six a fd00:42::1 || fail "a knows $(vm exec a 'ip -6 neigh show')"
  knows_router_by_six b fd00:50::1 || fail "b knows $(vm exec b 'ip -6 neigh show')"
  ping_all a fd00:42::1 3 -6 || fail "a's gateway does not answer by IPv6"
  ping_all a fd00:50::1 3 -6 || fail "the gateway of b's network does not answer a by IPv6"
  said=$(vm exec --timeout 30 a "traceroute6 -n -q 1 -w 2 -m 3 $B_SIX" 2>&1) || true
  grep -q '^ *1 *fd00:42::1 ' <<<"$said" || fail "a's trace has no line for its gateway: $said"
  transfer a b $B_SIX 4 || fail "4 MiB by IPv6 from a to b did not arrive undamaged"
  transfer b a $A_SIX 4 || fail "4 MiB by IPv6 from b to a did not arrive undamaged"
  # What is too long for b's network is told: the kernel remembers, and sends what passes.
  bf network add --vni 50 --subnet 10.50.0.0/24 fd00:50::/64 --gateway 10.50.0.1 fd00:50::1 \
    --mtu 1300 >/dev/null
  said=$(vm exec --timeout 30 a "/bin/ping -6 -M do -c 3 -i 0.2 -W 1 -s 1400 $B_SIX" 2>&1) || true
  grep -q 'From fd00:42::1.* mtu=1300' <<<"$said" || fail "a was not told the MTU of b's network: $said"
  grep -q 'too long, mtu: 1300' <<<"$said" || fail "a's kernel does not know the MTU of b's network: $said"
  transfer a b $B_SIX 4 || fail "4 MiB by IPv6 from a to b did not arrive undamaged, with an MTU of 1,300"
  bf network add --vni 50 --subnet 10.50.0.0/24 fd00:50::/64 --gateway 10.50.0.1 fd00:50::1 \
    --mtu 1500 >/dev/null
}

# Filtered guests in two networks of a router, both with an MTU: pings, TCP both ways in large segments, a death of the
# daemon under TCP, and the router away for a while.
routed() {
  local guest gateway lost links
  daemon_stop
  daemon_start "$dir" --state-dir "$dir/state" --tcp-pickup 0
  bf network add --vni 42 --subnet 10.42.0.0/24 fd00:42::/64 --gateway 10.42.0.1 fd00:42::1 \
    --mtu 1500 + \
    network add --vni 50 --subnet 10.50.0.0/24 fd00:50::/64 --gateway 10.50.0.1 fd00:50::1 \
    --mtu 1500 + \
    router add r + router attach r --vni 42 + router attach r --vni 50 >/dev/null
  # Pings and TCP come in to b, and to a only the port to which b sends.
  bf sg rule add server --ip-proto icmp --cidr 10.42.0.0/24 + \
    sg rule add server --ip-proto tcp --port-start 5000 --port-end 7100 --cidr 10.42.0.0/24 + \
    sg rule add client --ip-proto tcp --port 7000 --cidr 10.50.0.0/24 + \
    sg rule add server --ip-proto 58 --cidr fd00:42::/64 + \
    sg rule add server --ip-proto tcp --port-start 5000 --port-end 7100 --cidr fd00:42::/64 + \
    sg rule add client --ip-proto tcp --port 7000 --cidr fd00:50::/64 >/dev/null
  routed_guest a 1 42 client
  routed_guest b 2 50 server
  up a b
  for guest in a b; do
    gateway=10.$([ $guest = a ] && echo 42 || echo 50).0.1
    vm exec $guest "ip route add default via $gateway"
  done
  through a $B_IP || fail "a's pings do not pass one router: $(vm exec a "ping -c 2 -W 2 $B_IP")"
  unanswered b "ping -c 1 -W 1 $A_IP" || fail "b reaches a, which no rule lets in"
  knows_router a 10.42.0.1 || fail "a knows $(vm exec a 'ip neigh show')"
  knows_router b 10.50.0.1 || fail "b knows $(vm exec b 'ip neigh show')"
  transfer a b $B_IP 4 || fail "4 MiB from a to b did not arrive undamaged"
  transfer b a $A_IP 4 || fail "4 MiB from b to a did not arrive undamaged"
  expect_feature a host-tso4 True
  iperf_server b
  throughput a $B_IP 2 >"$dir/mbit" || fail "no TCP from a to b"
  [ "$(cat "$dir/mbit")" -ge 50 ] || fail "TCP from a to b crawls: $(cat "$dir/mbit") Mbit/s"
  say "    TCP from a to b by the router: $(cat "$dir/mbit") Mbit/s"
  [ -z "$(nic_field a "' '.join(k for k, v in d.items() if v and k not in ('ring-full', 'ingress-denied'))")" ] ||
    fail "drops that nothing here asks for: $(bf drops)"
  routed_six

  links=$(link_changes a b)
  vm exec a "iperf3 -c $B_IP -t 300 >/dev/null 2>/tmp/iperf.error &
    ping -i 0.05 $B_IP >/tmp/pings 2>&1 &"
  sleep 1
  daemon_kill
  daemon_start "$dir" --state-dir "$dir/state" --tcp-pickup 0
  for guest in a b; do attached $guest || fail "$guest is not attached"; done
  through a $B_IP || fail "a does not reach b after a death"
  through_six a $B_SIX || fail "a does not reach b by IPv6 after a death"
  transfer b a $A_IP 2 || fail "2 MiB from b to a did not arrive undamaged after a death"
  vm exec a 'pidof iperf3 >/dev/null; cat /tmp/iperf.error' || fail "a TCP connection did not outlast the death"
  vm exec a 'killall -INT ping; sleep 0.3'
  lost=$(vm exec a 'tail -3 /tmp/pings' | sed -n 's/^\([0-9]*\) .* \([0-9]*\) packets received.*/\1-\2/p')
  [ -n "$lost" ] || fail "a's pings ended: $(vm exec a 'tail -3 /tmp/pings')"
  say "    of pings to b, across a death, were lost: $((lost))"
  [ $((lost)) -le 12 ] || fail "too many pings to b were lost: $lost"
  [ "$(link_changes a b)" = "$links" ] || fail "links went down: $links before, $(link_changes a b) now"

  # Its way goes with the router, and comes back.
  bf router detach r --vni 50
  unanswered a "ping -c 2 -i 0.2 -W 1 $B_IP" || fail "a reaches b without a router"
  [ "$(nic_field a 'd["no-route"]')" -ge 2 ] || fail "what a sent is dropped as: $(bf drops a)"
  bf router attach r --vni 50
  through a $B_IP || fail "a does not reach b, whose router is back"
  bf shutdown >/dev/null
  daemon_forget
  wait_for 10 no_holder || fail "the holder outlasts a shutdown"
  rm -rf "$dir/state"
  daemon_start "$dir"
}
