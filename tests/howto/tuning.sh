# Sourced by run.sh: docs/tuning.md. eth0 is a veth pair, which has queues but no rings to size and no NUMA node: what the kernel answers with
# "not supported" to a command that is well-formed passes. /proc/irq and what sysctl would change for the whole machine are stand-ins. There is
# no systemd: `systemctl` starts and stops what the unit would.
# shellcheck shell=bash

ip link add eth0 numrxqueues 2 numtxqueues 2 type veth peer name wire numrxqueues 2 numtxqueues 2
ip link set eth0 up
ip link set wire up
mkdir -p "$VM_DIR/sockets" "$VM_DIR/irq/24"
echo 0-1 >"$VM_DIR/irq/24/smp_affinity_list"
mount --bind "$VM_DIR/irq" /proc/irq
systemctl_shim

# configured BLOCK...: the daemon's file is an ordinary one with these blocks of the page.
configured() {
  printf '[general]\nip = 192.0.2.1\nsocket-dir = %s\nendpoint = tcp://127.0.0.1:9999\nlog-level = info\nuplink = eth0\n' "$VM_DIR/sockets" >/etc/butterfly/butterflyd.ini
  cat "$@" | sed '1{/^\[general\]$/d}' >>/etc/butterfly/butterflyd.ini
}
# Options of commands that this machine has not: a stand-in that wants the real one to have understood it.
for program in ethtool sysctl cat taskset; do
  cat >"$VM_DIR/bin/$program" <<SHIM
#!/bin/bash
# What changes all of the machine is not changed; /sys of a card that is none is none.
case "$program \$*" in
  'sysctl vm.nr_hugepages='*) exec $(command -v sysctl) vm.nr_hugepages=$((HOWTO_PAGES + 16)) ;;
  'cat /sys/class/net/'*) [ -e "\$2" ] || { echo -1; exit; } ;;
esac
said=\$($(command -v $program) "\$@" 2>&1) || { echo "\$said"; [[ \$said == *'not supported'* || \$said == *'exceeds maximum'* ]]; exit; }
[ -z "\$said" ] || echo "\$said"
SHIM
  chmod +x "$VM_DIR/bin/$program"
done

take 'A core of its own' ini >"$VM_DIR/core.ini"
[ "$(nproc)" -ge 2 ] || sed -i 's/= 1/= 0/' "$VM_DIR/core.ini"
configured "$VM_DIR/core.ini"
systemctl start
# Somebody who stands for a machine. Its name is what counts.
cp "$(command -v sleep)" "$VM_DIR/bin/qemu-system-x86_64"
"$VM_DIR/bin/qemu-system-x86_64" 300 &
OTHERS+=($!)
for block in 'Measure first:1' 'A core of its own:1' 'A core of its own:2' 'A core of its own:3' 'A core of its own:4' 'The card:1' 'The card:2' 'Limits:1'; do
  take "${block%:*}" sh "${block#*:}" >"$VM_DIR/block"
  carry_out "$VM_DIR/block"
  cp "$VM_DIR/block.said" "$VM_DIR/${block// /-}.said"
done
core=$(sed -n 's/graph-core-id = //p' "$VM_DIR/core.ini")
grep -q "^worker-0 Cpus_allowed_list: $core\$" "$VM_DIR/A-core-of-its-own:3.said" || fail "the worker is not on its core: $(<"$VM_DIR/A-core-of-its-own:3.said")"
[ "$(taskset --cpu-list --pid "${OTHERS[-1]}")" = "pid ${OTHERS[-1]}'s current affinity list: 0" ] || fail "the machine is not where the page puts it"
[ "$(<"$VM_DIR/irq/24/smp_affinity_list")" = 0 ] || fail "the interrupts are where they were"
grep -q '^  mode  *native' "$VM_DIR/The-card:1.said" || fail "uplink says: $(<"$VM_DIR/The-card:1.said")"
grep -q '^NOFILE' "$VM_DIR/Limits:1.said" || fail "prlimit says: $(<"$VM_DIR/Limits:1.said")"
ok "cores, the card, limits"

{
  echo "<domain type='kvm'><name>x</name><memory>1</memory>"
  take 'A core of its own' xml
  echo "<os><type arch='x86_64'>hvm</type></os></domain>"
} >"$VM_DIR/cores.xml"
virt-xml-validate "$VM_DIR/cores.xml" domain >/dev/null 2>&1 || fail "the cores of the domain are not as libvirt wants them"

take 'Never sleep' ini >"$VM_DIR/poll.ini"
configured "$VM_DIR/poll.ini"
systemctl restart
butterfly workers --json >"$VM_DIR/workers"
if ! grep -q '"polling": true' "$VM_DIR/workers" || ! grep -q '"sleeps": 0' "$VM_DIR/workers"; then fail "the worker sleeps: $(<"$VM_DIR/workers")"; fi
ok "a worker that never sleeps"

take Sessions ini >"$VM_DIR/sessions.ini"
configured "$VM_DIR/sessions.ini"
systemctl restart
[[ $(butterfly sessions) == *' of 2000000 in use, '* ]] || fail "sessions: $(butterfly sessions)"
butterfly sessions --timeouts >"$VM_DIR/timeouts"
if ! grep -q '^tcp-established  *7200 ' "$VM_DIR/timeouts" || ! grep -q 'may have 1000000$' "$VM_DIR/timeouts"; then fail "the time-outs are: $(<"$VM_DIR/timeouts")"; fi
# As many huge pages as a test may take.
sed -i 's/= 2000000/= 100000/' /etc/butterfly/butterflyd.ini
take Sessions sh >"$VM_DIR/huge"
carry_out "$VM_DIR/huge"
grep -q 'in hugetlbfs$' "$VM_DIR/huge.said" || fail "the table is not in huge pages: $(<"$VM_DIR/huge.said")"
ok "sessions in huge pages, shorter time-outs"
systemctl stop
ip link del eth0
umount /proc/irq
rm "$VM_DIR"/bin/{ethtool,sysctl,cat,taskset,qemu-system-x86_64}
