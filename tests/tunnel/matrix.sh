# Sourced by run.sh: a guest on our host talks with a guest on another, in every combination of the outer family, how frames for
# several hosts are spread, the uplink, and what the other host is.
# shellcheck shell=bash

# uplink_daemon HOST NUMBER FAMILY UPLINK [OPTION...]: a host and its daemon, whose endpoint has that number.
#   xdp         AF_XDP on eth0, and the kernel has the endpoint's address and answers for it
#   xdp-own     AF_XDP on eth0, and only the daemon has it
#   tap         a TAP device in a bridge with eth0
#   vhost-user  a port for a cable: the daemon's own socket over IPv4, the cable's over IPv6
uplink_daemon() {
  local host=$1 number=$2 family=$3 endpoint role=vhost-user
  endpoint=$(underlay "$family" "$number")
  host_add "$host"
  case $4 in
    xdp)
      plug "$host"
      address "$host" eth0 "$number"
      host_daemon "$host" -i "$endpoint" --uplink eth0 "${@:5}"
      ;;
    xdp-own)
      plug "$host"
      address "$host" eth0 $((100 + number))
      host_daemon "$host" -i "$endpoint" --uplink eth0 "${@:5}"
      ;;
    tap)
      plug "$host"
      bridge_add "$host"
      address "$host" br0 $((100 + number))
      host_daemon "$host" -i "$endpoint" --uplink tap:tap0 "${@:5}"
      ip -n "$(net "$host")" link set tap0 master br0 up
      ;;
    vhost-user)
      [ "$family" = ipv4 ] || role=vhost-user-client
      host_daemon "$host" -i "$endpoint/$(prefix "$family")" --uplink "$role:$HOSTS/$host/wire.sock" "${@:5}"
      ;;
  esac
}
prefix() { [ "$1" = ipv4 ] && echo 24 || echo 64; }
# The --vdev argument of a cable's end at a host's vhost-user uplink.
cable_end() { # cable_end NUMBER HOST FAMILY
  echo "net_virtio_user$1,path=$HOSTS/$2/wire.sock,queues=1$([ "$3" = ipv4 ] || echo ,server=1)"
}

# kernel_host HOST NUMBER FAMILY group|peers PEER...: a host whose kernel is guest b, behind a VXLAN device.
kernel_host() {
  local ns vxlan=() peer
  ns=$(net "$1")
  host_add "$1"
  plug "$1"
  address "$1" eth0 "$2"
  case $3-$4 in
    ipv4-group) vxlan=(group 230.0.0.42) ;;
    # Without UDP checksums: that is how butterflyd sends over IPv6.
    ipv6-group) vxlan=(group ff05::2a udp6zerocsumrx) ;;
    *-peers) vxlan=(local "$(underlay "$3" "$2")") ;;
  esac
  ip -n "$ns" link add vx address "$(mac_of "$1")" type vxlan id 42 dstport 4789 dev eth0 "${vxlan[@]}"
  for peer in "${@:5}"; do bridge -n "$ns" fdb append 00:00:00:00:00:00 dev vx dst "$peer"; done
  ip -n "$ns" link set vx up
  ip -n "$ns" addr add "$(ip4_of "$1")/24" dev vx
  ip -n "$ns" addr add "$(ip6_of "$1")/64" dev vx nodad
}

# What arrives at a TAP or a vhost-user port is all that is on the wire; an XDP program leaves what is not ours to the kernel. And a
# cable is plugged in some time after the daemon's start, and shares its core with guests.
others() {
  case $1 in
    tap) echo not-ours ;;
    vhost-user) echo not-ours uplink-down uplink-full ;;
  esac
}

# found HOST ADDRESS: that host knows the next hop to a peer it was told of.
found() { [ "$(on "$1" report tunnels "[bool(p.get('mac')) for p in r['peers'] if p['address'] == '$2']")" = '[True]' ]; }
combination() { # combination FAMILY group|peers UPLINK daemon|kernel
  local family=$1 spread=$2 uplink=$3 far=$4 mtu=1450 near=() options=()
  [ "$family" = ipv4 ] || mtu=1430
  wire_add
  [ "$spread" = group ] || near=(--peer "$(underlay "$family" 2)")
  case $family-$spread-$far in
    ipv6-group-kernel) near+=(--group6 ff05::) ;; # the kernel does not hear ff00::
    ipv6-peers-*) options=(--udp6-checksum) ;;
  esac
  uplink_daemon h1 1 "$family" "$uplink" "${near[@]}" "${options[@]}"
  if [ "$far" = daemon ]; then
    [ "$spread" = group ] || options+=(--peer "$(underlay "$family" 1)")
    uplink_daemon h2 2 "$family" "$uplink" "${options[@]}"
    [ "$uplink" != vhost-user ] ||
      cable_start cable h1 --vdev "$(cable_end 0 h1 "$family")" --vdev "$(cable_end 1 h2 "$family")"
    if [ "$spread" = peers ]; then
      # Hosts look for those they were told of. A guest's first frames before that wait, but for one they are lost.
      wait_for 10 found h1 "$(underlay "$family" 2)" || fail "h1 does not find h2: $(on h1 bf tunnels)"
      wait_for 10 found h2 "$(underlay "$family" 1)" || fail "h2 does not find h1: $(on h2 bf tunnels)"
    fi
    vnic h1 a
    vnic h2 b
    talk a b "$mtu"
    quiet h2 b too-big
    quiet_host h2 "$(others "$uplink")"
  else
    if [ "$spread" = group ]; then kernel_host kernel 2 "$family" group; else
      kernel_host kernel 2 "$family" peers "$(underlay "$family" 1)"
    fi
    if [ "$uplink" = vhost-user ]; then
      plug h1 # for the cable alone: h1's kernel has no address there
      inside h1 sh -c 'echo 1 >/proc/sys/net/ipv6/conf/eth0/disable_ipv6'
      cable_start cable h1 --vdev "$(cable_end 0 h1 "$family")" --vdev net_af_packet0,iface=eth0
    fi
    [ "$spread" = group ] || wait_for 10 found h1 "$(underlay "$family" 2)" || fail "h1 does not find the kernel: $(on h1 bf tunnels)"
    vnic h1 a
    talk a kernel "$mtu"
  fi
  quiet h1 a too-big
  quiet_host h1 "$(others "$uplink")"
}

# Every pair of two values together, in eight combinations of 28; MATRIX=all: all of them.
PAIRS='
ipv4-group-xdp-daemon
ipv6-peers-xdp-kernel
ipv6-group-tap-daemon
ipv4-peers-tap-kernel
ipv4-peers-vhost-user-daemon
ipv6-group-vhost-user-kernel
ipv4-peers-xdp-own-daemon
ipv6-group-xdp-own-daemon
'
matrix() {
  local family spread uplink far
  for family in ipv4 ipv6; do
    for spread in group peers; do
      for uplink in xdp tap vhost-user xdp-own; do
        for far in daemon kernel; do
          [ "$uplink-$far" != xdp-own-kernel ] || continue
          [ "${MATRIX:-pairs}" = all ] || [[ $PAIRS == *$'\n'"$family-$spread-$uplink-$far"$'\n'* ]] || continue
          run "$family-$spread-$uplink-$far" combination "$family" "$spread" "$uplink" "$far"
        done
      done
    done
  done
}
