#!/bin/bash
# run.sh [PATTERN]: a foreign driver as two guests: DPDK's virtio-user through tests/peers/vugen, at full rate, every byte
# verified, and afterwards every packet accounted for in `butterfly nic show`. All cases, or those whose name matches.
set -euo pipefail
# shellcheck source=../lib/common.sh
. "$(dirname "$0")/../lib/common.sh"
# shellcheck source=../lib/daemon.sh
. "$TESTS/lib/daemon.sh"

PATTERN=${1:-.}
SECS=${SECS:-2}
DEATHS=0 # of the daemon, under each case
QUEUES=1 # pairs of each guest
VUGEN=$BUILD/peers/vugen
need_programs butterflyd butterfly
mkdir -p "$BUILD/peers"
make -s -C "$TESTS/peers/vugen" "OUT=$BUILD/peers"

dir=$(mktemp -d /tmp/bfly-dpdk.XXXXXX)
generator=''
cleanup() {
  trap '' INT TERM HUP
  [ -z "$generator" ] || end "$generator"
  daemon_stop || true
  pkill -KILL -f -- "--hold-alone $dir/" 2>/dev/null || true
  rm -rf "$dir"
}
trap cleanup EXIT
trap 'exit 130' INT TERM HUP

daemon_start "$dir" -u 1 --poll

passed=0 failed=0 vni=0
failures=()

# feature NIC NAME on|off: did the driver negotiate what the case is about?
feature() {
  local has
  has=$(nic_field "$1" "'$2' in n['features_negotiated']")
  if [ "$3" = on ] && [ "$has" != True ]; then
    say "    WRONG: $1 did not negotiate $2"
    return 1
  elif [ "$3" = off ] && [ "$has" != False ]; then
    say "    WRONG: $1 negotiated $2, which the case switches off"
    return 1
  fi
}

attempt() { # attempt ROLE DEVICE-ARGS GENERATOR-OPTIONS...
  local role=$1 device=$2 paths=() status=0 nic serve='' number=0 death
  shift 2
  vni=$((vni + 1))
  if [ "$role" = client ]; then # the guest owns the socket, butterflyd connects
    paths=("$dir/$vni-a.sock" "$dir/$vni-b.sock")
    serve=,server=1
  else
    paths=("$dir/qemu-vhost-a$vni" "$dir/qemu-vhost-b$vni")
  fi
  for nic in a b; do
    number=$((number + 1))
    local add=(nic add --id "$nic$vni" --mac "02:00:00:00:00:0$number" --vni "$vni" --bypass-filtering)
    [ "$role" = server ] || add+=(--type VHOST_USER_CLIENT --path "${paths[number - 1]}")
    bf "${add[@]}" >/dev/null || return 1
    bf nic show "$nic$vni" --json >"$dir/before-$nic.json" || return 1
  done

  rm -f "$dir/vugen.json" "$dir/go"
  mkfifo "$dir/go"
  # Without huge pages: nothing to reserve, nothing to give back. Two memory regions at most per port.
  RUNTIME_DIRECTORY=$dir timeout -k 5 90 "$VUGEN" -l 0 --no-pci --no-telemetry --no-huge --no-shconf \
    --file-prefix="bfly-dpdk-$$" -m 256 \
    --vdev "net_virtio_user0,path=${paths[0]},queues=$QUEUES,$device$serve" \
    --vdev "net_virtio_user1,path=${paths[1]},queues=$QUEUES,$device$serve" \
    -- --dir bidi --warm 1 --secs "$SECS" --payload-check --sync --queues "$QUEUES" --json "$dir/vugen.json" "$@" \
    <>"$dir/go" >"$dir/vugen.log" 2>&1 &
  generator=$!
  if wait_for 60 ready; then
    for nic in "a$vni" "b$vni"; do
      # The generator does not wait until what it said was read.
      wait_for 10 negotiated "$nic" || true
      case ,$device, in *,mrg_rxbuf=0,*) feature "$nic" mrg-rxbuf off ;; *) feature "$nic" mrg-rxbuf on ;; esac || status=1
      case ,$device, in *,packed_vq=1,*) feature "$nic" ring-packed on ;; *) feature "$nic" ring-packed off ;; esac || status=1
      case ,$device, in *,in_order=0,*) feature "$nic" in-order off ;; *) feature "$nic" in-order on ;; esac || status=1
      case " $* " in *' --tx-csum '*) feature "$nic" csum on || status=1 ;; esac
      case " $* " in *' --rx-csum '*) feature "$nic" guest-csum on || status=1 ;; esac
    done
    echo >"$dir/go"
    for ((death = 0; death < DEATHS; death++)); do
      sleep 1
      daemon_kill
      daemon_start "$dir" -u 1 --poll --state-dir "$dir/state"
    done
  fi
  if wait "$generator"; then :; else
    say "    WRONG: the generator ended with status $?:"
    tail -5 "$dir/vugen.log" | sed 's/^/      /'
    status=1
  fi
  generator=''
  if [ "$status" -eq 0 ]; then
    for nic in a b; do bf nic show "$nic$vni" --json >"$dir/after-$nic.json" || status=1; done
    "$TESTS/dpdk/account.py" "$dir/vugen.json" "$dir"/before-{a,b}.json "$dir"/after-{a,b}.json "$DEATHS" "$QUEUES" || status=1
    # The generator left cleanly: both vnics must know, and say why.
    for nic in a b; do
      wait_for 5 detached "$nic$vni" || {
        say "    WRONG: $nic$vni still counts as attached after its guest left"
        status=1
      }
    done
  fi
  bf nic del "a$vni" "b$vni" || status=1
  return "$status"
}
negotiated() { [ "$(nic_field "$1" "n['features_negotiated'] != []")" = True ]; }
no_holder() { ! pgrep -f -- "--hold-alone $dir/" >/dev/null; }
ready() { ! alive "$generator" || grep -q '^READY' "$dir/vugen.log"; }

try() { # try NAME ROLE DEVICE-ARGS GENERATOR-OPTIONS...
  local name=$1
  shift
  [[ $name =~ $PATTERN ]] || return 0
  say "$name: $*"
  if attempt "$@"; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    failures+=("$name")
    daemon_log
  fi
  alive "$DAEMON_PID" || die "butterflyd is gone after case $name; repeat with: tests/dpdk/run.sh '^$name\$'"
}

for role in server client; do
  for mergeable in 1 0; do
    for in_order in 1 0; do
      for size in 64 1400; do
        try "$role-mergeable$mergeable-inorder$in_order-$size" "$role" \
          "mrg_rxbuf=$mergeable,in_order=$in_order,packed_vq=0" --size "$size" --flows 1000 --random
      done
    done
  done
  # Frames larger than a receive buffer: spread over several, or in one large one.
  try "$role-jumbo-mergeable" "$role" in_order=0 --size 9000 --room 2048 --flows 100 --random
  try "$role-jumbo-one-buffer" "$role" mrg_rxbuf=0,in_order=0 --size 9000 --flows 100 --random
done
# Buffers smaller than the headers that the switch gathers, on both sides; chains of many descriptors.
try tiny-buffers server in_order=0 --size 1400 --room 192 --mbufs 16383 --mbc 256
try long-chains server in_order=0 --size 1400 --segments 16 --mbufs 16383 --mbc 256
try long-chains-inorder server in_order=1 --size 9000 --room 2048 --segments 12 --mbufs 16383 --mbc 256
try odd-size server in_order=0 --size 61
try large-ring server in_order=0,queue_size=1024 --qsz 1024 --size 64 --mbufs 16383
try vectorised server mrg_rxbuf=0,in_order=1,vectorized=1 --size 64
# Checksums: passed on to a receiver that takes partial ones, completed for one that does not.
try tcp server in_order=0 --tcp --size 512 --flows 64
try tcp-partial-to-partial server in_order=0 --tcp --size 512 --flows 64 --tx-csum --rx-csum
try tcp-partial-completed server in_order=0 --tcp --size 512 --flows 64 --tx-csum
try tcp-partial-completed-jumbo server in_order=0 --tcp --size 9000 --room 2048 --tx-csum
try tcp-partial-completed-odd client mrg_rxbuf=0,in_order=0 --tcp --size 1399 --tx-csum

# Several pairs of queues, in turn: frames come by all of them.
for QUEUES in 4 8; do # 8 are the most of virtio-user
  for role in server client; do
    try "$role-queues$QUEUES" "$role" in_order=0 --size 64 --flows 1000 --random --mbufs 32767
  done
done
QUEUES=1

# With a state directory there are packed rings, too.
if [[ packed =~ $PATTERN || $PATTERN = *packed* || $PATTERN = *deaths* || server-deaths =~ $PATTERN ]]; then
  daemon_stop || die "butterflyd did not stop"
  daemon_start "$dir" -u 1 --poll --state-dir "$dir/state"
  for role in server client; do
    for in_order in 1 0; do
      try "$role-packed-inorder$in_order" "$role" "in_order=$in_order,packed_vq=1" --size 64 --flows 1000 --random
    done
    try "$role-packed-one-buffer" "$role" mrg_rxbuf=0,in_order=0,packed_vq=1 --size 1400 --flows 1000 --random
    try "$role-packed-jumbo" "$role" in_order=0,packed_vq=1 --size 9000 --room 2048 --flows 100 --random
  done
  try packed-long-chains server in_order=0,packed_vq=1 --size 1400 --segments 16 --mbufs 16383 --mbc 256
  QUEUES=4
  try packed-queues server in_order=0,packed_vq=1 --size 64 --flows 1000 --random --mbufs 32767
  QUEUES=1
  # The daemon dies twice under each case, and the next one goes on: the driver notices nothing.
  DEATHS=2 SECS=5
  for role in server client; do
    try "$role-packed-deaths" "$role" in_order=0,packed_vq=1 --size 64 --flows 1000 --random
  done
  try packed-deaths-long-chains server in_order=0,packed_vq=1 --size 1400 --segments 16 --mbufs 16383 --mbc 256
  for role in server client; do
    try "$role-deaths" "$role" in_order=0 --size 64 --flows 1000 --random
  done
  QUEUES=4
  try server-deaths-queues server in_order=0 --size 64 --flows 1000 --random --mbufs 32767
  QUEUES=1
  bf nic list >"$dir/left"
  bf shutdown >/dev/null
  daemon_forget
  wait_for 10 no_holder || die "the holder outlasts a shutdown"
  daemon_start "$dir" -u 1
  [ ! -s "$dir/left" ] || die "nics are left: $(tr '\n' ' ' <"$dir/left")"
fi

[ $((passed + failed)) -gt 0 ] || die "no case matches $PATTERN"
[ "$(bf nic list | wc -l)" -eq 0 ] || die "nics are left: $(bf nic list | tr '\n' ' ')"
daemon_stop || die "butterflyd did not stop"
for name in "${failures[@]}"; do
  say "failed: $name    repeat with: tests/dpdk/run.sh '^$name\$'"
done
say "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
