# Sourced after daemon.sh: hosts made of network namespaces, what joins them, a daemon on each.
#
# A host is a namespace and a directory of the same name in $HOSTS, which holds its daemon's sockets, API and log. The API
# is a Unix socket: clients need no namespace, and neither do guests. Namespaces are named after the process of the script
# that made them; hosts_end removes them and everything in them, and belongs into the script's trap.
# shellcheck shell=bash

HOSTS='' # the directory of all hosts; set by hosts_begin

# hosts_begin DIR: from now on hosts are in DIR. Those of before are removed.
hosts_begin() {
  HOSTS=$1
  hosts_end
  mkdir -p "$HOSTS"
  echo "bfly-$$-$SRANDOM" >"$HOSTS/net"
}

# net HOST: the name of its namespace. inside HOST COMMAND...: runs there.
net() { echo "$(<"$HOSTS/net")-$1"; }
inside() { ip netns exec "$(net "$1")" "${@:2}"; }

# hosts_end: ends daemons, cables and whatever else runs on the hosts, and removes them. Fails if a daemon did not end.
hosts_end() {
  local status=0 host ns left
  [ -s "$HOSTS/net" ] || return 0
  for host in "$HOSTS"/*/; do
    host=$(basename "$host")
    host_stop "$host" || status=1
    [ ! -e "$HOSTS/$host/cable.pid" ] || cable_stop "$host"
    # Of a daemon that was killed, and had no successor.
    [ ! -s "$HOSTS/$host/table" ] || rm -f "$(<"$HOSTS/$host/table")"
  done
  for ns in $(ip netns list | awk -v prefix="$(<"$HOSTS/net")-" 'index($1, prefix) == 1 { print $1 }'); do
    left=$(ip netns pids "$ns")
    # shellcheck disable=SC2086 # one word each
    [ -z "$left" ] || end $left
    ip netns del "$ns"
  done
  rm -rf "${HOSTS:?}"
  return "$status"
}

# ---- Hosts and what joins them

# host_add HOST: a host without any interface.
host_add() {
  local ns
  ns=$(net "$1")
  mkdir -p "$HOSTS/$1"
  ip netns add "$ns"
  ip -n "$ns" link set lo up
  # Addresses are there at once, and nobody asks for routers.
  inside "$1" sh -c 'cd /proc/sys/net/ipv6/conf/default; echo 0 >accept_dad; echo 0 >accept_ra; echo 0 >router_solicitations'
}

# wire_add: what hosts are plugged into: a switch that floods every group.
wire_add() {
  host_add wire
  inside wire sh -c 'cd /proc/sys/net/ipv6/conf; echo 1 >all/disable_ipv6; echo 1 >default/disable_ipv6'
  ip -n "$(net wire)" link add wire up type bridge stp_state 0 forward_delay 0 mcast_snooping 0
}

# plug HOST [DEVICE]: DEVICE (eth0) of a host, and its other end, which is called HOST, in the wire.
plug() {
  local dev=${2:-eth0}
  ip -n "$(net "$1")" link add "$dev" type veth peer name "$1" netns "$(net wire)"
  kernel_end "$1" "$dev"
  ip -n "$(net wire)" link set "$1" master wire up
}
# join HOST HOST: eth0 of both, with nothing between.
join() {
  ip -n "$(net "$1")" link add eth0 type veth peer name eth0 netns "$(net "$2")"
  kernel_end "$1" eth0
  kernel_end "$2" eth0
}
# A kernel leaves checksums to its network card; a veth computes none, and AF_XDP would read them unfinished.
kernel_end() {
  inside "$1" ethtool -K "$2" tx off >/dev/null
  ip -n "$(net "$1")" link set "$2" up
}

# address HOST DEVICE NUMBER: the host's kernel holds the addresses of that number in the network between hosts.
address() {
  ip -n "$(net "$1")" addr add "$(underlay ipv4 "$3")/24" dev "$2"
  ip -n "$(net "$1")" addr add "$(underlay ipv6 "$3")/64" dev "$2" nodad
}
# underlay ipv4|ipv6 NUMBER (RFC 5737, RFC 3849)
underlay() {
  case $1 in
    ipv4) echo "192.0.2.$2" ;;
    ipv6) echo "2001:db8::$2" ;;
  esac
}

# bridge_add HOST: puts eth0 into the bridge br0, for a TAP device to join. It has eth0's address, not the lowest of those of its ports: that
# would be another one after each start of the daemon.
bridge_add() {
  ip -n "$(net "$1")" link add br0 up address "$(inside "$1" cat /sys/class/net/eth0/address)" type bridge stp_state 0 forward_delay 0 mcast_snooping 0
  inside "$1" sh -c 'echo 1 >/proc/sys/net/ipv6/conf/eth0/disable_ipv6'
  ip -n "$(net "$1")" link set eth0 master br0
}

# cable_start NAME HOST --vdev PORT --vdev PORT: dpdk-testpmd between two of its ports, in HOST's namespace. It needs no huge
# pages, and keeps a core busy. cable_stop NAME.
cable_start() {
  local name=$1 host=$2 home=$HOSTS/$1
  shift 2
  mkdir -p "$home"
  rm -f "$home/hold"
  : >"$home/cable.log"
  mkfifo "$home/hold" # its standard input: it would end where that ends
  RUNTIME_DIRECTORY=$home setsid ip netns exec "$(net "$host")" timeout -k 5 300 stdbuf -oL \
    dpdk-testpmd -l 0,1 --no-pci --no-telemetry --no-huge --no-shconf --file-prefix="$(net "$name")" -m 256 "$@" \
    -- --forward-mode=io --auto-start --disable-link-check --total-num-mbufs=4096 <>"$home/hold" >"$home/cable.log" 2>&1 &
  echo $! >"$home/cable.pid"
  wait_for 30 cable_ready "$name" || die "dpdk-testpmd did not start: $(tail -3 "$home/cable.log")"
}
cable_ready() {
  alive "$(<"$HOSTS/$1/cable.pid")" || die "dpdk-testpmd ended: $(tail -3 "$HOSTS/$1/cable.log")"
  grep -q 'Press enter to exit' "$HOSTS/$1/cable.log"
}
cable_stop() {
  end "$(<"$HOSTS/$1/cable.pid")"
  rm -f "$HOSTS/$1/cable.pid"
}

# ---- Daemons

# on HOST COMMAND...: a function of daemon.sh, as bf, nic_field or attached, for the daemon of that host.
on() {
  local DAEMON_DIR=$HOSTS/$1 DAEMON_PID
  DAEMON_PID=$(cat "$DAEMON_DIR/daemon.pid" 2>/dev/null || true)
  "${@:2}"
}
# host_daemon HOST OPTION...: starts butterflyd there and waits until it answers.
host_daemon() {
  # What daemon_start takes, and what it sets: nobody else's.
  # shellcheck disable=SC2034
  local DAEMON_DIR DAEMON_PID DAEMON_SESSION
  # shellcheck disable=SC2034
  DAEMON_SESSION="ip netns exec $(net "$1") setsid"
  daemon_start "$HOSTS/$1" "${@:2}"
  rm -f "$HOSTS/$1/table" # the one that a predecessor left was replaced
}
host_stop() { on "$1" daemon_stop; }
# host_kill HOST: as a crash. Its table of sessions stays in memory: remembered for hosts_end.
host_kill() {
  sed -n 's|.* \(/.*/butterfly-[0-9a-f]\{16\}\)$|\1|p' "/proc/$(<"$HOSTS/$1/daemon.pid")/maps" | head -1 >"$HOSTS/$1/table"
  on "$1" daemon_kill
}
