#!/bin/bash
# run.sh [--check]: what the client prints on a terminal, as the documents show it: `show`, `nic list`, `sg show`, `explain`, `trace`,
# `drops`, `events`, `top`. It makes two hosts whose guests are network namespaces, brings about what the documents tell of, and writes
# each output into the block below its marker, <!-- capture: NAME -->. A block that differs in numbers and times only stays as it is.
# With --check it writes nothing, and fails with a diff if a block is not what the client prints. In half a minute; needs root.
set -euo pipefail
# shellcheck source=../lib/common.sh
. "$(dirname "$0")/../lib/common.sh"
# shellcheck source=../lib/daemon.sh
. "$TESTS/lib/daemon.sh"
# shellcheck source=../lib/hosts.sh
. "$TESTS/lib/hosts.sh"

case ${1:-} in
  '') mode='write' ;;
  --check) mode='check' ;;
  *) die "unknown option $1" ;;
esac
need_programs butterflyd butterfly butterfly-bench

dir=$(mktemp -d /tmp/bfly-captures.XXXXXX)
cleanup() {
  local status=$?
  trap '' INT TERM HUP
  if [ "$status" -ne 0 ]; then
    for host in one two; do on "$host" daemon_log; done
  fi
  tmux_ kill-server 2>/dev/null || true
  end "${load:-}"
  hosts_end || status=1
  rm -rf "$dir"
  exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT TERM HUP
load=''
tmux_() { env -u TMUX tmux -f /dev/null -S "$dir/tmux" "$@"; }

# ---- The hosts

# As they stand in the documents; the first client asks the first host.
export BUTTERFLY_ENDPOINT=ipc://$dir/hosts/one/api
API_OF_TWO=tcp://192.0.2.2:9999
one() { on one bf "$@" >/dev/null; }
two() { on two bf "$@" >/dev/null; }
# guest HOST NAME NUMBER OPTION...: a vnic of VNI 42, whose machine is a namespace that says nothing by itself.
guest() {
  local host=$1 name=$2 number=$3
  host_add "$name"
  inside "$name" sh -c 'echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6; echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6'
  on "$host" bf nic add --type TAP --id "$name" --mac "52:54:00:00:00:0$number" --vni 42 --ip "10.0.0.$number" --netns "$(net "$name")" "${@:4}" >/dev/null
  ip -n "$(net "$name")" addr add "10.0.0.$number/24" dev "$name"
}
# Services of a machine end with it.
serves() { # serves GUEST PORT...
  local port
  for port in "${@:2}"; do
    inside "$1" setsid timeout 120 python3 -I -S -c '
import socket, sys
listener = socket.create_server(("", int(sys.argv[1])))
while True:
    client = listener.accept()[0]
    client.recv(1)' "$port" </dev/null >/dev/null 2>&1 &
    wait_for 10 listens "$1" "$port" || die "$1 does not serve port $port"
  done
}
listens() { inside "$1" ss -Hltn "sport = :$2" | grep -q .; }
# opens GUEST ADDRESS PORT: a connection that stays. tries: one segment of one that is not answered.
opens() {
  inside "$1" setsid timeout 120 python3 -I -S -c '
import socket, sys, time
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
time.sleep(120)' "$2" "$3" </dev/null >/dev/null 2>&1 &
  wait_for 10 connected "$@" || die "$1 does not reach $2:$3"
}
connected() { inside "$1" ss -Htn state established "dst $2:$3" | grep -q .; }
tries() { ! inside "$1" timeout 0.3 bash -c "exec 3<>/dev/tcp/$2/$3" 2>/dev/null || die "$1 reaches $2:$3"; }

hosts_begin "$dir/hosts"
host_add one
host_add two
join one two
address one eth0 1
address two eth0 2
host_daemon one -i 192.0.2.1/24 --uplink eth0 --peer 192.0.2.2
host_daemon two -i 192.0.2.2/24 --uplink eth0 --peer 192.0.2.1

# ---- What is printed

# typed WORD...: the client as a person sees it, on a terminal of 100 columns; what is this run's own is what it would be on a host.
typed() {
  local words
  printf -v words '%q ' timeout 20 "$BIN/butterfly" "$@"
  # 2 is what `explain` ends with if the packet would not arrive, 1 what a mistake does.
  { TERM=xterm script -qec "stty cols 100 rows 40; $words" /dev/null </dev/null || [ $? -le 2 ]; } | plain
}
plain() {
  tr -d '\r' | sed -E -e 's/\x1b\[[0-9;?]*[a-zA-Z]//g' -e "s|$(<"$HOSTS/net")-||g" -e "s|ipc://$HOSTS/two/api|$API_OF_TWO|g" \
    -e "s|ipc://$HOSTS/one/api|tcp://127.0.0.1:9999|g" -e "s|$HOSTS/one|/run/butterfly|g"
}
# shown COMMAND...: the same below the command.
shown() {
  local word words='$ butterfly'
  for word in "$@"; do
    if [[ $word == *' '* ]]; then words+=" '$word'"; else words+=" $word"; fi
  done
  plain <<<"$words"
  typed "$@"
}
# keep PAGE NAME <OUTPUT: it belongs into that block. All blocks are looked at, even if one is wrong.
keep() {
  python3 -I -S "$TESTS/captures/block.py" "$mode" "$REPO/docs/$1" "$2" || echo "$2" >>"$dir/wrong"
}

guest one vm-1 1 --sg admins --enable-antispoof
guest one vm-2 2 --sg web --sg db --enable-antispoof
guest two vm-4 4 --sg web --enable-antispoof
for host in one two; do
  "$host" sg rule add web --ip-proto tcp --port 443 --cidr 0.0.0.0/0 + sg rule add web --ip-proto tcp --port 22 --sg-members admins + \
    sg rule add web --ip-proto tcp --port-start 80 --port-end 90 --cidr 10.0.0.0/24 + sg member add admins 10.0.0.9 + \
    sg rule add support --ip-proto tcp --port 22 --cidr 10.0.0.0/24
done
serves vm-2 80 443
serves vm-4 443
opens vm-1 10.0.0.4 443
opens vm-1 10.0.0.2 443
one nic add --id vm-3 --mac 52:54:00:00:00:03 --vni 42 --ip 10.0.0.3 --sg web
tries vm-1 10.0.0.2 22

shown show | keep operations.md show
shown nic list | keep operations.md nic-list
shown sg show web | keep operations.md sg-show
shown explain --from vm-1 --to vm-2 --port 22 | keep troubleshooting.md explain
far=ipc://$HOSTS/two/api
shown explain --from vm-1 --to vm-4 --port 22 --far-endpoint "$far" | keep networks.md explain-far

# seen FILTER COMMAND...: the first packet of those that a trace of vm-2 sees, while the command is repeated.
seen() {
  local tracing filter=$1
  shift
  shown trace vm-2 "$filter" --count 1 >"$dir/trace" &
  tracing=$!
  for _ in {1..50}; do
    alive $tracing || break
    "$@"
    sleep 0.1
  done
  wait $tracing || die "no trace of $filter"
  cat "$dir/trace"
}
touches() { inside "$1" bash -c "exec 3<>/dev/tcp/$2/$3"; }
{
  seen 'tcp dst port 80 and tcp[tcpflags] == tcp-syn' touches vm-1 10.0.0.2 80
  seen 'tcp dst port 22' tries vm-1 10.0.0.2 22
} | keep tracing.md trace
# A machine that speaks with an address that is not its own.
ip -n "$(net vm-2)" addr add 10.0.0.77/32 dev vm-2
inside vm-2 ping -c 1 -W 0.1 -q -I 10.0.0.77 10.0.0.1 >/dev/null && die "a forged address passes"
told() { on one bf events vm-2 | grep -q spoofed-ip; }
wait_for 10 told || die "no event tells of a forged address"
shown drops vm-2 | keep troubleshooting.md drops
shown events vm-2 --last 3 | keep events.md events

# What people do wrong, and what they read then.
mistakes() {
  local line words
  while read -r line; do
    read -ra words <<<"$line"
    shown "${words[@]}"
    echo
  done
}
mistakes <<'END' | keep mistakes.md mistakes
show -e tcp://127.0.0.1:9990
nic show vm1
sg rule add web --ip-proto tcp --port 22 --cidr 10.0.0.0/24 --direction out
sessions --adress 10.0.0.2 --flush
nic add --id vm-5 --mac 52:54:00:00:00:05
nic add --id vm-5 --mac 52:54:00:00:00:05 --vni 42 --sg web,db
nic add --id vm-5 --mac 52:54:00:00:00:01 --vni 42 --ip 10.0.0.5 --sg wbe
nic add --id vm-6 --mac 52:54:00:00:00:06 --vni 42 --ip 10.0.0.1 --sg web
sg add web
nic del vm-7
END
one nic del vm-5 vm-6
one sg rule add web --ip-proto tcp --port 443 --cidr 0.0.0.0/0 + sg rule add web --ip-proto tcp --port 22 --sg-members admins + \
  sg rule add web --ip-proto tcp --port-start 80 --port-end 90 --cidr 10.0.0.0/24

# Two simulated machines in a network of their own exchange so many packets a second.
one nic add --id vm-8 --mac 02:00:00:00:00:01 --vni 43 --ip 10.0.0.1 --bypass-filtering + \
  nic add --id vm-9 --mac 02:00:00:00:00:02 --vni 43 --ip 10.0.0.2 --bypass-filtering
"$BIN/butterfly-bench" --a "$HOSTS/one/qemu-vhost-vm-8" --b "$HOSTS/one/qemu-vhost-vm-9" --rate 20000 --warm 0 --learn 0 --secs 60 \
  >"$dir/load" 2>&1 </dev/null &
load=$!
wait_for 20 on one attached vm-9 || die "the load did not start: $(cat "$dir/load")"
tmux_ new-session -d -x 100 -y 20 "LANG=C.UTF-8 '$BIN/butterfly' top --interval 500"
screen() { tmux_ capture-pane -p; }
await() { wait_for 10 eval "screen | grep -qE -- '$1'" || die "top does not show $1: $(screen)"; }
on one bf sessions --port 80 --flush >/dev/null
# Both have the same rate, and either may come first: the page shows one of that.
as_shown() {
  screen >"$dir/top"
  grep -qE '^vm-9 .*[▁▂▃▄▅▆▇█]{7}' "$dir/top" && [ "$(grep -oE '^vm-[89]' "$dir/top" | head -1)" = vm-8 ]
}
wait_for 20 as_shown || die "top does not show the load: $(screen)"
keep top.md top <"$dir/top"
tmux_ send-keys s s s
await 'sorted by id'
tmux_ send-keys Down Down Enter
await '^vm-2 +VNI 42'
await '^sessions \(1 of 1'
screen | keep top.md top-nic
tmux_ send-keys q

# The other host's daemon dies. Who speaks to its machines is told why nothing comes back.
host_kill two
inside vm-1 setsid timeout 60 ping -q -i 0.2 10.0.0.4 </dev/null >/dev/null 2>&1 &
refused() { on one bf show | grep -q 'peer 192.0.2.2: for [3-9] s'; }
wait_for 20 refused || die "show says nothing of a peer whose daemon is dead: $(on one bf tunnels)"
shown show | keep networks.md show-dead-peer

# Two networks that a router joins, as the page about routers tells it. The machines really talk.
one network add --vni 50 --subnet 10.5.0.0/24 --gateway 10.5.0.1 + network add --vni 51 --subnet 10.6.0.0/24 --gateway 10.6.0.1 + \
  router add r1 + router attach r1 --vni 50 + router attach r1 --vni 51
routed() { # routed NAME NUMBER VNI PREFIX OPTION...
  host_add "$1"
  one nic add --type TAP --id "$1" --mac "52:54:00:00:00:$2" --vni "$3" --ip "$4.10" --netns "$(net "$1")" "${@:5}"
  ip -n "$(net "$1")" addr add "$4.10/24" dev "$1"
  ip -n "$(net "$1")" route add default via "$4.1"
}
routed app-1 11 50 10.5.0
routed db-1 12 51 10.6.0 --sg database
one sg rule add database --ip-proto tcp --port 5432 --cidr 10.5.0.0/24
{
  shown network list
  shown router list
  shown explain --from app-1 --to db-1 --port 5432 --reply
} | keep routers.md routed
serves db-1 5432
opens app-1 10.6.0.10 5432

[ ! -s "$dir/wrong" ] || die "not what is printed: $(xargs <"$dir/wrong"); if the client is right: make captures"
say "captures: ok"
