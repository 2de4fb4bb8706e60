# Sourced by run.sh: real guests in two networks that a router joins.
# shellcheck shell=bash

ROUTER_MAC=b2:f0:f7:0c:47:15 # of router "r": b2:f0, and FNV-1a of its id
A_IP=10.42.0.11
B_IP=10.50.0.12

# routed_guest NIC NUMBER VNI GROUP: a filtered vnic, whose guest knows its own network and a gateway.
# shellcheck disable=SC2154 # run.sh sets dir and accel
routed_guest() {
  local mac=52:54:00:00:00:0$2 ip=10.$3.0.1$2
  bf nic add --id "$1" --mac "$mac" --vni "$3" --ip "$ip" --enable-antispoof --sg "$4" >/dev/null
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

# Filtered guests in two networks of a router, both with an MTU: pings, TCP both ways in large segments, a death of the
# daemon under TCP, and the router away for a while.
routed() {
  local guest gateway lost links
  daemon_stop
  daemon_start "$dir" --state-dir "$dir/state" --tcp-pickup 0
  bf network add --vni 42 --subnet 10.42.0.0/24 --gateway 10.42.0.1 --mtu 1500 + \
    network add --vni 50 --subnet 10.50.0.0/24 --gateway 10.50.0.1 --mtu 1500 + \
    router add r + router attach r --vni 42 + router attach r --vni 50 >/dev/null
  # Pings and TCP come in to b, and to a only the port to which b sends.
  bf sg rule add server --ip-proto icmp --cidr 10.42.0.0/24 + \
    sg rule add server --ip-proto tcp --port-start 5000 --port-end 7100 --cidr 10.42.0.0/24 + \
    sg rule add client --ip-proto tcp --port 7000 --cidr 10.50.0.0/24 >/dev/null
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

  links=$(link_changes a b)
  vm exec a "iperf3 -c $B_IP -t 300 >/dev/null 2>/tmp/iperf.error &
    ping -i 0.05 $B_IP >/tmp/pings 2>&1 &"
  sleep 1
  daemon_kill
  daemon_start "$dir" --state-dir "$dir/state" --tcp-pickup 0
  for guest in a b; do attached $guest || fail "$guest is not attached"; done
  through a $B_IP || fail "a does not reach b after a death"
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
