#!/bin/bash
# run.sh: the link emulator between two kernels does what it is told: delay, loss, duplication, order, rate. Needs root.
set -euo pipefail
# shellcheck source=../lib/common.sh
. "$(dirname "$0")/../lib/common.sh"

cd "$REPO"
cargo build --quiet ${CI:+--locked} --bin butterfly-link
link=${CARGO_TARGET_DIR:-$REPO/target}/debug/butterfly-link
a=bfly-link-a-$$ b=bfly-link-b-$$
dir=$(mktemp -d /tmp/bfly-link.XXXXXX)
pid=''
cleanup() {
  trap '' INT TERM HUP
  [ -z "$pid" ] || end "$pid"
  ip netns del "$a" 2>/dev/null || true
  ip netns del "$b" 2>/dev/null || true
  rm -rf "$dir"
}
trap cleanup EXIT
trap 'exit 130' INT TERM HUP

for n in 1 2; do
  ns=$a
  [ "$n" = 1 ] || ns=$b
  ip netns add "$ns"
  ip netns exec "$ns" sh -c 'echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6'
done
mkfifo "$dir/words"
"$link" "$a/wire" "$b/wire" <>"$dir/words" >"$dir/log" 2>&1 &
pid=$!
ready() { grep -q ready "$dir/log"; }
wait_for 10 ready || die "butterfly-link did not start: $(cat "$dir/log")"
ip -n "$a" addr add 192.0.2.1/24 dev wire
ip -n "$b" addr add 192.0.2.2/24 dev wire
ip -n "$a" link set wire up
ip -n "$b" link set wire up

# change OPTION...: returns when it holds. Frames that were under way arrive all the same.
changes=0
changed() { [ "$(grep -c '^changed$' "$dir/log")" -ge "$changes" ]; }
change() {
  changes=$((changes + 1))
  echo "$*" >"$dir/words"
  wait_for 10 changed || die "the link did not take '$*': $(tail -1 "$dir/log")"
}
# pings COUNT: prints ping's summary.
pings() { ip netns exec "$a" ping -q -i 0.02 -W 2 -c "$1" 192.0.2.2 2>&1 || true; }
# expect NAME SUMMARY PATTERN
passed=0 failed=0
expect() {
  if grep -Eq "$3" <<<"$2"; then
    passed=$((passed + 1))
    say "ok $1"
  else
    failed=$((failed + 1))
    say "FAILED $1: $2"
  fi
}

pings 2 >/dev/null # ARP
expect "a good link loses nothing" "$(pings 50)" '50 received.* 0% packet loss'
change --delay 20
expect "a delay of 20 ms each way" "$(pings 30)" '= 4[0-9]\.[0-9]+/4[0-9]\.'
change --loss 50
expect "half of the frames are lost each way" "$(pings 200)" ' (6[5-9]|7[0-9]|8[0-5])(\.[0-9]+)?% packet loss'
change --duplicate 100
expect "every frame comes twice" "$(pings 30)" '30 received, \+[0-9]+ duplicates'
change --loss 100
expect "a link that is cut" "$(pings 10)" '100% packet loss'
change --delay 0
expect "and is whole again" "$(pings 20)" ' 0% packet loss'
# 1,000 bytes take 40 ms at 200 kbit/s.
change --rate 200000
expect "a slow link" "$(ip netns exec "$a" ping -q -i 0.3 -c 5 -s 958 192.0.2.2)" '= (8[0-9]|9[0-9])\.'
echo counts >"$dir/words"
counted() { grep -q "^$b/wire to" "$dir/log"; }
wait_for 10 counted || die "no counts: $(tail -1 "$dir/log")"
expect "counts" "$(cat "$dir/log")" "to $b/wire: [0-9]+ frames, [1-9][0-9]* lost"
say "$passed passed, $failed failed"
[ "$failed" = 0 ]
