# Sourced by run.sh: docs/migration.md. The original cannot be installed here, so its dump and its configuration are those of the page; and
# there is no systemd: `systemctl` starts and stops what the unit would (tests/package has the unit). Only the socket folder is another one.
# shellcheck shell=bash

ip link add eth0 type veth peer name wire
ip addr add 42.0.0.1/24 dev eth0
ip link set eth0 up
ip link set wire up
mkdir -p "$VM_DIR/sockets"

systemctl_shim

# The old daemon is one that knows what the page says, and its dump is the page's.
take '2. Replace the programs' ini | sed "s|/tmp|$VM_DIR/sockets|" >/etc/butterfly/butterflyd.ini
daemon
take '1. Ask the old daemon' sh 1 >"$VM_DIR/ask"
carry_out "$VM_DIR/ask"
take '1. Ask the old daemon' textproto >/root/before
take '1. Ask the old daemon' sh 2 >"$VM_DIR/edit"
carry_out "$VM_DIR/edit"
! grep -q packet_trace_path /root/before || fail "the old process's traces are still in the dump"
echo "$DAEMON_PID" >"$VM_DIR/unit.pid"
take '2. Replace the programs' sh 1 >"$VM_DIR/keep"
carry_out "$VM_DIR/keep"
take '2. Replace the programs' sh 2 >"$VM_DIR/uplink"
carry_out "$VM_DIR/uplink"
[ "$(grep -c . /etc/butterfly/butterflyd.ini)" -eq 7 ] || fail "the configuration is not what the page says: $(</etc/butterfly/butterflyd.ini)"
take '3. Start, and tell it everything' sh 1 >"$VM_DIR/start"
carry_out "$VM_DIR/start"
# The hashes of the contract: scripts of the original delete rules by them.
grep -q '^f44fac34f8667927 | direction: INBOUND - IP protocol: 6 - port start: 1000 - port end: 2000 - cidr: 10.0.0.0/24 - members of sg: ' "$VM_DIR/start.said" ||
  fail "the rule is not what the original's dump says: $(<"$VM_DIR/start.said")"
[ -S "$VM_DIR/sockets/qemu-vhost-vm-1" ] || fail "the vnic's socket is not where it was"
take '3. Start, and tell it everything' sh 2 >"$VM_DIR/look"
carry_out "$VM_DIR/look"
grep -q eth0 "$VM_DIR/look.said" || fail "the uplink is not eth0: $(<"$VM_DIR/look.said")"
ok "the original's dump and configuration on a new daemon"

# A dump of ours has nothing that the original does not know: names of its fields, and its own values.
take 'Back again' sh >"$VM_DIR/back"
carry_out "$VM_DIR/back"
unknown=$(sed -nE 's/^ *([a-z_0-9]+)( \{|:).*/\1/p' /root/after | sort -u | grep -vxE 'messages|revision|message_0|request|nic_add|sg_add|id|mac|vni|ip|security_group|ip_anti_spoof|bypass_filtering|type|path|packet_trace|member|rule|direction|protocol|port_start|port_end|cidr|address|mask_size' || true)
[ -z "$unknown" ] || fail "a dump has what the original does not know: $unknown"
diff <(grep -vE '^ *(path|packet_trace):|^# end of dump' /root/before) <(grep -vE '^ *(path|packet_trace):|^# end of dump' /root/after) || fail "the dump is not what was requested"
ok "a dump of ours goes back to the original"

# The host beside one with Open vSwitch.
systemctl start
take 'From Open vSwitch' sh >"$VM_DIR/ovs"
carry_out "$VM_DIR/ovs"
butterfly peer list | grep -q '42\.0\.0\.9' || fail "the peer is not named: $(butterfly peer list)"
systemctl stop
ip link del eth0
