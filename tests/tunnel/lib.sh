# Sourced by run.sh: guests that live through all scenarios, the kernel of a host as a guest, what scenarios check.
# shellcheck shell=bash

# Four guests in the socket role in which daemons may come and go: butterflyd is the client. They are booted once.
# Guest number N has the addresses 10.0.0.N and fd00::N.
GUESTS=(a b c d)
number_of() {
  case $1 in
    a) echo 1 ;;
    b | kernel*) echo 2 ;;
    c) echo 3 ;;
    d) echo 4 ;;
  esac
}
mac_of() { echo "52:54:00:00:00:0$(number_of "$1")"; }
ip4_of() { echo "10.0.0.$(number_of "$1")"; }
ip6_of() { echo "fd00::$(number_of "$1")"; }

# QEMU waits at its start until somebody connects: a daemon for that moment.
boot_guests() {
  local guest
  mkdir -p "$VM_DIR/boot"
  daemon_start "$VM_DIR/boot" --uplink none
  for guest in "${GUESTS[@]}"; do
    vm start "$guest" --socket "$VM_DIR/$guest.sock" --serve --mac "$(mac_of "$guest")" --ip "$(ip4_of "$guest")/24" \
      --limit 1400 --no-wait
    bf nic add --id "$guest" --mac "$(mac_of "$guest")" --vni 42 --bypass-filtering --type VHOST_USER_CLIENT \
      --path "$VM_DIR/$guest.sock" >/dev/null
  done
  vm wait "${GUESTS[@]}" --timeout 120
  daemon_stop
}
# fresh: every guest has its own addresses and an ordinary MTU, and has forgotten what it learnt in an earlier scenario.
fresh() {
  local guest running=() pid
  for guest in "${GUESTS[@]}"; do
    vm exec "$guest" "killall nc iperf3 ping
      [ \$(cat /sys/class/net/eth0/address) = $(mac_of "$guest") ] || ip link set eth0 down
      ip addr flush dev eth0; ip link set eth0 address $(mac_of "$guest") mtu 1500 up
      cd /proc/sys/net/ipv6/conf/eth0; echo 0 >accept_dad; echo 0 >router_solicitations; echo 0 >disable_ipv6
      ip addr add $(ip4_of "$guest")/24 dev eth0; ip -6 addr add $(ip6_of "$guest")/64 dev eth0
      for v in 4 6; do echo 1 >/proc/sys/net/ipv\$v/route/flush; ip -\$v neigh flush dev eth0; done; true" >/dev/null &
    running+=($!)
  done
  for pid in "${running[@]}"; do wait "$pid"; done
}

# A host whose name begins with "kernel" is a guest, too: its own stack behind its own VXLAN device. Commands run in its
# namespace, with busybox's tools and a /tmp of its own, as in guests.
vm() {
  if [ "$1" = exec ] && [[ $2 == kernel* ]]; then
    kernel_exec "$2" 30 "${*:3}"
  elif [ "$1" = exec ] && [ "$2" = --timeout ] && [[ $4 == kernel* ]]; then
    kernel_exec "$4" "$3" "${*:5}"
  else
    "$TESTS/guest/vm" "$@"
  fi
}
kernel_exec() { # kernel_exec HOST SECONDS COMMAND
  mkdir -p "$HOSTS/$1/tmp"
  # shellcheck disable=SC2016 # expanded there
  inside "$1" sh -c 'mount --bind "$1" /tmp && exec timeout -s KILL "$2" busybox sh -c "$3"' sh "$HOSTS/$1/tmp" "$2" "$3" 2>&1
}

# ---- Vnics

# vnic HOST GUEST [VNI [OPTION...]]: a bypass vnic, unless options say otherwise.
vnic() {
  local filtering=(--bypass-filtering)
  [ $# -le 3 ] || filtering=("${@:4}")
  on "$1" bf nic add --id "$2" --mac "$(mac_of "$2")" --vni "${3:-42}" --type VHOST_USER_CLIENT --path "$VM_DIR/$2.sock" \
    "${filtering[@]}" >/dev/null
  wait_for 10 on "$1" attached "$2" || fail "$2's QEMU was not found again by $1"
}

# ---- What scenarios check

meet() { wait_for 10 ping_all "$1" "$(ip4_of "$2")" 1 || fail "$1 does not reach $2"; }
# talk GUEST GUEST MTU: all that the two have to say, both ways, inside over both families. MTU is what fits through the tunnel; the
# guests find that out, TCP first, while nobody knows.
talk() {
  meet "$1" "$2"
  both_families "$1" "$2"
  both_families "$2" "$1"
  both_ways sizes "$1" "$2" "$3"
  both_ways fragments "$1" "$2"
}
both_ways() { # both_ways FUNCTION GUEST GUEST ARGUMENTS...: from each to the other, at the same time
  local other status=0
  ("$1" "$2" "$3" "${@:4}") &
  other=$!
  ("$1" "$3" "$2" "${@:4}") || status=1
  wait "$other" || status=1
  [ "$status" -eq 0 ] || exit 1 # it has said why
}
both_families() { # both_families FROM TO: TCP
  local before frames
  before=$(statistic "$2" rx_packets)
  transfers "$1" "$2" 4 "$(ip4_of "$2")" "$(ip6_of "$2")" || fail "4 MiB from $1 to $2 over each family did not arrive undamaged"
  frames=$(($(statistic "$2" rx_packets) - before))
  say "    8 MiB reached $2 in $frames frames"
  # They leave as more than 6,000 segments. A guest gets those that come in a row as one; how many that are is up to the kernels
  # on the way.
  [ "$2" = kernel ] || [ "$frames" -lt 5500 ] || fail "$2 got $frames frames: no segments were joined"
}
# pings GUEST SCRIPT: `try PING...` wants every answer, `find MTU PING...` wants the guest to know or to be told what fits.
pings() {
  # shellcheck disable=SC2016 # expanded there
  vm exec --timeout 60 "$1" '
    try() { "$@" >/tmp/said 2>&1 && grep -q " 0% packet loss" /tmp/said || { echo "$@"; cat /tmp/said; exit 1; }; }
    found() { ping=$1 mtu=$2; shift 2; $ping "$@" >/tmp/said 2>&1; grep -q "mtu *[:=] *$mtu" /tmp/said; }
    find() { for n in 1 2 3 4 5 6 7 8 9 10; do found "$@" && return; done; echo "no mtu found: $*"; cat /tmp/said; exit 1; }
    # All at once: ping waits for the last answers twice as long as for those before, but no less than the interval.
    three="/bin/ping -c 3 -l 3 -i 3 -W 3" df="/bin/ping -M do -c 3 -l 3 -i 3 -W 3"
    '"$2" || fail "pings of $1"
}
# sizes FROM TO MTU: FROM's stack finds the MTU of the way, and the largest packet passes. Then it gets the MTU that butterfly says it
# should have: the answer to a ping is cut as the device says, whatever its sender knows of the way, and fragments come next.
sizes() {
  local then=''
  [[ $1 == kernel* ]] || then="ip link set eth0 mtu $3"
  pings "$1" "
    find '/bin/ping -M do -c 1 -W 0.3' $3 -s 1472 $(ip4_of "$2")
    find '/bin/ping -M do -c 1 -W 0.3' $3 -s 1452 $(ip6_of "$2")
    try \$df -s $(($3 - 28)) $(ip4_of "$2")
    try \$df -s $(($3 - 48)) $(ip6_of "$2")
    $then"
}
fragments() { # fragments FROM TO
  pings "$1" "try \$three -s 4000 $(ip4_of "$2"); try \$three -s 4000 $(ip6_of "$2")"
}
# quiet HOST GUEST REASONS: nothing was dropped at that vnic but for these reasons, and because the guest is slow or was not there
# yet.
quiet() {
  local other
  other=$(on "$1" nic_field "$2" "' '.join(f'{k}={v}' for k, v in d.items() if v and k not in 'ring-full not-attached $3'.split())")
  [ -z "$other" ] || fail "drops at $2 that nothing here asks for: $other"
}
# report COMMANDS EXPRESSION: a Python expression over `butterfly COMMAND --json` as r; drops of the uplink and of all networks in the
# answers to all these commands as d.
report() {
  local command answers=()
  for command in $1; do answers+=("$(bf "$command" --json)") || return 1; done
  python3 -I -S -c '
import json, sys
d = {}
for answer in sys.argv[2:]:
    r = json.loads(answer)
    for x in sum((n["drops"] for n in r.get("networks", [])), r.get("drops", [])):
        d[x["reason"]] = d.get(x["reason"], 0) + x["count"]
print(eval(sys.argv[1]))' "$2" "${answers[@]}"
}
# drops_of HOST REASON: drops that are no vnic's.
drops_of() { on "$1" report "tunnels uplink" "d.get('$2', 0)"; }
# quiet_host HOST REASONS: of what came by the uplink nothing was dropped but for these reasons, and because a network was not
# there yet.
quiet_host() {
  local other
  other=$(on "$1" report "tunnels uplink" "' '.join(f'{k}={v}' for k, v in d.items() if v and k not in 'unknown-vni $2'.split())")
  [ -z "$other" ] || fail "drops at $1 that nothing here asks for: $other"
}
