#!/bin/bash
# chroot.sh BASE OLD NEW: installs, upgrades, removes and purges the packages in a chroot over the system in BASE, which stays as it is.
# Some seconds, without systemd: what run.sh looks at before it boots. run.sh calls it in a mount namespace of its own.
set -euo pipefail
# shellcheck source=../lib/common.sh
. "$(dirname "$0")/../lib/common.sh"

base=$1 old=$2 new=$3
work=$(mktemp -d)
mount -t tmpfs chroot "$work" # gone with the namespace
mkdir "$work/upper" "$work/work" "$work/root"
mount -t overlay -o "lowerdir=$base,upperdir=$work/upper,workdir=$work/work" chroot "$work/root"
trap 'umount "$work/root" "$work"; rmdir "$work"' EXIT
root=$work/root
mkdir "$root/packages"
cp "$old" "$new" "$(dirname "$0")/upgrade.sh" "$root/packages/"

everything() {
  { (cd "$root" && find . \( -path ./var/lib/dpkg -o -path ./var/log -o -path ./var/cache -o -path ./packages \) -prune -o -print)
    cat "$root/etc/passwd" "$root/etc/group"; } | sort
}
quietly() { chroot "$root" "$@" >"$work/log" 2>&1 || { cat "$work/log" >&2 && die "$* failed"; }; }

everything >"$work/before"
# Somebody made the group already, for QEMU.
quietly groupadd butterfly
quietly dpkg -i "/packages/${old##*/}"
echo '# the operator was here' >>"$root/etc/butterfly/butterflyd.ini"
quietly dpkg -i "/packages/${new##*/}"
grep -q 'operator was here' "$root/etc/butterfly/butterflyd.ini" || die "the upgrade lost the configuration"
[ -L "$root/etc/systemd/system/multi-user.target.wants/butterflyd.service" ] || die "the unit is not enabled"
quietly butterfly --version
quietly butterflyd --version
mkdir "$root/run/butterfly"
touch "$root/run/butterfly/"{ours,qemu}
quietly chown butterfly: /run/butterfly /run/butterfly/ours
quietly dpkg -r butterfly
[ "$(ls "$root/run/butterfly")" = qemu ] || die "the removal took QEMU's socket, or left ours"
[ -e "$root/etc/butterfly/butterflyd.ini" ] || die "the removal took the configuration"
[ ! -e "$root/usr/bin/butterflyd" ] || die "the removal left the daemon"
mkdir "$root/dev/hugepages"
touch "$root/dev/hugepages/butterfly-"{0123456789abcdef,root}
quietly chown butterfly /dev/hugepages/butterfly-0123456789abcdef
quietly dpkg -P butterfly
[ "$(ls "$root/dev/hugepages")" = butterfly-root ] || die "the purge left a table of sessions, or took another user's"
rm -r "$root/dev/hugepages"
everything >"$work/after"
diff "$work/before" "$work/after" || die "the purge left what is marked with >"
say "ok in a chroot the package installs, upgrades, goes, and leaves nothing"
chroot "$root" /packages/upgrade.sh "/packages/${old##*/}" "/packages/${new##*/}"
