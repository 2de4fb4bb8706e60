# Sourced by run.sh: the cases.
# shellcheck shell=bash
# shellcheck disable=SC2016 # what is in single quotes is expanded in machines

# While the guests boot.
outputs() {
  local said guest want dressed=()
  b one sg add lan
  said=$(b one status)
  [[ $said =~ ^'start date: '[0-9]+$'\n''current date: '[0-9]+$'\n''request counter: '[0-9]+$'\n''dot graph: '$'\n''strict graph G {'$'\n' ]] ||
    fail "status prints: $said"
  for want in '"vtep4:vxlan"' '"switch:switch-1337"' '"firewall:firewall-vm-1"' '"antispoof:antispoof-vm-2"' '"vhost:vhost-vm-2"'; do
    [[ $said == *"$want"* ]] || fail "$want is not in the graph of status"
  done
  [ "$(b one nic list)" = vm-1$'\n'vm-2 ] || fail "nic list prints $(b one nic list)"
  [ "$(b one nic list -e "tcp://$(address_of two):$(port_of two)")" = vm-3$'\n'vm-4 ] || fail "the other host's client does not get its list"
  [ "$(b one nic details vm-1)" = "id: vm-1
mac: $(mac_of vm-1)
vni: 1337
ip: $(ip4_of vm-1)
ip: $(ip6_of vm-1)
antispoof: true
bypass filtering: false
packet trace: false" ] || fail "nic details prints $(b one nic details vm-1)"
  [ "$(b one nic sg list vm-1)" = lan ] || fail "nic sg list prints $(b one nic sg list vm-1)"
  says 'NIC: none not found' 1 one nic details none
  says 'NIC does not exist with id none' 1 one nic stats none
  says 'error in command: nic' 1 one nic add --id half --vni 1
  says '' 0 one nic del none
  ok "outputs and exit codes"
  vm wait "${GUESTS[@]}" --timeout 120
  for guest in "${GUESTS[@]}"; do
    dress "$guest" &
    dressed+=($!)
  done
  for guest in "${dressed[@]}"; do wait "$guest"; done
  ok "four machines on two hosts"
}

# On one host, and between hosts.
rules() {
  local hash
  blocked vm-1 vm-2 vm-3
  ok "ping blocked without a rule"
  everywhere sg rule add lan --ip-proto icmp --cidr 10.0.0.0/24 + sg rule add lan --ip-proto 58 --cidr 2001:db8:42::/64
  reaches vm-1 vm-2 vm-3 vm-4
  reaches vm-3 vm-1
  ok "ping allowed by a rule, both families"
  # By its options on one host, by its hash on the other.
  everywhere sg rule del lan --ip-proto icmp --cidr 10.0.0.0/24
  blocked_family vm-1 "$(ip4_of vm-2)" "$(ip4_of vm-3)"
  answered vm-1 "$(ip6_of vm-2)" "$(ip6_of vm-3)" || fail "the removal of a rule took another one with it"
  hash=$(b one sg rule list lan | sed -n 's/^\([0-9a-f]\{16\}\) | direction: INBOUND - IP protocol: 58 - port start: Ø - port end: Ø - cidr: 2001:db8:42::\/64 - members of sg: Ø$/\1/p')
  [ -n "$hash" ] || fail "sg rule list prints $(b one sg rule list lan)"
  everywhere sg rule del lan "$hash"
  blocked vm-1 vm-2 vm-3
  says "no rule found with hash $hash" 1 one sg rule del lan "$hash"
  ok "ping blocked after the rule's removal, by options and by hash"
}
blocked_family() { silent "$@" || fail "$1 reaches ${*:2} and should not ($CASE)"; }

ports() {
  everywhere sg rule add lan --ip-proto tcp --port-start 80 --port-end 81 --cidr 10.0.0.0/8 + \
    sg rule add lan --ip-proto tcp --port-start 80 --port-end 81 --cidr ::/0
  opens vm-1 vm-3 80
  opens vm-4 vm-2 81
  refused vm-1 vm-3 82
  blocked vm-1 vm-3
  says 'wrong port configuration' 1 one sg rule add lan --ip-proto tcp --port-start 90 --port-end 80 --cidr 10.0.0.0/8
  everywhere sg add lan # declared anew, it is empty
  refused vm-1 vm-3 80
  ok "TCP by a range of ports, both families"
}

# Streams on one host and between hosts, over both families, and what a port that no rule names gets of them.
streams() {
  local guest to address
  for guest in vm-2 vm-3; do iperf_server "$guest" || fail "no iperf3 server in $guest"; done
  everywhere sg rule add lan --ip-proto tcp --port 5201 --cidr 0.0.0.0/0 + sg rule add lan --ip-proto tcp --port 5201 --cidr ::/0
  for to in vm-2 vm-3; do
    for address in $(both_of "$to"); do
      [ "$(throughput vm-1 "$address" 1)" -gt 0 ] || fail "no TCP stream from vm-1 to $address"
    done
  done
  for address in $(both_of vm-3); do
    ! udp_stream vm-1 "$address" || fail "a UDP stream from vm-1 passes to $address, and only TCP is allowed"
  done
  everywhere sg rule add lan --ip-proto udp --port 5201 --cidr 0.0.0.0/0 + sg rule add lan --ip-proto udp --port 5201 --cidr ::/0
  for to in vm-2 vm-3; do
    for address in $(both_of "$to"); do
      wait_for 10 udp_stream vm-1 "$address" || fail "no UDP stream from vm-1 to $address"
    done
  done
  for guest in vm-2 vm-3; do vm exec "$guest" 'killall iperf3'; done
  everywhere sg add lan
  ok "TCP and UDP streams, both families"
}
# udp_stream FROM ADDRESS: a second of 200 packets, most of which arrive.
udp_stream() {
  local said
  said=$(vm exec --timeout 30 "$1" "timeout 4 iperf3 -u -c $2 -b 1600k -l 1000 -t 1 -J --connect-timeout 2000") || return 1
  python3 -I -S -c '
import json, sys
sums = json.loads(sys.argv[1])["end"]["sum"]
sys.exit(not (sums["packets"] >= 50 and sums["lost_percent"] < 50))' "$said" 2>/dev/null
}

members() {
  everywhere sg member add clients "$(ip4_of vm-1)"
  everywhere sg member add clients "$(ip6_of vm-1)"
  everywhere sg rule add lan --ip-proto all --sg-members clients
  reaches vm-1 vm-3
  opens vm-1 vm-4 80
  blocked vm-2 vm-3
  ok "only members of a group are let in"
  b two sg member add clients "$(ip4_of vm-2)"
  [ "$(b two sg member list clients)" = "$(ip4_of vm-1)"$'\n'"$(ip6_of vm-1)"$'\n'"$(ip4_of vm-2)" ] || fail "sg member list: $(b two sg member list clients)"
  wait_for 10 answered vm-2 "$(ip4_of vm-3)" || fail "a new member is not let in"
  b two sg member del clients "$(ip4_of vm-1)"
  blocked_family vm-1 "$(ip4_of vm-3)"
  answered vm-1 "$(ip6_of vm-3)" || fail "a member's other address lost its rule"
  b two sg del clients
  blocked_family vm-1 "$(ip6_of vm-3)"
  blocked vm-2 vm-3
  b one sg del clients
  everywhere sg add lan
  ok "a member that is removed, a group that is deleted: blocked"
}

cumulated() {
  everywhere sg rule add pinged --ip-proto icmp --cidr 0.0.0.0/0 + sg rule add pinged --ip-proto 58 --cidr ::/0
  b two sg rule add web --ip-proto tcp --port 80 --cidr 0.0.0.0/0 + sg rule add web --ip-proto tcp --port 80 --cidr ::/0
  b two nic sg set vm-3 pinged
  reaches vm-1 vm-3
  refused vm-1 vm-3 80
  b two nic sg add vm-3 web lan
  [ "$(b two nic sg list vm-3)" = lan$'\n'pinged$'\n'web ] || fail "nic sg list: $(b two nic sg list vm-3)"
  reaches vm-1 vm-3
  opens vm-1 vm-3 80
  b two nic sg del vm-3 pinged
  blocked vm-1 vm-3
  opens vm-1 vm-3 80
  b two nic sg set vm-3 lan + sg del web pinged
  b one sg del pinged
  refused vm-1 vm-3 80
  ok "groups cumulate"
}

# The address a machine speaks with is the one it was given, and no other.
addresses() {
  local old new=10.0.0.33
  old=$(ip4_of vm-3)
  everywhere sg rule add lan --ip-proto all --cidr 0.0.0.0/0
  wait_for 10 answered vm-1 "$old" || fail "vm-1 does not reach vm-3"
  b two nic update --id vm-3 --ip $new
  blocked_family vm-3 "$(ip4_of vm-1)" # it still speaks as $old
  vm exec vm-3 "ip addr del $old/24 dev eth0; ip addr add $new/24 dev eth0"
  wait_for 10 answered vm-3 "$(ip4_of vm-1)" || fail "vm-3 does not get through with its new address"
  wait_for 10 answered vm-1 $new || fail "vm-3 is not reached at its new address"
  [[ $(b two nic details vm-3) == *$'\n'"ip: $new"$'\n'antispoof* ]] || fail "nic details: $(b two nic details vm-3)"
  b two nic update --id vm-3 --ip -e
  [[ $(b two nic details vm-3) != *'ip: '* ]] || fail "nic update --ip -e does not clear the addresses"
  blocked_family vm-3 "$(ip4_of vm-1)"
  says 'Bad Nic update format' 1 two nic update --id vm-3 --ip 10.0.0.333
  b two nic update --id vm-3 --ip "$old" --ip "$(ip6_of vm-3)"
  vm exec vm-3 "ip addr del $new/24 dev eth0; ip addr add $old/24 dev eth0"
  wait_for 10 answered vm-1 "$old" || fail "vm-3 is not reached at its old address again"
  # Without the check, ARP for whatever it likes gets out; IP still does not.
  vm exec vm-3 "ip addr add $new/24 dev eth0"
  arp() { vm exec vm-1 "arping -f -q -c 2 -w 2 $new"; }
  ! arp || fail "vm-3 answers ARP for an address that is not its own"
  b two nic update --id vm-3 --enable-antispoof false
  arp || fail "vm-3 does not answer ARP where nobody checks"
  blocked_family vm-1 $new
  b two nic update --id vm-3 --enable-antispoof true
  vm exec vm-3 "ip addr del $new/24 dev eth0"
  vm exec vm-1 'ip neigh flush dev eth0' >/dev/null
  everywhere sg add lan
  ok "nic update: the new address passes, the old one does not"
}

# Same addresses, another network.
isolation() {
  everywhere sg rule add lan --ip-proto all --cidr 0.0.0.0/0 + sg rule add lan --ip-proto all --cidr ::/0
  reaches vm-1 vm-3
  VNI=1338 nic_add vm-3 --sg lan --enable-antispoof >/dev/null
  vm exec vm-3 'until [ "$(cat /sys/class/net/eth0/carrier)" = 1 ]; do usleep 50000; done'
  wait_for 10 in_stats two vm-3 || fail "vm-3 did not come back by itself in its new network"
  blocked vm-1 vm-3
  blocked vm-3 vm-1
  nic_add vm-3 --sg lan --enable-antispoof >/dev/null
  reaches vm-1 vm-3
  reaches vm-3 vm-4
  ok "networks do not see each other"
}
# in_stats HOST NIC: the switch receives what the machine sends.
in_stats() {
  local before
  before=$(b "$1" nic stats "$2" | sed -n 's/^in: //p')
  vm exec "$2" "ping -c 1 -W 1 $(ip4_of vm-1)" >/dev/null || true
  [ "$(b "$1" nic stats "$2" | sed -n 's/^in: //p')" -gt "$before" ]
}

# QEMU dies and is started again on the same socket.
reattachment() {
  local said
  reaches vm-1 vm-4
  vm restart vm-4 --kill
  dress vm-4
  reaches vm-4 vm-1 vm-3
  said=$(b two nic stats vm-4)
  [[ $said =~ ^'in: '[1-9][0-9]*$'\n''out: '[1-9][0-9]*$ ]] || fail "nic stats prints $said"
  ok "a machine that was killed comes back on its socket"
}

# A server on host one, a client on host two, both real. What a server says leaves a filtered machine as the answer to a request that a rule
# for DHCP servers let in; a rule that lets everything in or out is none.
dhcp() {
  everywhere sg rule add dhcp --ip-proto udp --port-start 67 --port-end 68 --cidr 0.0.0.0/0
  b one sg rule add everything --ip-proto all --cidr 0.0.0.0/0
  b one sg rule add everything --dir out --ip-proto all --cidr 0.0.0.0/0
  b one nic sg set vm-2 everything
  b two nic sg set vm-3 dhcp
  vm exec vm-2 'printf "start 10.0.0.50\nend 10.0.0.50\ninterface eth0\nlease_file /tmp/leases\npidfile /tmp/udhcpd.pid\noption subnet 255.255.255.0\n" >/tmp/udhcpd.conf
    >/tmp/leases; udhcpd -a 100 -S /tmp/udhcpd.conf'
  vm exec vm-3 "ip addr flush dev eth0; printf '#!/bin/sh\n[ \$1 != bound ] || { ip addr add \$ip/24 dev eth0; echo \$ip \$serverid >/tmp/bound; }\n' >/tmp/dhcp.script; chmod +x /tmp/dhcp.script"
  ! lease || fail "a machine that may send everything is a DHCP server"
  b one nic sg set vm-2 dhcp
  lease || fail "vm-3 gets no lease from vm-2"
  [ "$(vm exec vm-3 'cat /tmp/bound')" = "10.0.0.50 $(ip4_of vm-2)" ] || fail "the lease is $(vm exec vm-3 'cat /tmp/bound')"
  # With what it got it speaks when it is told that it may.
  b two nic update --id vm-3 --ip 10.0.0.50
  b two nic sg set vm-3 lan
  wait_for 10 answered vm-1 10.0.0.50 || fail "vm-3 is not reached at the address of its lease"
  vm exec vm-2 'kill $(cat /tmp/udhcpd.pid)'
  b two nic update --id vm-3 --ip "$(ip4_of vm-3)" --ip "$(ip6_of vm-3)"
  vm exec vm-3 'ip addr flush dev eth0'
  dress vm-3
  b one nic sg set vm-2 lan + sg del dhcp everything
  b two sg del dhcp
  reaches vm-2 vm-3
  ok "DHCP between machines of two hosts"
}
lease() { vm exec vm-3 'udhcpc -i eth0 -n -q -t 2 -T 1 -s /tmp/dhcp.script' >/dev/null; }

# Host two records by -t, the uplink too; on host one a vnic does that is asked to.
traced() {
  local pid file=$VM_DIR/vm-1.pcap
  b one nic update --id vm-1 --packet-trace true --trace-path "$file"
  [[ $(b one nic details vm-1) == *$'\npacket trace: true' && $(b two nic details vm-3) == *$'\npacket trace: true' ]] ||
    fail "nic details print $(b one nic details vm-1) $(b two nic details vm-3)"
  reaches_v4 vm-1 vm-3
  b one nic update --id vm-1 --packet-trace false
  pid=$(<"$HOSTS/two/daemon.pid")
  wait_for 10 recorded "$file" vm-1 vm-3 || fail "$file has no ping"
  wait_for 10 recorded "/tmp/butterfly-$pid-vm-3.pcap" vm-1 vm-3 || fail "the file of vm-3 has no ping"
  wait_for 10 recorded "/tmp/butterfly-$pid-main.pcap" vm-1 vm-3 || fail "the uplink's file has no ping"
  ! recorded "/tmp/butterfly-$pid-vm-4.pcap" vm-1 vm-3 || fail "the file of vm-4 has packets of vm-3"
  ok "packets are recorded, by -t and for one vnic"
}
reaches_v4() { wait_for 10 answered "$1" "$(ip4_of "$2")" || fail "$1 does not reach $2 ($CASE)"; }
# recorded FILE GUEST GUEST: it is a pcap file that has echo requests from one to the other, in a tunnel or not.
recorded() {
  python3 -I -S - "$1" "$(ip4_of "$2")" "$(ip4_of "$3")" <<'PYTHON'
import socket, struct, sys
data = open(sys.argv[1], "rb").read()
magic = data[:4]
order = {b"\xd4\xc3\xb2\xa1": "<", b"\x4d\x3c\xb2\xa1": "<", b"\xa1\xb2\xc3\xd4": ">", b"\xa1\xb2\x3c\x4d": ">"}[magic]
ends, at, found = b"".join(map(socket.inet_aton, sys.argv[2:])), 24, 0
while at + 16 <= len(data):
    length = struct.unpack(order + "I", data[at + 8 : at + 12])[0]
    frame = data[at + 16 : at + 16 + length]
    found += ends + b"\x08\x00" in frame
    at += 16 + length
sys.exit(not found)
PYTHON
}

# Vnics that ping and answer by themselves: on one host, and across hosts.
pings() {
  local host
  b one nic add --type BENCH --btype ICMP_SND_LIKE --id snd --mac 52:54:00:00:00:32 --vni 43 --ip 10.43.0.2 \
    --dip 10.43.0.1 --dmac 52:54:00:00:00:31 --bypass-filtering >/dev/null
  for host in one two; do
    b "$host" nic add --type BENCH --btype ICMP_RCV_LIKE --id rcv --mac 52:54:00:00:00:31 --vni 43 --ip 10.43.0.1 --bypass-filtering >/dev/null
    wait_for 20 grows one snd || fail "snd gets no answers from host $host: $(b one nic stats snd)"
    wait_for 10 grows "$host" rcv || fail "rcv gets no requests on host $host: $(b "$host" nic stats rcv)"
    b "$host" nic del rcv
  done
  grep -q '^ping time for 1024 pkts: min/mean/max ' "$HOSTS/one/butterflyd.log" || fail "the daemon prints no ping times"
  b one nic del snd
  ok "bench vnics ping on one host and across hosts"
}
grows() {
  local before
  before=$(b "$1" nic stats "$2" | sed -n 's/^in: //p')
  sleep 0.2
  [ "$(b "$1" nic stats "$2" | sed -n 's/^in: //p')" -gt "$before" ]
}

# The daemon dies with everything it was told. Its dump makes the same host again.
restored() {
  # Something of everything that can be said.
  b one sg rule add mixed --ip-proto 132 --cidr 10.0.0.0/24 + sg rule add mixed --ip-proto udp --port 53 --sg-members clients + \
    sg rule add mixed --dir out --ip-proto all --cidr ::/0 + sg member add clients 192.0.2.9 + sg member add clients 2001:db8::9 + sg add none
  b one nic add --id plain --mac 52:54:00:00:00:99 --vni 16777215 --bypass-filtering >/dev/null
  b one nic add --id grouped --mac 52:54:00:00:00:98 --vni 7 --ip 10.7.0.1 --sg mixed --sg nowhere >/dev/null
  # vm-2 is not to be pinged any more, vm-1 is.
  b one nic sg set vm-2 none
  b one dump >"$VM_DIR/before"
  b one request "$VM_DIR/before"
  b one request "$VM_DIR/before" --stdout >"$VM_DIR/replies"
  [ "$(grep -c 'status: true' "$VM_DIR/replies")" -eq "$(grep -c '^messages {' "$VM_DIR/before")" ] || fail "not all of a dump is accepted"
  b one dump >"$VM_DIR/twice"
  cmp "$VM_DIR/before" "$VM_DIR/twice" || fail "a dump that is requested twice changes something"
  reaches vm-3 vm-1
  ok "dump is a request that changes nothing"
  host_kill one
  start one
  [ -z "$(b one nic list)$(b one sg list)" ] || fail "a fresh daemon has something"
  b one request "$VM_DIR/before"
  b one dump >"$VM_DIR/after"
  cmp "$VM_DIR/before" "$VM_DIR/after" || fail "a fresh daemon's dump is not what it was told"
  reaches vm-3 vm-1
  reaches vm-1 vm-4
  blocked vm-3 vm-2
  b one nic sg set vm-2 lan
  reaches vm-3 vm-2
  b one nic del plain grouped + sg del mixed clients none
  ok "a daemon that was killed: its dump is requested, its machines are back"
}

encrypted() {
  local key=$VM_DIR/key other=$VM_DIR/other far
  openssl rand -base64 32 >"$key"
  openssl rand -base64 32 >"$other"
  chmod 600 "$key" "$other"
  far=tcp://$(address_of two):$(port_of two)
  b two dump >"$VM_DIR/two"
  host_stop two
  start two -k "$key"
  grep -q '^Encryption key loaded$' "$HOSTS/two/butterflyd.log" || fail "the daemon does not say that it has a key"
  says 'error in response: REJECTED' 1 two request "$VM_DIR/two"
  says 'Encrypted message error: REJECTED' 1 two request "$VM_DIR/two" -k "$other"
  says 'Encrypted message error: REJECTED' 1 two request "$VM_DIR/two" -k "$other" --legacy-encryption
  says 'cannot load encryption key' 1 two nic list -k "$VM_DIR/none"
  [ -z "$(b two nic list -k "$key")" ] || fail "who has no key changed something"
  ok "a wrong key, and none, are refused"
  b two request "$VM_DIR/two" -k "$key"
  b two dump -k "$key" --legacy-encryption >"$VM_DIR/again"
  cmp "$VM_DIR/two" "$VM_DIR/again" || fail "what was restored under a key is not what it was"
  says $'Request is encrypted\nReceived encrypted response' 0 two nic list -v -k "$key" --legacy-encryption
  [ "$(b one nic list -k "$key" -e "$far")" = vm-3$'\n'vm-4 ] || fail "the other host's client does not get through with the key"
  says 'error in response: REJECTED' 1 one nic list -e "$far"
  [ "$(b one nic list)" = vm-1$'\n'vm-2 ] || fail "host one wants a key, too"
  # vm-4 has no reconnect: the original's price.
  vm restart vm-4 --kill
  dress vm-4
  reaches vm-1 vm-3
  reaches vm-4 vm-2
  b two sg add lan -k "$key"
  blocked vm-1 vm-3
  b two sg rule add lan --ip-proto all --cidr 0.0.0.0/0 -k "$key" --legacy-encryption
  wait_for 10 answered vm-1 "$(ip4_of vm-3)" || fail "a rule that was added in the legacy form does not count"
  ok "a host with a key, in both forms"
  b two shutdown -k "$key" --legacy-encryption
}

ended() {
  local host pid
  b one nic del vm-1 vm-2
  [ ! -e "$SOCKETS/qemu-vhost-vm-1" ] || fail "a deleted nic's socket is left"
  b one shutdown
  for host in one two; do
    pid=$(<"$HOSTS/$host/daemon.pid")
    wait_for 5 gone "$pid" || fail "butterflyd of host $host goes on after butterfly shutdown"
    rm "$HOSTS/$host/daemon.pid"
    wait "$pid" || fail "butterflyd of host $host ended with status $?"
  done
  [ -z "$(find "$HOSTS" -name 'qemu-vhost-*')" ] || fail "sockets are left: $(find "$HOSTS" -name 'qemu-vhost-*')"
  ok "shutdown"
}
