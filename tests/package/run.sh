#!/bin/bash
# run.sh [container]: the Debian package in a Debian with systemd: installed, used, upgraded, its daemon stuck and restarted, removed, purged.
# The system is made by debootstrap once (kept in build/package) and booted under QEMU, or as a container (systemd-nspawn), whose processors
# are never emulated: times mean something there. What happens in it is in guest.sh.
# BIN=dir packages other builds. Needs root and, the first time, a Debian mirror.
set -euo pipefail
# shellcheck source=../lib/common.sh
. "$(dirname "$0")/../lib/common.sh"

HERE=$TESTS/package
OUT=$BUILD/package
LIMIT=${LIMIT:-1200} # seconds the system may run: emulated processors are slow
MIRROR=${MIRROR:-http://deb.debian.org/debian}
ROOT=$BUILD/guest/root
LOG=$OUT/console.log
boot=${1:-qemu}
case $boot in
  qemu) programs="mkfs.ext4 qemu-system-x86_64" ;;
  container) programs=systemd-nspawn ;;
  *) die "run.sh $boot: only \"container\" can be asked for" ;;
esac
[ "$(id -u)" = 0 ] || die "needs root, for debootstrap"
for program in debootstrap $programs; do
  command -v "$program" >/dev/null || die "$program is missing: run make setup"
done
mkdir -p "$OUT"
[ "$boot" = container ] || "$TESTS/guest/build.sh"

system='' # QEMU or the container
trap '[ -z "$system" ] || end "$system"; rm -rf "$OUT/tree" "$OUT/disk"' EXIT
trap 'exit 130' INT TERM HUP

# The system without the package.
base=$OUT/base
if [ ! -e "$base.done" ]; then
  say "making a Debian 12 in $base"
  rm -rf "$base"
  debootstrap --variant=minbase --include=systemd-sysv,kmod,iproute2,libpcap0.8 bookworm "$base" "$MIRROR" >"$OUT/debootstrap.log" ||
    die "debootstrap failed: see $OUT/debootstrap.log"
  rm -rf "$base"/var/cache/apt/archives/*.deb "$base"/var/lib/apt/lists/*
  touch "$base.done"
fi

# Two packages, of which the second is newer.
for version in 0.1.0 0.1.1; do OUT=$OUT/deb COMPRESSION=gzip "$REPO/packaging/deb/build.sh" "$version"; done

unshare -m "$HERE/chroot.sh" "$base" "$OUT"/deb/butterfly_0.1.0_*.deb "$OUT"/deb/butterfly_0.1.1_*.deb

tree=$OUT/tree
rm -rf "$tree"
cp -a --reflink=auto "$base" "$tree"
mkdir -p "$tree/root/packages"
cp "$OUT"/deb/butterfly_0.1.[01]_*.deb "$tree/root/packages/"
install -m 755 "$HERE/guest.sh" "$tree/root/guest.sh"
echo package >"$tree/etc/hostname"
cat >"$tree/etc/systemd/system/guest.service" <<'UNIT'
[Unit]
After=multi-user.target
[Service]
Type=idle
ExecStart=/root/guest.sh
UNIT
mkdir -p "$tree/etc/systemd/system/default.target.wants"
ln -sf ../guest.service "$tree/etc/systemd/system/default.target.wants/guest.service"
for unit in apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer getty@tty1.service \
  serial-getty@ttyS0.service console-getty.service systemd-timesyncd.service; do
  ln -sf /dev/null "$tree/etc/systemd/system/$unit"
done
: >"$LOG"
# in_qemu: from a disk, with the kernel of the test guests.
in_qemu() {
  version=$(basename "$ROOT"/lib/modules/*)
  mkdir -p "$tree/lib/modules"
  # Those that are needed, each with what it needs, for insmod in this order.
  modules=$ROOT/lib/modules/$version/kernel
  for module in drivers/net/tun drivers/net/veth net/packet/af_packet; do
    [ ! -e "$modules/$module.ko" ] || cp "$modules/$module.ko" "$tree/root/"
  done
  echo '/dev/vda / ext4 rw 0 0' >"$tree/etc/fstab"
  rm -f "$OUT/disk"
  mkfs.ext4 -q -d "$tree" -L root "$OUT/disk" 1200M
  rm -rf "$tree"

  # What finds the disk: the test guest's kernel has virtio as modules.
  initial=$OUT/boot
  rm -rf "$initial"
  mkdir -p "$initial"/{bin,dev,proc,root}
  cp "$(command -v busybox)" "$initial/bin/busybox"
  for module in drivers/virtio/virtio_ring drivers/virtio/virtio drivers/virtio/virtio_pci_legacy_dev \
    drivers/virtio/virtio_pci_modern_dev drivers/virtio/virtio_pci drivers/block/virtio_blk; do
    [ ! -e "$modules/$module.ko" ] || { cp "$modules/$module.ko" "$initial/" && echo "/${module##*/}.ko" >>"$initial/modules"; }
  done
  cat >"$initial/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox mount -t devtmpfs dev /dev
while read -r module; do /bin/busybox insmod "$module"; done </modules
/bin/busybox mount -t ext4 /dev/vda /root
exec /bin/busybox switch_root /root /lib/systemd/systemd
INIT
  chmod 755 "$initial/init"
  (cd "$initial" && find . | cpio -o -H newc --quiet) >"$OUT/initramfs"
  rm -rf "$initial"

  accel=$("$TESTS/guest/accel.sh")
  say "booting with $accel; the console is in $LOG"
  timeout -k 5 "$LIMIT" qemu-system-x86_64 -nodefaults -no-reboot -display none -machine "q35,accel=$accel" -cpu max \
    -smp 2 -m 1024 -serial "file:$LOG" -kernel "$BUILD/guest/vmlinuz" -initrd "$OUT/initramfs" \
    -drive "file=$OUT/disk,format=raw,if=virtio,cache=unsafe" \
    -append "root=/dev/vda rw console=ttyS0 quiet panic=-1 no_timer_check systemd.show_status=0 accel=$accel" </dev/null >"$OUT/qemu.log" 2>&1 &
  system=$!
}

# in_container: the same system, its processes on this machine's kernel, in its own network.
in_container() {
  say "starting a container; the console is in $LOG"
  timeout -k 5 "$LIMIT" systemd-nspawn --quiet --register=no --keep-unit --private-network --capability=all --system-call-filter=bpf \
    --bind=/dev/net/tun --directory="$tree" --console=interactive --boot systemd.show_status=0 </dev/null >"$LOG" 2>&1 &
  system=$!
}

"in_$boot"
shown=0
show() { # what came since
  local lines
  lines=$(grep -c '' "$LOG" || true)
  sed -n "$((shown + 1)),${lines}p" "$LOG" | tr -d '\r' | grep -E '^(ok|FAILED|note|    )' || true
  shown=$lines
}
while alive "$system"; do
  sleep 1
  show
done
wait "$system" || true
system=''
show
grep -q '^package: done' "$LOG" || die "the system ended before its test did: see $LOG$([ "$boot" = container ] || echo " and $OUT/qemu.log")"
! grep -q '^FAILED' "$LOG" || die "repeat with: make test-package"
say "the package installs, works, upgrades and goes"
