#!/bin/bash
# accel.sh: prints which accelerator boots the test guest here, "kvm" or "tcg" (software emulation). /dev/kvm may open
# and still never run a stock kernel (nested and paravirtual hosts): only a guest that came up is proof. The answer is
# kept until the machine boots again.
set -euo pipefail
# shellcheck source=../lib/common.sh
. "$(dirname "$0")/../lib/common.sh"

if [ -n "${VM_ACCEL:-}" ]; then
  echo "$VM_ACCEL"
  exit 0
fi
answer=$BUILD/guest/accel
boot=$(cat /proc/sys/kernel/random/boot_id)
if [ "$(head -1 "$answer" 2>/dev/null)" = "$boot" ]; then
  tail -1 "$answer"
  exit 0
fi

accel=tcg
if [ -r /dev/kvm ] && [ -w /dev/kvm ]; then
  log=$(mktemp)
  qemu-system-x86_64 -nodefaults -no-reboot -display none -machine q35,accel=kvm -cpu max -m 128 -serial "file:$log" \
    -kernel "$BUILD/guest/vmlinuz" -initrd "$BUILD/guest/initramfs" -append "console=ttyS0 quiet panic=-1" \
    </dev/null >/dev/null 2>&1 &
  qemu=$!
  trap 'end "$qemu"; rm -f "$log"' EXIT
  up() { ! alive "$qemu" || grep -q 'guest: no eth0' "$log"; }
  if wait_for 10 up && grep -q 'guest: no eth0' "$log"; then accel=kvm; fi
fi
printf '%s\n%s\n' "$boot" "$accel" >"$answer"
echo "$accel"
