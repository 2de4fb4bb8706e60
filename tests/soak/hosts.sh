#!/bin/bash
# hosts.sh: two hosts for hours. 25 filtered guests on each send to a guest on the other, through a link that delays and loses at
# times, while daemons are killed, upgraded and get other rules and vnics. Each frame is compared. Needs root.
#   MINUTES=120 SEED= PAIRS=25   environment
set -euo pipefail
# shellcheck source=../lib/common.sh
. "$(dirname "$0")/../lib/common.sh"

need_programs butterflyd butterfly
export BIN
cd "$REPO"
cargo build --quiet --release ${CI:+--locked} --bin butterfly-soak --bin butterfly-link
built=${CARGO_TARGET_DIR:-$REPO/target}/release
a=bfly-soak-a-$$ b=bfly-soak-b-$$
dir=$(mktemp -d /tmp/bfly-soak.XXXXXX)
link=''
cleanup() {
  trap '' INT TERM HUP
  # Of a test that failed: holders outlive everything else.
  pkill -KILL -f -- "--hold-alone $dir/" 2>/dev/null || true
  [ -z "$link" ] || end "$link"
  ip netns del "$a" 2>/dev/null || true
  ip netns del "$b" 2>/dev/null || true
  rm -rf "$dir"
}
trap cleanup EXIT
trap 'exit 130' INT TERM HUP

for ns in "$a" "$b"; do
  ip netns add "$ns"
  ip netns exec "$ns" sh -c 'echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6'
  ip -n "$ns" link set lo up
done
mkfifo "$dir/words"
"$built/butterfly-link" "$a/wire" "$b/wire" <>"$dir/words" >"$dir/link.log" 2>&1 &
link=$!
ready() { grep -q ready "$dir/link.log"; }
wait_for 10 ready || die "butterfly-link did not start: $(cat "$dir/link.log")"
for ns in "$a" "$b"; do ip -n "$ns" link set wire mtu 1600 up; done

TMPDIR=$dir "$built/butterfly-soak" --hosts "$a" "$b" --link "$dir/words" --minutes "${MINUTES:-120}" --pairs "${PAIRS:-25}" \
  ${SEED:+--seed "$SEED"}
echo counts >"$dir/words"
counted() { grep -q "^$b/wire to" "$dir/link.log"; }
wait_for 10 counted || die "the link has no counts"
grep " to .*/wire: " "$dir/link.log" | tail -2 # what the link itself lost
