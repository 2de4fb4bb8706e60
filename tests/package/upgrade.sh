#!/bin/bash
# upgrade.sh OLD NEW: upgrades of a daemon in every state. chroot.sh runs it in its system, as systemd and the client are played here:
# /played/running has which start of the daemon runs, /played/told what that one was told.
set -euo pipefail

state=/run/butterfly-upgrade.state
mkdir -p /played /run/systemd/system
echo 0 >/played/starts
cat >/usr/local/bin/systemctl <<'PLAYED'
#!/bin/sh
start() {
  starts=$(($(cat /played/starts) + 1))
  echo $starts >/played/starts
  echo $starts >/played/running
  : >/played/told
  rm -f /played/deaf
}
case "$*" in
  *is-active*) [ -e /played/running ] ;;
  *is-enabled*) echo enabled ;;
  *InvocationID*) cat /played/running ;;
  *StatusText*) echo 'started: API on ipc:///run/butterfly/api, sockets in /run/butterfly' ;;
  *restart*) start ;;
  *start*) [ -e /played/running ] || start ;;
  *stop*) rm -f /played/running ;;
esac
PLAYED
cat >/usr/local/bin/butterfly <<'PLAYED'
#!/bin/sh
echo "butterfly $*" >>/played/log
case "$*" in
  'dump -e ipc:///run/butterfly/api -t 10000') [ ! -e /played/deaf ] && cat /played/told || { echo half; exit 1; } ;;
  'request /run/butterfly-upgrade.state -e ipc:///run/butterfly/api -t 120000') [ ! -e /played/refuses ] && [ ! -s /played/told ] && cat "$2" >/played/told ;;
  *) exit 1 ;;
esac
PLAYED
chmod 755 /usr/local/bin/systemctl /usr/local/bin/butterfly

die() {
  cat /played/log >&2
  echo "upgrade.sh: a daemon that is $*" >&2
  exit 1
}
# upgrade WHAT BEFORE BETWEEN STARTS TOLD [LEFT]: a daemon that was told vm-1 is upgraded; what happens before, and between unpacking and
# configuring. After so many starts one runs that was told TOLD, and the package has kept LEFT.
upgrade() {
  local what=$1 starts
  : >/played/log
  rm -f /run/butterfly-upgrade.* /played/deaf /played/refuses
  systemctl start
  echo vm-1 >/played/told
  starts=$(cat /played/starts)
  { eval "$2" && ${UNPACK:-dpkg --unpack "$new"} && eval "$3" && ${CONFIGURE:-dpkg --configure butterfly}; } >>/played/log 2>&1 ||
    die "$what cannot be upgraded"
  [ "$(cat /played/running)" = $((starts + $4)) ] || die "$what was not started $4 times"
  [ "$(cat /played/told)" = "$5" ] || die "$what was told \"$(cat /played/told)\" and not \"$5\""
  [ "$(shopt -s nullglob && cd /run && echo butterfly-upgrade.*)" = "${6:-}" ] || die "$what left $(echo /run/butterfly-upgrade.*)"
}

dpkg -i "$1" >/played/log 2>&1 || die "not there cannot be installed"
new=$2
upgrade "well" : : 1 vm-1
upgrade "told more on the way" : 'echo vm-2 >/played/told' 1 vm-2
upgrade "started again on the way" : 'systemctl restart' 2 vm-1
upgrade "gone on the way" : 'systemctl stop' 1 vm-1
upgrade "silent" 'touch /played/deaf' : 0 vm-1
upgrade "silent at first" 'touch /played/deaf' 'rm /played/deaf' 1 vm-1
upgrade "silent later" : 'touch /played/deaf' 1 vm-1
upgrade "told nothing" ': >/played/told' : 1 ''
upgrade "different" 'touch /played/refuses' : 1 '' 'butterfly-upgrade.owner butterfly-upgrade.state'
upgrade "still short of vnics" "echo vm-0 >$state" : 1 vm-1 butterfly-upgrade.state.old
# What dpkg calls if it cannot unpack the new one.
scripts=/var/lib/dpkg/info/butterfly
UNPACK="$scripts.prerm upgrade 0.1.1" CONFIGURE="$scripts.postinst abort-upgrade 0.1.1" upgrade "not upgraded" : : 0 vm-1
echo "ok in a chroot upgrades keep what a daemon was told, or leave it alone"
