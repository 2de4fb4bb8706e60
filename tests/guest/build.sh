#!/bin/bash
# build.sh: builds the test guest in build/guest: vmlinuz (Debian's cloud kernel, unpacked, not installed) and
# initramfs (busybox, virtio modules, iperf3, ethtool, our init; not packed: emulated processors unpack slowly). Does nothing
# when both are up to date.
set -euo pipefail
# shellcheck source=../lib/common.sh
. "$(dirname "$0")/../lib/common.sh"

HERE=$TESTS/guest
OUT=$BUILD/guest
DEBS=$OUT/debs
ROOT=$OUT/root # downloaded packages are unpacked here
mkdir -p "$DEBS" "$ROOT"

exec 9>"$OUT/lock"
flock -w 600 9 || die "another guest build holds $OUT/lock"

stamp=$(cat "$HERE/build.sh" "$HERE/init" "$HERE/agent" | sha256sum | cut -d' ' -f1)
if [ "$(cat "$OUT/stamp" 2>/dev/null)" = "$stamp" ] && [ -s "$OUT/vmlinuz" ] && [ -s "$OUT/initramfs" ]; then
  exit 0
fi
say "building the test guest in $OUT"

# fetch PACKAGE...: download Debian packages and unpack them under $ROOT, each once. apt's lists may be missing or old.
fetch() {
  local package
  for package in "$@"; do
    [ -e "$DEBS/$package.unpacked" ] && continue
    rm -f "$DEBS/${package}"_*.deb
    (cd "$DEBS" && apt-get download -qq -o APT::Sandbox::User=root "$package") ||
      { apt-get update -qq && (cd "$DEBS" && apt-get download -qq -o APT::Sandbox::User=root "$package"); } ||
      die "cannot download the Debian package $package; try apt-get update"
    dpkg-deb -x "$DEBS/${package}"_*.deb "$ROOT" || die "cannot unpack $package"
    touch "$DEBS/$package.unpacked"
  done
}

kernel_package() {
  apt-cache depends linux-image-cloud-amd64 2>/dev/null | awk '$1 == "Depends:" { print $2; exit }'
}
image=$(kernel_package)
if [ -z "$image" ]; then
  apt-get update -qq
  image=$(kernel_package)
fi
[ -n "$image" ] || die "apt knows no linux-image-cloud-amd64: is this Debian 12 with its main archive?"
fetch "$image"
version=${image#linux-image-}
modules=$ROOT/lib/modules/$version/kernel
[ -d "$modules" ] || modules=$ROOT/usr/lib/modules/$version/kernel
[ -d "$modules" ] || die "$image holds no modules for $version"

tree=$OUT/tree
rm -rf "$tree"
mkdir -p "$tree"/{bin,sbin,lib/modules,lib64,proc,sys,dev,tmp,etc}

# In the order in which they must be loaded.
: >"$tree/etc/modules"
for module in drivers/virtio/virtio_ring drivers/virtio/virtio drivers/virtio/virtio_pci_legacy_dev \
  drivers/virtio/virtio_pci_modern_dev drivers/virtio/virtio_pci net/core/failover drivers/net/net_failover \
  drivers/net/virtio_net net/packet/af_packet; do
  if [ -e "$modules/$module.ko" ]; then
    cp "$modules/$module.ko" "$tree/lib/modules/"
  elif [ -e "$modules/$module.ko.xz" ]; then
    xz -dc "$modules/$module.ko.xz" >"$tree/lib/modules/${module##*/}.ko"
  else
    continue # built into this kernel
  fi
  echo "${module##*/}" >>"$tree/etc/modules"
done
grep -q virtio_net "$tree/etc/modules" || die "$image has no virtio_net module"

# add PROGRAM: copy an installed program and the libraries it needs.
add() {
  local path library
  path=$(command -v "$1") || die "$1 is not installed: run make setup"
  cp "$path" "$tree/bin/"
  ldd "$path" | grep -oE '/[^ ]+' | while read -r library; do
    mkdir -p "$tree${library%/*}"
    cp -L -n "$library" "$tree$library"
  done
}
add iperf3
add ethtool
add ping # beside that of busybox, as /bin/ping: it can forbid fragments
busybox=$(command -v busybox) || die "busybox is not installed: run make setup"
if ldd "$busybox" >/dev/null 2>&1; then die "$busybox is not static: install busybox-static"; fi
cp "$busybox" "$tree/bin/busybox"
ln -s busybox "$tree/bin/sh"
install -m 755 "$HERE/init" "$tree/init"
install -m 755 "$HERE/agent" "$tree/bin/agent"

(cd "$tree" && find . | cpio -o -H newc --quiet) >"$OUT/initramfs"
cp "$ROOT/boot/vmlinuz-$version" "$OUT/vmlinuz"
echo "$stamp" >"$OUT/stamp"
say "test guest: kernel $version, initramfs $(($(stat -c %s "$OUT/initramfs") / 1024)) KiB"
