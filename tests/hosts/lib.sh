# Sourced by run.sh: the two hosts, their machines, and what is asked of them.
# shellcheck shell=bash
# shellcheck disable=SC2016 # what is in single quotes is expanded in machines

VNI=1337
GUESTS=(vm-1 vm-2 vm-3 vm-4)
# vm-1 and vm-2 live on host one, vm-3 and vm-4 on host two.
host_of() {
  case $1 in
    vm-[12]) echo one ;;
    *) echo two ;;
  esac
}
mac_of() { echo "52:54:00:00:00:0${1#vm-}"; }
ip4_of() { echo "10.0.0.${1#vm-}"; }
ip6_of() { echo "2001:db8:42::${1#vm-}"; }
both_of() {
  local guest
  for guest in "$@"; do echo "$(ip4_of "$guest") $(ip6_of "$guest")"; done
}

fail() {
  say "FAILED: $*" >&2
  exit 1
}
ok() { say "ok $*"; }

# ---- Hosts

number_of() { [ "$1" = one ] && echo 1 || echo 2; }
# The host's own address between hosts; its daemon's endpoint is another one.
address_of() { underlay ipv4 $((100 + $(number_of "$1"))); }

two_hosts() {
  SOCKETS=$HOSTS/sockets
  mkdir "$SOCKETS"
  host_add one
  host_add two
  join one two
  for host in one two; do
    if [ "$UPLINK" = tap ]; then
      bridge_add "$host"
      address "$host" br0 $((100 + $(number_of "$host")))
    else
      address "$host" eth0 $((100 + $(number_of "$host")))
    fi
    start "$host"
  done
}
# Sockets of both hosts are in one folder, as in the original's own tests: namespaces share the files.
SOCKETS=''
# The API of host one is where it is by default. Host two's is named: two daemons with one folder and one API would be one.
port_of() { [ "$1" = one ] && echo 9999 || echo 8762; }
# start HOST OPTION...: its daemon, with the original's options. That of host two records packets.
start() {
  local host=$1 options=(-i "$(underlay ipv4 "$(number_of "$1")")" --socket-dir="$SOCKETS" -l info --no-syslog "${@:2}")
  [ "$host" = one ] || options+=("--endpoint=tcp://0.0.0.0:$(port_of "$host")" -t)
  [ "$UPLINK" = tap ] || options+=(--dpdk-args "-c1 -n1 --no-huge --vdev=eth_pcap0,iface=eth0")
  setsid ip netns exec "$(net "$host")" "$BIN/butterflyd" "${options[@]}" </dev/null >>"$HOSTS/$host/butterflyd.log" 2>&1 &
  echo $! >"$HOSTS/$host/daemon.pid"
  echo $! >>"$HOSTS/pids"
  wait_for 10 listens "$host" || fail "butterflyd on host $host did not answer within 10 s; repeat with: $BIN/butterflyd ${options[*]}"
  rm -f "$HOSTS/$host/table" # the one that a predecessor left was replaced
  [ "$UPLINK" = tap ] || return 0
  ip -n "$(net "$host")" link set "$(ip -n "$(net "$host")" -o link show type tun | awk -F': ' '{ print $2; exit }')" master br0 up
}
# It speaks to whom it does not trust, too.
listens() {
  alive "$(<"$HOSTS/$1/daemon.pid")" || fail "butterflyd on host $1 ended: $(tail -3 "$HOSTS/$1/butterflyd.log")"
  [[ $(b "$1" nic list -t 1000 2>&1 && echo yes) =~ (yes|REJECTED) ]]
}

# b HOST COMMAND...: the client on that host.
b() {
  local at=()
  [ "$1" = one ] || at=(-e "tcp://127.0.0.1:$(port_of "$1")")
  inside "$1" timeout 20 "$BIN/butterfly" "${at[@]}" "${@:2}"
}
# everywhere COMMAND...: on both hosts, as an orchestrator does it with groups.
everywhere() {
  b one "$@"
  b two "$@"
}
# says WORDS STATUS HOST COMMAND...: the client ends with that status, and what it says has WORDS in it.
says() {
  local got=0 told
  told=$(b "${@:3}" 2>&1) || got=$?
  [[ $got -eq $2 && $told == *"$1"* ]] || fail "butterfly ${*:4}, host $3: status $got where $2 was expected, \"$1\" is to be in: $told"
}

# ---- Machines

nic_add() { # nic_add GUEST OPTION...
  b "$(host_of "$1")" nic add --id "$1" --mac "$(mac_of "$1")" --vni $VNI --ip "$(ip4_of "$1")" --ip "$(ip6_of "$1")" "${@:2}"
}
# All but the last have reconnect=1: it has the command line that the original's documents show.
boot() {
  local again=(--reconnect 1)
  [ "$1" != vm-4 ] || again=()
  vm start "$1" --socket "$SOCKETS/qemu-vhost-$1" --mac "$(mac_of "$1")" --limit 400 "${again[@]}" "${@:2}"
}
machines() {
  local guest said
  for guest in "${GUESTS[@]}"; do
    said=$(nic_add "$guest" --sg lan --enable-antispoof)
    [ "$said" = "$SOCKETS/qemu-vhost-$guest" ] || fail "nic add prints $said"
    boot "$guest" --no-wait
  done
}
# Addresses and a web server, over both families.
dress() {
  vm exec "$1" "cd /proc/sys/net/ipv6/conf/eth0; echo 0 >accept_dad; echo 0 >router_solicitations; echo 0 >disable_ipv6
    ip addr add $(ip4_of "$1")/24 dev eth0; ip -6 addr add $(ip6_of "$1")/64 dev eth0
    mkdir -p /tmp/www; echo $1 >/tmp/www/index.html; pidof httpd >/dev/null || for port in 80 81 82; do httpd -p \$port -h /tmp/www; done"
}

# ---- What machines see

# answered FROM ADDRESS...: every address answers every ping.
answered() {
  vm exec "$1" "for a in ${*:2}; do ping -c 2 -i 0.2 -W 2 \$a | grep -q ' 0% packet loss' || exit 1; done"
}
# silent FROM ADDRESS...: none of them answers a single one. A guest that does not run proves nothing: it has to say so.
silent() {
  [ "$(vm exec "$1" "for a in ${*:2}; do { ping -c 1 -W 1 \$a >/dev/null && echo \$a answers; } & done; wait; echo end")" = end ]
}
reaches() { # reaches FROM TO...: by ping, over both families
  # shellcheck disable=SC2046 # one word each
  wait_for 10 answered "$1" $(both_of "${@:2}") || fail "$1 does not reach ${*:2} ($CASE)"
}
blocked() {
  # shellcheck disable=SC2046 # one word each
  silent "$1" $(both_of "${@:2}") || fail "$1 reaches ${*:2} and should not ($CASE)"
}
# page FROM TO PORT: what the web server says, over both families.
page() {
  vm exec "$1" "timeout 3 wget -q -O - http://$(ip4_of "$2"):$3/ && timeout 3 wget -q -O - http://[$(ip6_of "$2")]:$3/" 2>/dev/null
}
served() { [ "$(page "$@")" = "$2"$'\n'"$2" ]; }
opens() { wait_for 10 served "$@" || fail "$1 does not get the page of $2 on port $3 ($CASE)"; }
refused() { # over neither family: nothing comes
  local said
  said=$(vm exec "$1" "for a in $(ip4_of "$2") [$(ip6_of "$2")]; do timeout 2 wget -q -O - http://\$a:$3/ 2>/dev/null & done; wait; echo end")
  [ "$said" = end ] || fail "$1 gets the page of $2 on port $3 and should not ($CASE)"
}
