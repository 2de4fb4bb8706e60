# Sourced by run.sh: docs/virtual-machines.md. Its four machines are started as the page has them, by QEMU and by libvirt, with less memory and
# in software, and ping each other. Then memory and role are combined the other way round: domains against libvirt's schema, QEMU by booting.
# The daemon is no root, and neither is libvirt's QEMU: that groups suffice is part of it.
# shellcheck shell=bash

MEMORY=112 # MiB; two of the machines have it in huge pages

daemon
take 'What a machine needs' sh >"$VM_DIR/nics"
carry_out "$VM_DIR/nics"

take QEMU sh 2 >"$VM_DIR/pages"
sed -i "s/=2048/=$((HOWTO_PAGES + MEMORY + 8))/" "$VM_DIR/pages"
carry_out "$VM_DIR/pages"
# Memory may be in pieces: the kernel puts it together when it is asked again.
reserved() {
  [ "$(awk '/^HugePages_Free/ { print $2 }' /proc/meminfo)" -ge "$MEMORY" ] || { echo 1 >/proc/sys/vm/compact_memory && carry_out "$VM_DIR/pages" && false; }
}
wait_for 30 reserved || fail "no $MEMORY huge pages to be had: $(grep ^HugePages /proc/meminfo)"

# machine NUMBER FILE: starts what is in FILE as vm-NUMBER.
machine() {
  sed -i -e "s/accel=kvm/accel=$VM_ACCEL/; s/-cpu host -smp 2 -m 1G/-cpu max -smp 1 -m ${MEMORY}M/; s/size=1G/size=${MEMORY}M/" \
    -e 's/^qemu-system/exec &/' "$2"
  grep -q ' \.\.\.$' "$2" || fail "no ... in $2"
  words=$(guest_words "vm-$1" "10.0.0.$1")
  sed -i "s|\.\.\.\$|$words|" "$2"
  setsid bash -euo pipefail "$2" </dev/null >"$VM_DIR/vm-$1.qemu" 2>&1 &
  adopt "vm-$1" $!
}
take QEMU sh 1 >"$VM_DIR/qemu-1"
take QEMU sh 3 >"$VM_DIR/qemu-2"
for n in 1 2; do cp "$VM_DIR/qemu-$n" "$VM_DIR/qemu-$n.page"; done
machine 1 "$VM_DIR/qemu-1"
machine 2 "$VM_DIR/qemu-2"

# libvirt, as Debian starts it, and with its default configuration: QEMU runs as libvirt-qemu. There is no AppArmor in a test.
printf 'security_driver = "none"\nstdio_handler = "file"\n' >/etc/libvirt/qemu.conf
libvirtd -t 600 >"$VM_DIR/logs/libvirtd" 2>&1 &
OTHERS+=($!)
virsh_answers() { virsh -q list >/dev/null 2>&1; }
wait_for 10 virsh_answers || fail "libvirtd does not answer"

take libvirt xml 3 >"$VM_DIR/mtu"
for n in 3 4; do
  take libvirt xml $((n - 2)) | sed "/<\/domain>/e cat $VM_DIR/mtu" >"$VM_DIR/vm-$n.page"
  virt-xml-validate "$VM_DIR/vm-$n.page" domain >/dev/null 2>&1 || fail "the domain vm-$n is not as libvirt wants it"
  # QEMU is no root here: what it is to read and write has to be where it may.
  python3 -I -S - "$VM_DIR/vm-$n.page" "$n" "$MEMORY" "$VM_ACCEL" >"$VM_DIR/vm-$n.xml" <<'PYTHON'
import sys
page, n, memory, accel = sys.argv[1:]
text = open(page).read()
def put(old, new):
    global text
    assert text.count(old) == 1, old
    text = text.replace(old, new)
put("<domain type='kvm'>", "<domain type='%s' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>" % ("qemu" if accel == "tcg" else accel))
put("'MiB'>1024<", f"'MiB'>{memory}<")
put("<vcpu>2<", "<vcpu>1<")
put("hvm</type>", f"""hvm</type><kernel>/run/howto/vmlinuz</kernel><initrd>/run/howto/initramfs</initrd>
    <cmdline>console=ttyS0 quiet panic=-1 no_timer_check HOST=vm-{n} IP=10.0.0.{n}/24</cmdline>""")
put("</devices>", "<memballoon model='none'/><controller type='usb' model='none'/>" + "".join(f"""
    <serial type='unix'><source mode='bind' path='/run/howto/vm-{n}.{name}'/>{log}<target port='{port}'/></serial>"""
    for port, (name, log) in enumerate((("console", f"<log file='/run/howto/vm-{n}.log'/>"), ("agent", "")))) + "\n  </devices>")
put("</domain>", "<qemu:commandline><qemu:arg value='-global'/><qemu:arg value='virtio-net-pci.vectors=0'/></qemu:commandline></domain>")
print(text)
PYTHON
done
install -d -o libvirt-qemu -g kvm -m 755 /run/howto
cp "$BUILD/guest/vmlinuz" "$BUILD/guest/initramfs" /run/howto/
take libvirt sh >"$VM_DIR/virsh"
carry_out "$VM_DIR/virsh"
for n in 3 4; do
  for file in agent console log; do ln -s "/run/howto/vm-$n.$file" "$VM_DIR/vm-$n.$file"; done
  adopt "vm-$n" "$(cat "/run/libvirt/qemu/vm-$n.pid")"
done

vm wait vm-1 vm-2 vm-3 vm-4 --timeout 90
for n in 1 2 3 4; do
  wait_for 5 attached_to "vm-$n" || fail "vm-$n is up and not attached"
  [ "$(vm exec "vm-$n" 'cat /sys/class/net/eth0/mtu')" = 1450 ] || fail "vm-$n did not get its MTU"
  [ "$(butterfly nic show "vm-$n" --json | python3 -I -S -c 'import json, sys; print({q["size"] for q in json.load(sys.stdin)["queues"]})')" = '{1024}' ] ||
    fail "the queues of vm-$n have other sizes than the page says: $(butterfly nic show "vm-$n")"
done
for n in 2 3 4; do wait_for 10 ping_all vm-1 "10.0.0.$n" 1 || fail "vm-1 does not reach vm-$n"; done
[ "$(stat -c %u "/proc/$(cat /run/libvirt/qemu/vm-4.pid)")" = 64902 ] || fail "libvirt's QEMU is not libvirt-qemu"
take Look sh >"$VM_DIR/look"
carry_out "$VM_DIR/look"
grep -q '^  attached  *since' "$VM_DIR/look.said" || fail "nic show does not tell of the machine: $(<"$VM_DIR/look.said")"
ok "the four machines of the page, by QEMU and by libvirt"

# All come back when the daemon is started anew.
butterfly dump >"$VM_DIR/dump"
end "$DAEMON_PID"
daemon
butterfly apply "$VM_DIR/dump"
for n in 1 2 3 4; do wait_for 5 attached_to "vm-$n" || fail "vm-$n does not come back after a restart of the daemon"; done
for n in 2 3 4; do wait_for 10 ping_all vm-1 "10.0.0.$n" 1 || fail "vm-1 does not reach vm-$n after a restart of the daemon"; done
ok "they are back after a restart of the daemon"

# The other two combinations.
virsh -q destroy vm-3
virsh -q destroy vm-4
vm stop vm-1 vm-2
swap() { # swap PATTERN FROM TO: the line of FROM in place of that in TO
  sed "s|^  $1.*|$(grep "^  $1" "$2" | sed 's/[\\&|]/\\&/g')|" "$3"
}
swap '-object' "$VM_DIR/qemu-2.page" "$VM_DIR/qemu-1.page" >"$VM_DIR/swapped-1"
swap '-object' "$VM_DIR/qemu-1.page" "$VM_DIR/qemu-2.page" >"$VM_DIR/swapped-2"
if ! grep -q hugepages "$VM_DIR/swapped-1" || ! grep -q memfd "$VM_DIR/swapped-2"; then fail "memory was not exchanged"; fi
for n in 1 2; do machine $n "$VM_DIR/swapped-$n"; done
for n in 3 4; do
  python3 -I -S - "$VM_DIR/vm-$n.page" "$VM_DIR/vm-$((7 - n)).page" >"$VM_DIR/swapped.xml" <<'PYTHON'
import re, sys
mine, other = (open(f).read() for f in sys.argv[1:])
backing = re.compile("<memoryBacking>.*</memoryBacking>", re.S)
print(backing.sub(backing.search(other).group(), mine))
PYTHON
  virt-xml-validate "$VM_DIR/swapped.xml" domain >/dev/null 2>&1 || fail "vm-$n with the other memory is not as libvirt wants it"
done
vm wait vm-1 vm-2 --timeout 60
wait_for 10 ping_all vm-1 10.0.0.2 1 || fail "vm-1 does not reach vm-2 with the other memory"
ok "memory and role the other way round"
