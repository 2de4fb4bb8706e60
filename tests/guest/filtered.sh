# Sourced by run.sh: scenarios with filtered vnics and real guests behind them.
# shellcheck shell=bash

add_filtered() { # add_filtered NIC NUMBER GROUP...
  bf nic add --id "$1" --mac "52:54:00:00:00:0$2" --vni 42 --ip "10.0.0.$2" --enable-antispoof --sg "${@:3}" >/dev/null
}
filtered_pair() { # filtered_pair GROUP-A GROUP-B: two guests on filtered vnics, up and attached
  add_filtered a 1 "$1"
  add_filtered b 2 "$2"
  boot a 1 server ''
  boot b 2 server ''
  up a b
}
tcp_counter() { # tcp_counter GUEST NAME: of the guest's TCP (RFC 4022 and Linux's own)
  vm exec "$1" 'cat /proc/net/snmp /proc/net/netstat' | awk -v wanted="$2" '
    $1 != table { table = $1; split("", at); for (i = 2; i <= NF; i++) at[$i] = i; next }
    { table = ""; if (wanted in at) { print $at[wanted]; found = 1 } }
    END { exit !found }'
}
# lost_segments: of all that a and b sent again, what had not arrived. What had (the receiver says so: RFC 2883) was sent
# again because a guest was slow.
lost_segments() {
  local guest again known sum=0
  for guest in a b; do
    again=$(tcp_counter $guest RetransSegs)
    known=$(tcp_counter $guest TCPDSACKRecv)
    sum=$((sum + again - known))
  done
  echo "$sum"
}
# change_everything N: ten changes around a connection from a to port 5201 of b, none of which is what admits it.
change_everything() {
  local n=$1 other=10.1.$(($1 / 250)).$(($1 % 250)) rule=(--ip-proto tcp --cidr 10.0.0.0/24)
  bf sg member add clients "$other" + sg rule add server "${rule[@]}" --port $((6000 + n)) + \
    sg rule add more "${rule[@]}" --port 5201 + nic sg add b more + nic update --id b --ip 10.0.0.2 "$other" + \
    sg rule add client --dir out --ip-proto tcp --cidr "$other/32" --port 5201 + nic update --id b --ip 10.0.0.2 + \
    nic sg del b more + sg rule del server "${rule[@]}" --port $((6000 + n)) + sg member del clients "$other" >/dev/null
  bf sg rule del client --dir out --ip-proto tcp --cidr "$other/32" --port 5201 >/dev/null
}

# A transfer on one connection between two real stacks, while rules, members, groups and addresses around it change a
# thousand times.
changes_under_tcp() {
  local n before full lost mbit
  bf sg rule add client --dir out --ip-proto tcp --port 5201 --cidr 10.0.0.2/32
  bf sg rule add server --ip-proto tcp --port 5201 --sg-members clients
  bf sg member add clients 10.0.0.1
  filtered_pair client server
  iperf_server b
  before=$(lost_segments)
  vm exec a 'rm -f /tmp/done; { iperf3 -c 10.0.0.2 -t 300 -b 60M -f m --connect-timeout 5000 >/tmp/iperf 2>&1; echo >/tmp/done; } &'
  wait_for 10 transferring b 1000 || fail "the transfer does not begin: $(vm exec a 'cat /tmp/iperf')"
  full=$(nic_field b 'n["out_bytes"]')
  for ((n = 1; n <= 91; n++)); do change_everything "$n"; done # eleven each
  full=$(($(nic_field b 'n["out_bytes"]') - full))
  [ "$full" -gt 1000000 ] || fail "b received only $full bytes while everything changed: that proves nothing"
  [ -z "$(vm exec a 'cat /tmp/done 2>/dev/null')" ] || fail "the transfer ended: $(vm exec a 'cat /tmp/iperf')"
  [ "$(bf sessions b --proto tcp --port 5201 --count)" -eq 2 ] || fail "not the two connections of iperf3: $(bf sessions b)"
  no_drop_but ring-full
  lost=$(($(lost_segments) - before))
  [ "$lost" -le "$(($(nic_field a 'd["ring-full"]') + $(nic_field b 'd["ring-full"]')))" ] ||
    fail "$lost segments were sent again that had not arrived, and no full ring explains it"
  say "    $full bytes to b during 1001 changes, segments lost: $lost"
  # What admits it goes: so does the connection, and nobody gets in again.
  bf sg member del clients 10.0.0.1
  n=$(nic_field b 'n["out_bytes"]')
  wait_for 5 refused b 1 || fail "nothing of the transfer was refused after its rule lost a"
  [ "$(nic_field b 'n["out_bytes"]')" -eq "$n" ] || fail "b received more after its rule lost a"
  [[ $(bf sessions b) == *" gone"* ]] || fail "iperf3's other connection, now silent, has still a rule: $(bf sessions b)"
  vm exec a 'killall iperf3; iperf3 -c 10.0.0.2 -t 1 --connect-timeout 1500 >/dev/null 2>&1' && fail "a connects to b all the same"
  [ "$(bf sessions b --count)" -eq 0 ] || fail "sessions are left: $(bf sessions b)"
  bf sg member add clients 10.0.0.1
  vm exec b 'killall iperf3; until ! pidof iperf3 >/dev/null; do usleep 20000; done'
  iperf_server b
  mbit=$(throughput a 10.0.0.2 1) || fail "a does not come in again"
  say "    TCP from a to b: $mbit Mbit/s"
}
transferring() { [ "$(nic_field "$1" 'n["out_packets"]')" -gt "$2" ]; }
refused() { [ "$(nic_field "$1" 'd["ingress-denied"]')" -ge "$2" ]; }

# sweep FROM ADDRESS LAST: the ports from 1 to LAST at which somebody answers, if only to refuse.
sweep() {
  vm exec --timeout 60 "$1" "for port in \$(seq 1 $3); do
      { nc -w 2 $2 \$port </dev/null 2>&1 | grep -q refused && echo \$port; } &
      [ \$((port % 100)) -ne 0 ] || wait
    done; wait" | sort -n | tr '\n' ' '
}
# Nothing listens, so an open port answers with a reset, and a closed one is silent.
port_sweep() {
  local found
  bf sg rule add web --ip-proto tcp --port 80 --cidr 0.0.0.0/0
  bf sg rule add web --ip-proto tcp --port-start 150 --port-end 153 --sg-members friends
  bf sg rule add web --ip-proto udp --port 100 --cidr 0.0.0.0/0
  bf sg rule add web --ip-proto tcp --port 199 --cidr 10.0.0.9/32
  bf sg rule add web --ip-proto tcp --dir out --port-start 21 --port-end 22 --cidr 10.0.0.1/32
  bf sg rule add web --ip-proto tcp --dir out --port 199 --sg-members friends
  bf sg rule add all --ip-proto all --cidr 0.0.0.0/0
  bf sg member add friends 10.0.0.1
  filtered_pair all web
  found=$(sweep a 10.0.0.2 200)
  [ "$found" = "80 150 151 152 153 " ] || fail "into b: ports $found answer"
  found=$(sweep b 10.0.0.1 200)
  [ "$found" = "21 22 199 " ] || fail "out of b: ports $found answer"
  bf sg member del friends 10.0.0.1
  found=$(sweep a 10.0.0.2 200)
  [ "$found" = "80 " ] || fail "into b, where a is no friend now: ports $found answer"
  unanswered a 'ping -c 1 -W 1 10.0.0.2' || fail "b answers a ping that no rule lets in"
  no_drop_but "ingress-denied egress-denied"
}
