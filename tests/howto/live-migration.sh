# Sourced by run.sh: docs/live-migration.md, its way with libvirt. Three hosts: namespaces for network, mounts and names, each with a butterflyd;
# two have a libvirtd. `vm-1` is a domain as docs/virtual-machines.md has it, and moves there and back while a station on host-3 talks with it.
# There is no SSH server: `ssh HOST COMMAND` runs the command on that host.
# shellcheck shell=bash

MEMORY=160 # MiB
ADDRESS=10.0.0.1 STATION=10.0.0.9

# ---- Hosts

declare -A HOST_PID
# at HOST COMMAND...: runs there, as root.
at() { nsenter -t "${HOST_PID[$1]}" -m -n -u -- "${@:2}"; }
# behind HOST LOG COMMAND...: starts it there.
behind() {
  (exec nsenter -t "${HOST_PID[$1]}" -m -n -u -- setsid "${@:3}") </dev/null >>"$VM_DIR/logs/$2" 2>&1 &
  OTHERS+=($!)
}
# carry_at HOST FILE: carries out a block there.
# shellcheck disable=SC2016 # expanded there
carry_at() { at "$1" bash -c 'cd "$2" && exec timeout 120 bash -euo pipefail "$1"' bash "$2" "$VM_DIR" >"$2.said" 2>&1 || fail "these commands fail on $1: $(<"$2")"$'\n'"$(<"$2.said")"; }

host() { # host NUMBER
  local name=host-$1 folder capabilities
  unshare --mount --net --uts setsid sleep 600 &
  HOST_PID[$name]=$!
  OTHERS+=($!)
  wait_for 5 apart "$!" || fail "no namespaces for $name"
  at "$name" hostname "$name"
  # Control groups are not in the namespaces: two libvirtds would use the same one for vm-1.
  at "$name" umount -R /sys/fs/cgroup 2>/dev/null || true
  at "$name" mount -t sysfs howto /sys
  for folder in /run /etc/libvirt /var/lib/libvirt /var/cache/libvirt /var/log/libvirt; do
    mkdir -p "$folder"
    at "$name" mount -t tmpfs -o mode=755 howto "$folder"
  done
  at "$name" mount -t tmpfs -o mode=1777 howto /dev/shm
  ip link add "$name" type veth peer name eth0 netns "${HOST_PID[$name]}"
  ip link set "$name" master wire up
  at "$name" ethtool -K eth0 tx off >/dev/null
  at "$name" ip addr add "192.0.2.$1/24" dev eth0
  at "$name" ip link set lo up
  at "$name" ip link set eth0 up
  at "$name" install -d -o butterfly -g butterfly -m 2770 /run/butterfly
  # With the capabilities of the unit, and one in place of its LimitMEMLOCK.
  capabilities=-all,+net_admin,+net_raw,+bpf,+perfmon,+ipc_lock
  umask 0007
  behind "$name" "butterflyd.$name" setpriv --reuid butterfly --regid butterfly --init-groups --inh-caps="$capabilities" --ambient-caps="$capabilities" \
    butterflyd -i "192.0.2.$1" --uplink eth0 -s /run/butterfly -e tcp://0.0.0.0:9999 -k /etc/butterfly/key -l info --no-syslog
  umask 0022
  wait_for 10 at "$name" butterfly nic list -t 1000 >/dev/null 2>&1 || fail "butterflyd on $name does not answer"
}
apart() { [ "$(readlink /proc/self/ns/uts)" != "$(readlink "/proc/$1/ns/uts")" ]; }
# libvirt NUMBER: libvirtd there, as Debian starts it. Both would have the UUID of this machine.
libvirt() {
  local name=host-$1
  # shellcheck disable=SC2016 # expanded there
  at "$name" bash -c 'printf "security_driver = \"none\"\nstdio_handler = \"file\"\n" >/etc/libvirt/qemu.conf
    printf "host_uuid = \"00000000-0000-4000-8000-00000000000$1\"\n" >/etc/libvirt/libvirtd.conf
    install -d -o libvirt-qemu -g kvm -m 755 /run/howto
    cp "$2/vmlinuz" "$2/initramfs" /run/howto/' bash "$1" "$BUILD/guest"
  behind "$name" "libvirtd.$name" libvirtd -t 600
  wait_for 10 at "$name" virsh -q list >/dev/null 2>&1 || fail "libvirtd on $name does not answer"
}
# on_vm HOST COMMAND: in the machine, which runs on that host.
on_vm() { at "$1" "$TESTS/guest/vm" --dir /run/howto exec --timeout 60 vm-1 "$2"; }
# there HOST: vm-1 runs there, and `vm` knows it.
there() {
  local pid
  pid=$(at "$1" cat /run/libvirt/qemu/vm-1.pid) || fail "vm-1 is not on $1"
  # shellcheck disable=SC2016
  VM_DIR=/run/howto at "$1" bash -c "$(declare -f adopt)"'; adopt vm-1 "$1"' bash "$pid"
}
show() { # show HOST EXPRESSION
  at "$1" butterfly nic show vm-1 --json | python3 -I -S -c 'import json, sys; n = json.load(sys.stdin); print(eval(sys.argv[1]))' "$2"
}

cat >"$VM_DIR/bin/ssh" <<SHIM
#!/bin/bash
# ssh [OPTION...] -- HOST COMMAND...
set -euo pipefail
while [ "\$1" != -- ]; do shift; done
read -r pid <"$VM_DIR/at.\$2"
shift 2
exec nsenter -t "\$pid" -m -n -u -- bash -c "\$*"
SHIM
chmod +x "$VM_DIR/bin/ssh"

ip link add wire up type bridge stp_state 0 forward_delay 0 mcast_snooping 0
(umask 077 && openssl rand -base64 32 >/etc/butterfly/key)
chgrp butterfly /etc/butterfly/key
chmod 640 /etc/butterfly/key
export BUTTERFLY_KEY=/etc/butterfly/key
for n in 1 2 3; do host $n; done
for n in 1 2; do
  echo "${HOST_PID[host-$n]}" >"$VM_DIR/at.192.0.2.$n"
  libvirt $n
done

# ---- The machine, the station, and what they have to say

for n in 1 2 3; do
  for rule in icmp 'tcp --port-start 7000 --port-end 7001'; do
    # shellcheck disable=SC2086 # words
    at "host-$n" butterfly sg rule add "$([ "$n" = 3 ] && echo station || echo web)" --ip-proto $rule --cidr 10.0.0.0/24 >/dev/null
  done
done
# What the machine opened is its session's: the station may send on it, and no rule would let it begin that.
for n in 1 2; do at "host-$n" butterfly sg rule del web --ip-proto tcp --port-start 7000 --port-end 7001 --cidr 10.0.0.0/24 >/dev/null; done
at host-3 butterfly nic add --type TAP --id station0 --mac 52:54:00:00:00:09 --vni 1337 --ip $STATION --sg station >/dev/null
at host-3 ip addr add $STATION/24 dev station0
at host-3 ip link set station0 up mtu 1450

take '1. Declare it on the other host' sh >"$VM_DIR/declare"
# The same on host-1, where it is from the start.
sed 's/ -e tcp:.*//' "$VM_DIR/declare" >"$VM_DIR/declared"
carry_at host-1 "$VM_DIR/declared"

PAGE=$REPO/docs/virtual-machines.md take libvirt xml 1 >"$VM_DIR/huge"
PAGE=$REPO/docs/virtual-machines.md take libvirt xml 2 >"$VM_DIR/ordinary"
PAGE=$REPO/docs/virtual-machines.md take libvirt xml 3 >"$VM_DIR/mtu"
python3 -I -S - "$VM_DIR/huge" "$VM_DIR/ordinary" "$VM_DIR/mtu" "$MEMORY" "$VM_ACCEL" >"$VM_DIR/vm-1.xml" <<'PYTHON'
import re, sys
huge, ordinary, mtu, memory, accel = sys.argv[1:]
huge, text, mtu = (open(f).read() for f in (huge, ordinary, mtu))
def put(old, new):
    global text
    assert text.count(old) == 1, old
    text = text.replace(old, new)
# Butterfly owns the socket, as nic add has it without --type.
interface = re.compile("<interface.*</interface>", re.S)
text = interface.sub(lambda _: interface.search(huge).group().replace("vm-3", "vm-1").replace("00:03", "00:01"), text)
put("<name>vm-4<", "<name>vm-1<")
put("<domain type='kvm'>", "<domain type='%s' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>" % ("qemu" if accel == "tcg" else accel))
put("'MiB'>1024<", f"'MiB'>{memory}<")
put("<vcpu>2<", "<vcpu>1<")
put("hvm</type>", """hvm</type><kernel>/run/howto/vmlinuz</kernel><initrd>/run/howto/initramfs</initrd>
    <cmdline>console=ttyS0 quiet panic=-1 no_timer_check HOST=vm-1 IP=10.0.0.1/24</cmdline>""")
put("</devices>", "<memballoon model='none'/><controller type='usb' model='none'/>" + "".join(f"""
    <serial type='unix'><source mode='bind' path='/run/howto/vm-1.{name}'/>{log}<target port='{port}'/></serial>"""
    for port, (name, log) in enumerate((("console", "<log file='/run/howto/vm-1.log'/>"), ("agent", "")))) + "\n  </devices>")
put("</domain>", mtu + "<qemu:commandline><qemu:arg value='-global'/><qemu:arg value='virtio-net-pci.vectors=0'/></qemu:commandline></domain>")
print(text)
PYTHON
at host-1 virsh -q define "$VM_DIR/vm-1.xml"
at host-1 virsh -q start vm-1
there host-1
at host-1 "$TESTS/guest/vm" --dir /run/howto wait vm-1 --timeout 90
on_vm host-1 "ping -c 1 -W 5 $STATION >/dev/null" || fail "vm-1 does not reach the station"


# ---- Moves

# talk HOST: the machine on HOST and the station begin to talk: pings both ways, and two connections that the machine opens.
talk() {
  : >"$VM_DIR/logs/station"
  behind host-3 station "$TESTS/lib/station.py" talk $STATION $ADDRESS "$VM_DIR/talked"
  wait_for 10 grep -q ready "$VM_DIR/logs/station" || fail "the station does not talk: $(<"$VM_DIR/logs/station")"
  on_vm "$1" "rm -f /tmp/open /tmp/got; mkfifo /tmp/open; nc $STATION 7000 <>/tmp/open >/tmp/got 2>/dev/null &
    { while :; do head -c 16k /dev/zero; usleep 10000; done | nc $STATION 7001; } >/dev/null 2>&1 &
    /bin/ping -q -i 0.01 $STATION >/tmp/pings 2>&1 &"
  wait_for 20 grew "$1" || fail "the connection of vm-1 does not begin"
}
grew() { [ "$(on_vm "$1" 'stat -c %s /tmp/got')" -gt 1000000 ]; }
# heard HOST "ECHOES": they end, and both connections were whole. What became of the pings is in $told. ECHOES is what was said before.
heard() {
  local asked got replied before
  wait_for 40 whole "$1" || fail "the connection that vm-1 opened did not survive: $(at "$1" butterfly sessions vm-1)"
  asked=$(on_vm "$1" "$PING_ENDS")
  end "${OTHERS[-1]}"
  read -r -a before <<<"$2"
  read -r got replied < <(on_vm "$1" "$ECHOES")
  on_vm "$1" 'killall nc 2>/dev/null; true'
  told=$("$TESTS/lib/station.py" tell "$VM_DIR/talked" got=$((got - before[0])) replied=$((replied - before[1])) asked="$asked")
}
whole() { [ "$(on_vm "$1" 'sha256sum </tmp/got')" = "$DIGEST  -" ]; }
so() { python3 -I -S -c 'import json, sys; t = json.loads(sys.argv[2]); sys.exit(not eval(sys.argv[1]))' "$1" "$told"; }

# moved FROM TO FILE: carries out on FROM what is in FILE, and looks at what the machine and the station noticed. QEMU's stand-still is what
# libvirt says: from the stop here to the start there.
moved() {
  local downtime before in sessions
  before=$(on_vm "$1" "$ECHOES")
  talk "$1"
  in=$(show "$1" 'n["in_packets"]')
  carry_at "$1" "$3"
  if at "$1" virsh dominfo vm-1 >/dev/null 2>&1; then fail "vm-1 is still defined on $1"; fi
  [ "$(at "$2" virsh domstate vm-1 --reason | head -1)" = 'running (migrated)' ] || fail "vm-1 on $2 is $(at "$2" virsh domstate vm-1 --reason)"
  there "$2"
  downtime=$(at "$2" virsh domjobinfo --completed vm-1 | awk '/^Total downtime/ { print $3 }')
  heard "$2" "$before"
  say "    from $1 to $2: libvirt says that vm-1 stood still for $downtime ms; $told"
  [ "$(show "$2" 'n["in_packets"]')" -gt "$in" ] || fail "the counters of vm-1 did not move to $2"
  sessions=$(sed -n 's/^vm-1: \([0-9]*\) sessions taken over.*/\1/p' "$3.said" | head -1)
  [ "${sessions:-0}" -ge 3 ] || fail "no sessions were taken over: $(<"$3.said")"
  [ "$(show "$2" "' '.join(d['reason'] for d in n['drops'] if d['count'] and d['reason'] not in ('not-attached', 'ring-full', 'for-routers'))")" = '' ] ||
    fail "drops at $2 that nothing here asks for: $(at "$2" butterfly nic show vm-1)"
  so "t['lost_ms'] <= $downtime + max(t['trip_ms']) + $LATE" || fail "more was lost than QEMU's stand-still and a round trip explain"
  so "t['answers_lost'] == t['own_lost'] == t['repeated'] == 0" || fail "what vm-1 sent was lost, or came twice"
}
LATE=20 # ms: the distance of two pings, and the clocks of libvirt and the station, which are read a moment later
DIGEST=$("$TESTS/lib/station.py" digest)

carry_at host-1 "$VM_DIR/declare"
[ "$(show host-2 'n["announced"]')" = 0 ] || fail "host-2 announced a machine that is not there"
take '2. With libvirt' sh >"$VM_DIR/move"
moved host-1 host-2 "$VM_DIR/move"
take '3. Clean up' sh >"$VM_DIR/clean"
carry_at host-1 "$VM_DIR/clean"
ok "there"

# A migration that fails: it is too slow, and given up.
sed 's/192\.0\.2\.2/192.0.2.1/g' "$VM_DIR/declare" >"$VM_DIR/declare-back"
sed 's/192\.0\.2\.2/192.0.2.1/g' "$VM_DIR/move" >"$VM_DIR/move-back"
carry_at host-2 "$VM_DIR/declare-back"
at host-2 virsh -q migrate-setspeed vm-1 1
before=$(on_vm host-2 "$ECHOES")
passed=$(show host-2 'n["passed_on"]')
talk host-2
behind host-2 given-up bash -euo pipefail "$VM_DIR/move-back"
copying() { at host-2 virsh domjobinfo vm-1 2>/dev/null | grep -q '^Data processed: *[1-9]'; }
wait_for 30 copying || fail "nothing is copied: $(<"$VM_DIR/logs/given-up")"
at host-2 virsh -q domjobabort vm-1
wait_for 20 gone "${OTHERS[-1]}" || fail "virsh migrate does not end"
grep -q '^error: ' "$VM_DIR/logs/given-up" || fail "the migration that was given up said: $(<"$VM_DIR/logs/given-up")"
unset 'OTHERS[-1]'
heard host-2 "$before"
say "    given up: $told"
so "t['lost'] == t['answers_lost'] == t['own_lost'] == t['repeated'] == 0" || fail "a migration that was given up cost pings"
[ "$(show host-2 'n["passed_on"]')" = "$passed" ] || fail "host-2 passes on"
at host-2 virsh -q migrate-setspeed vm-1 1000
ok "given up"

moved host-2 host-1 "$VM_DIR/move-back"
at host-1 virsh -q destroy vm-1
ok "and back"
