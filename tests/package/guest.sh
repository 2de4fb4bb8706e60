#!/bin/bash
# guest.sh: what run.sh has done inside its system, as root. A line for each thing that was looked at, on the console.
set -uo pipefail
console=/dev/console # of a container
[ ! -c /dev/ttyS0 ] || console=/dev/ttyS0
exec </dev/null >"$console" 2>&1

trap 'echo "package: done"; sync; poweroff -f -f' EXIT

# look WHAT COMMAND...: ok if the command succeeds
look() {
  local what=$1 output
  shift
  if output=$("$@" 2>&1); then
    echo "ok $what"
  else
    echo "FAILED $what: $*"
    tail -n 20 <<<"$output" | sed 's/^/    /'
    journalctl -n 15 --no-pager -u butterflyd 2>/dev/null | sed 's/^/    /'
  fi
}
is() { [ "$1" = "$2" ] || { echo "\"$1\" is not \"$2\""; return 1; }; }
not() { ! "$@"; }
# within SECONDS COMMAND...
within() {
  local end=$((SECONDS + $1))
  shift
  until "$@"; do
    [ $SECONDS -lt $end ] || return 1
    sleep 0.1
  done
}
main_pid() { systemctl show -P MainPID butterflyd; }
shows() { systemctl show -P "$1" butterflyd; }
# traffic [SECONDS]
traffic() {
  butterfly-bench --a /run/butterfly/qemu-vhost-vm-1 --b /run/butterfly/qemu-vhost-vm-2 --verify --rate 500 --learn 100 --secs "${1:-2}" --warm 1 --wait 60
}
# Everything that a package may leave, without what others write on their own.
everything() {
  { find / -xdev \( -path /proc -o -path /sys -o -path /var/lib/dpkg -o -path /var/log -o -path /var/cache \) -prune -o -print
    find /run /dev/shm -path '/run/systemd*' -prune -o -path /run/udev -prune -o -path '/run/log*' -prune -o -print
    getent passwd; getent group; } | grep -vE '^/(root|tmp|var/tmp|run/agetty.reload)|/etc/(passwd|group|g?shadow|subuid|subgid)-$' | sort
}

for module in /root/*.ko; do [ ! -e "$module" ] || insmod "$module"; done
# As udev has it, which is not here.
chmod 666 /dev/net/tun
echo "note the system is up after $(cut -d' ' -f1 /proc/uptime) s"
everything >/tmp/before

# ---- Installed -------------------------------------------------------------------------------------------------------
look "the package installs" dpkg -i /root/packages/butterfly_0.1.0_*.deb
look "its daemon is active" is "$(systemctl is-active butterflyd)" active
look "and starts at boot" is "$(systemctl is-enabled butterflyd)" enabled
look "it said itself that it is ready" is "$(shows Type)" notify
look "the client reaches it" butterfly status
look "it is not root" is "$(stat -c %U "/proc/$(main_pid)")" butterfly
look "its processes have few capabilities" is "$(sed -n 's/^CapBnd:\t//p' "/proc/$(main_pid)/status")" 000000c000003000
echo "note $(systemd-analyze security butterflyd --no-pager 2>/dev/null | tail -1)"
for file in man/man1/butterfly.1.gz man/man8/butterflyd.8.gz man/man1/butterfly-bench.1.gz bash-completion/completions/butterfly doc/butterfly/operations.md \
  butterfly/prometheus butterfly/grafana butterfly/proto/payload.proto doc/butterfly/copyright; do
  look "there is $file" test -e "/usr/share/$file"
done

# ---- Used ------------------------------------------------------------------------------------------------------------
look "a vnic is made" butterfly nic add --id vm-1 --mac 02:00:00:00:00:01 --vni 42 --bypass-filtering
look "and another" butterfly nic add --id vm-2 --mac 02:00:00:00:00:02 --vni 42 --bypass-filtering
look "and a group" butterfly sg rule add web --ip-proto tcp --port 443 --cidr 0.0.0.0/0
look "sockets are for the group" is "$(stat -c %U:%G:%a /run/butterfly/qemu-vhost-vm-1)" butterfly:butterfly:660
look "two machines talk, every byte verified" traffic
look "the journal knows the vnic by a field" grep -q 'nic vm-1: a virtual machine attached' <(journalctl -t butterfly NIC=vm-1 VNI=42 EVENT=guest-attached)
look "and each line once" is "$(journalctl -u butterflyd | grep -c 'started: API on')" 1

# ---- Upgraded --------------------------------------------------------------------------------------------------------
echo '# the operator was here' >>/etc/butterfly/butterflyd.ini
butterfly dump >/tmp/dump.before
before=$(main_pid)
# Machines that talk all the while.
traffic 15 >/tmp/traffic 2>&1 &
talking=$!
sleep 4
look "it is upgraded" dpkg -i /root/packages/butterfly_0.1.1_*.deb
lost=0
wait $talking || lost=$(tail -5 /tmp/traffic)
look "machines that talked meanwhile lost nothing" is "$lost" 0
look "the configuration is the operator's" grep -q 'operator was here' /etc/butterfly/butterflyd.ini
look "the new daemon is active" is "$(systemctl is-active butterflyd)" active
look "in the same process" is "$(main_pid)" "$before"
look "which the service manager did not start again" is "$(shows NRestarts)" 0
butterfly dump >/tmp/dump.after
look "it knows what the old one was told" cmp /tmp/dump.before /tmp/dump.after
look "nothing that was kept is left" test ! -e /run/butterfly-upgrade.state
echo "note $(butterfly show | grep -E 'service ')"
look "it says how it came" grep -q 'by an upgrade from version' <(butterfly show)
cp /etc/butterfly/butterflyd.ini /tmp/ini
echo 'nonsense = 1' >>/etc/butterfly/butterflyd.ini
look "a reload that cannot be is refused" not systemctl reload butterflyd
look "and the daemon goes on" is "$(main_pid) $(systemctl is-active butterflyd)" "$before active"
cp /tmp/ini /etc/butterfly/butterflyd.ini
look "mended, it reloads" systemctl reload butterflyd
look "machines attach again" traffic
holder_pid() { systemctl show -P MainPID butterfly-holder; }
holder=$(holder_pid)
look "the holder is a service" not is "$holder" 0
systemctl kill -s HUP butterfly-holder
systemctl kill -s KILL butterflyd
for _ in $(seq 100); do butterfly nic list >/dev/null 2>&1 && break; sleep 0.1; done
look "after kill -9 it knows what it was told" cmp /tmp/dump.before <(butterfly dump)
look "kill -9 took no holder along" is "$(holder_pid)" "$holder"
look "nor does a restart" systemctl restart butterflyd
look "so it is the same one" is "$(holder_pid)" "$holder"
look "a stop leaves it for a start" systemctl stop butterflyd
look "which comes in time" systemctl start butterflyd
look "and finds it" is "$(holder_pid)" "$holder"
look "the holder becomes the program that is installed" systemctl reload butterfly-holder
look "in the same process" is "$(holder_pid)" "$holder"
look "which is the one that is there" is "$(readlink /proc/"$holder"/exe)" /usr/bin/butterflyd
look "and tells its version" grep -q "process $holder, version [0-9]" <(butterfly show)
look "machines attach to it, too" traffic

# ---- Uplinks under the unit's restrictions ----------------------------------------------------------------------------
ip link add far type veth peer name near && ip link set far up && ip link set near up && ip addr add 42.0.0.1/24 dev near
for uplink in near tap:bf0 none; do
  sed -i "s/^#*uplink = .*/uplink = $uplink/" /etc/butterfly/butterflyd.ini
  look "it restarts with uplink $uplink" systemctl restart butterflyd
  echo "note $(journalctl -u butterflyd -n 40 --no-pager -o cat | grep -E 'uplink' | tail -1)"
done
# But for what was done to it.
look "no warning in all that" not grep -E '<(WARNING|ERR)>' <(journalctl -t butterfly -o cat | grep -vE 'after the one before ended|the upgrade failed')

# ---- Stuck, killed, misconfigured ------------------------------------------------------------------------------------
mkdir -p /run/systemd/system/butterflyd.service.d
printf '[Service]\nWatchdogSec=4\nTimeoutAbortSec=2\n' >/run/systemd/system/butterflyd.service.d/test.conf
systemctl daemon-reload
systemctl restart butterflyd
sleep 10
look "no false alarm" is "$(shows NRestarts)" 0
another() { [ "$(main_pid)" != "$old" ] && [ "$(main_pid)" != 0 ] && systemctl -q is-active butterflyd; }
old=$(main_pid)
kill -STOP "$old"
look "a stuck daemon is replaced" within 60 another
look "because of the watchdog" grep -q 'atchdog timeout' <(journalctl -u butterflyd)
old=$(main_pid)
kill -KILL "$old"
look "a killed one too" within 60 another
old=$(main_pid)
kill -HUP "$old"
sleep 2
look "one that is to read its configuration again goes on" is "$(main_pid)" "$old"
often() { # more often in 10 s than systemd starts a unit that says nothing else
  for _ in 1 2 3 4 5 6; do
    old=$(main_pid)
    kill -KILL "$old"
    within 60 another || return 1
  done
}
look "however often" often
cp /etc/butterfly/butterflyd.ini /tmp/ini
echo 'nonsense = 1' >>/etc/butterfly/butterflyd.ini
systemctl restart butterflyd
look "a wrong configuration ends it with 2" is "$(shows ExecMainStatus)" 2
# Longer than the holder waits after a stop.
sleep 12
look "and its holder waits" systemctl -q is-active butterfly-holder
look "and nothing tries again" is "$(systemctl is-active butterflyd) $(shows NRestarts)" "failed 0"
cp /tmp/ini /etc/butterfly/butterflyd.ini
look "mended, it starts" systemctl restart butterflyd
rm -r /run/systemd/system/butterflyd.service.d
systemctl daemon-reload
ip link del near

# ---- Gone ------------------------------------------------------------------------------------------------------------
look "it is removed" dpkg -r butterfly
look "no process is left" not grep -qx butterflyd /proc/[0-9]*/comm
look "no unit runs" not systemctl -q is-active butterflyd
look "the configuration stays" test -e /etc/butterfly/butterflyd.ini -a -e /etc/needrestart/conf.d/butterfly.conf
look "it is installed again" dpkg -i /root/packages/butterfly_0.1.1_*.deb
look "with the operator's configuration" grep -q 'operator was here' /etc/butterfly/butterflyd.ini
look "and is active again" is "$(systemctl is-active butterflyd)" active
look "it is purged" dpkg -P butterfly
everything >/tmp/after
look "and nothing at all is left" diff /tmp/before /tmp/after
