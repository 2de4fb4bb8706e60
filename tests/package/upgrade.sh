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
}
case "$*" in
  *daemon-reload*) ;;
  # Another program goes on with what the one before was told, or that one does.
  *reload*) [ -e /played/running ] && [ ! -e /played/refuses ] ;;
  *is-active*) [ -e /played/running ] ;;
  *is-enabled*) echo enabled ;;
  *restart*) start ;;
  *start*) [ -e /played/running ] || start ;;
  *stop*) rm -f /played/running ;;
esac
PLAYED
cat >/usr/local/bin/butterfly <<'PLAYED'
#!/bin/sh
echo "butterfly $*" >>/played/log
case "$*" in
  'request /run/butterfly-upgrade.state -t 120000 -e tcp://127.0.0.1:9999') [ ! -e /played/refuses ] && [ ! -s /played/told ] && cat "$2" >/played/told ;;
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
  rm -f /run/butterfly-upgrade.* /played/refuses
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
upgrade "well" : : 0 vm-1
# A played daemon has no store: after a start it knows only what the package tells it.
upgrade "started again on the way" : 'systemctl restart' 1 ''
upgrade "gone on the way" : 'systemctl stop' 1 ''
# The release before had no store, and its package saved what the daemon was told.
upgrade "of a release without a store" "echo vm-1 >$state" : 1 vm-1
upgrade "told nothing" ": >$state" : 1 ''
# A version that cannot go on leaves the one before running, and says so.
systemctl start
echo vm-1 >/played/told
touch /played/refuses
dpkg --unpack "$new" >/played/log 2>&1
! dpkg --configure butterfly >>/played/log 2>&1 || die "not to be followed is said to be"
grep -q 'the version before goes on' /played/log || die "not to be followed is not told of"
[ "$(cat /played/told)" = vm-1 ] || die "not to be followed is gone"
rm /played/refuses
dpkg --configure butterfly >>/played/log 2>&1 || die "to be followed at the second try is not"
