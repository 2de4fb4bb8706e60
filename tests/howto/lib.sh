# Sourced by run.sh: a system of its own, the blocks of a document, machines that its commands started.
# shellcheck shell=bash

OTHERS=() # processes that a document's script started, beside daemon and machines

ok() { say "ok $*"; }
fail() {
  say "FAILED: $*" >&2
  exit 1
}

# ---- A system of its own

# Users as the packages of Butterfly and libvirt make them, and nobody of this machine's: the files of both are new. What is written to /etc and
# /root is written to memory. Programs are found as if they were installed.
private_system() {
  local folder kvm
  mount --make-rprivate /
  ip link set lo up
  mkdir -p "$VM_DIR/logs" "$VM_DIR/bin" "$VM_DIR/taken" "$VM_DIR/memory"
  chmod 711 "$VM_DIR"
  mount -t tmpfs howto "$VM_DIR/memory"
  for folder in etc root; do
    mkdir "$VM_DIR/memory/$folder" "$VM_DIR/memory/$folder.work"
    mount -t overlay -o "lowerdir=/$folder,upperdir=$VM_DIR/memory/$folder,workdir=$VM_DIR/memory/$folder.work" howto "/$folder"
  done
  for folder in /run /var/lib/libvirt /var/cache/libvirt /var/log/libvirt; do
    [ ! -d "$folder" ] || mount -t tmpfs -o mode=755 howto "$folder"
  done
  mount -t tmpfs -o mode=1777 howto /dev/shm
  kvm=$(stat -c %g /dev/kvm 2>/dev/null || echo 64903)
  sed -i -E '/^(butterfly|libvirt-qemu|libvirt|kvm):/d' /etc/passwd /etc/group
  printf '%s\n' 'butterfly:x:64901:64901::/nonexistent:/usr/sbin/nologin' "libvirt-qemu:x:64902:$kvm::/nonexistent:/usr/sbin/nologin" >>/etc/passwd
  printf '%s\n' 'butterfly:x:64901:libvirt-qemu' 'libvirt-qemu:x:64902:' "kvm:x:$kvm:" 'libvirt:x:64904:' >>/etc/group
  rm -rf /etc/butterfly /etc/libvirt
  install -d /etc/butterfly /etc/libvirt
  mount -t hugetlbfs -o mode=1777 hugetlbfs /dev/hugepages
  for program in butterfly butterflyd; do cp "$BIN/$program" "$VM_DIR/bin/"; done
  export PATH=$VM_DIR/bin:$PATH
}

# daemon [OPTION...]: as the unit starts it: no root, the group's umask, a folder for its sockets, and the capabilities that
# $CAPABILITIES names (+net_admin), none without it.
daemon() {
  install -d -o butterfly -g butterfly -m 2770 /run/butterfly
  (
    umask 0007
    capabilities=-all${CAPABILITIES:+,$CAPABILITIES}
    exec setsid setpriv --reuid butterfly --regid butterfly --init-groups --inh-caps="$capabilities" --ambient-caps="$capabilities" \
      butterflyd -i 192.0.2.1 --uplink none -s /run/butterfly -e tcp://127.0.0.1:9999 -l info --no-syslog "$@"
  ) </dev/null >>"$VM_DIR/logs/butterflyd" 2>&1 &
  DAEMON_PID=$!
  wait_for 10 answers || fail "butterflyd does not answer"
}
answers() {
  alive "$DAEMON_PID" || fail "butterflyd ended: $(tail -3 "$VM_DIR/logs/butterflyd")"
  butterfly nic list -t 1000 >/dev/null 2>&1
}
# systemctl_shim: `systemctl start`, `stop` and `restart` of the one daemon that the configuration file describes.
systemctl_shim() {
  cat >"$VM_DIR/bin/systemctl" <<SHIM
#!/bin/bash
set -euo pipefail
if [ \$1 != start ]; then
  read -r pid <$VM_DIR/unit.pid
  kill \$pid
  while grep -q '^State:.[^Z]' /proc/\$pid/status 2>/dev/null; do sleep 0.05; done
fi
[ \$1 != stop ] || exit 0
setsid butterflyd -c /etc/butterfly/butterflyd.ini --no-syslog </dev/null >>$VM_DIR/logs/butterflyd 2>&1 &
echo \$! >$VM_DIR/unit.pid
for n in {1..200}; do
  butterfly nic list -t 1000 >/dev/null 2>&1 && exit
  kill -0 \$!
  sleep 0.05
done
exit 1
SHIM
  chmod +x "$VM_DIR/bin/systemctl"
}
# What a document's script started ends with it.
ended() {
  vm stop --all 2>/dev/null || true
  end "${DAEMON_PID:-}" "${OTHERS[@]}"
  rm -f "$VM_DIR"/*.json
}
failed_in() {
  local log
  for log in "$VM_DIR"/logs/* "$VM_DIR"/*.qemu "$VM_DIR"/*.log /var/log/libvirt/qemu/*; do
    [ ! -s "$log" ] || { say "--- $log" && tail -15 "$log"; }
  done >&2
  say "howto: FAILED in docs/$1.md; repeat with: tests/howto/run.sh $1" >&2
}

# ---- The blocks of a document

# blocks: a line for each block that somebody has to take: its number, its language, its heading.
blocks() { awk '/^```[a-z]/ { print ++n " " substr($0, 4) " " heading; on = 1; next } /^```/ { on = !on } !on && /^#/ { heading = $0; sub(/^#+ /, "", heading) }' "$PAGE"; }
# take HEADING LANGUAGE [N]: the Nth (1st) block of that language under that heading, as it is.
take() {
  local number
  number=$(blocks | awk -v want="$2 $1" -v nth="${3:-1}" '{ n = $1; sub(/^[0-9]+ /, "") } $0 == want && ++found == nth { print n }')
  [ -n "$number" ] || fail "$PAGE has no block ${3:-1} of $2 under \"$1\""
  touch "$VM_DIR/taken/$(basename "$PAGE").$number"
  awk -v want="$number" '/^```[a-z]/ { on = (++n == want); next } /^```/ { on = 0 } on' "$PAGE"
}
all_taken() {
  local number rest
  while read -r number rest; do
    [ -e "$VM_DIR/taken/$(basename "$PAGE").$number" ] || fail "nothing ran this block of $PAGE: $rest"
  done < <(blocks)
}
# carry_out FILE: runs a block's commands; the first that fails fails the test.
carry_out() { (cd "$VM_DIR" && timeout 120 bash -euo pipefail "$1" >"$1.said" 2>&1) || fail "these commands fail: $(<"$1")"$'\n'"$(<"$1.said")"; }

# ---- Machines

# The words of a test guest in place of "..." (tests/guest/vm), with what this machine has in place of KVM. QEMU 7.2 wants vectors=0 under
# software emulation.
guest_words() { # guest_words NAME ADDRESS
  printf '%s ' -nodefaults -no-reboot -display none -kernel "$BUILD/guest/vmlinuz" -initrd "$BUILD/guest/initramfs" \
    -append "'console=ttyS0 quiet panic=-1 no_timer_check HOST=$1 IP=$2/24'" -global virtio-net-pci.vectors=0 \
    -chardev "socket,id=console,path=$VM_DIR/$1.console,server=on,wait=off,logfile=$VM_DIR/$1.log" -serial chardev:console \
    -chardev "socket,id=agent,path=$VM_DIR/$1.agent,server=on,wait=off" -serial chardev:agent
}
# adopt NAME PID: from now on `vm` knows it.
adopt() {
  python3 -I -S - "$VM_DIR/$1.json" "$2" <<'PYTHON'
import json, sys
stat = open(f"/proc/{sys.argv[2]}/stat").read()
started = int(stat[stat.rindex(")") + 2:].split()[19])
json.dump({"pid": int(sys.argv[2]), "started": started, "options": {"ip": None, "socket": ""}}, open(sys.argv[1], "w"))
PYTHON
}
attached_to() { [ "$(butterfly nic show "$1" --json | python3 -I -S -c 'import json, sys; print(json.load(sys.stdin)["attached"])')" = True ]; }
