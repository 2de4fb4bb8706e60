#!/bin/bash
# run.sh: what `butterfly top` shows in a terminal (tmux), while two simulated guests exchange a known rate: rates, choosing, opening,
# sorting, small and large windows, no colours, a daemon that goes. tests/captures keeps its screens in docs/top.md.
set -euo pipefail
# shellcheck source=../lib/common.sh
. "$(dirname "$0")/../lib/common.sh"
# shellcheck source=../lib/daemon.sh
. "$TESTS/lib/daemon.sh"

need_programs butterflyd butterfly butterfly-bench
RATE=20000 # packets a second, one way
dir=$(mktemp -d /tmp/bfly-terminal.XXXXXX)
load=''
cleanup() {
  tmux_ kill-server 2>/dev/null || true
  end "$load"
  daemon_stop || true
  rm -rf "$dir"
}
trap cleanup EXIT
trap 'exit 130' INT TERM HUP

tmux_() { env -u TMUX tmux -f /dev/null -S "$dir/tmux" "$@"; }
screen() { tmux_ capture-pane -p; }
keys() { tmux_ send-keys "$@"; }
fail() {
  echo "FAILED: $*" >&2
  echo "--- the screen:" >&2
  screen >&2 || true
  daemon_log
  exit 1
}
ok() { say "ok: $*"; }
shows() { screen | grep -qE -- "$1"; }          # a line that matches
begins() { [[ $(screen | sed -n 4p) == "$1 "* ]]; } # the first NIC below the heading
await() { wait_for 10 shows "$1" || fail "it does not show $1"; }

daemon_start "$dir"
bf nic add --id sender --mac 02:00:00:00:00:01 --vni 42 --ip 10.0.0.1 --bypass-filtering + \
  nic add --id receiver --mac 02:00:00:00:00:02 --vni 42 --ip 10.0.0.2 --bypass-filtering + \
  nic add --id alone --mac 02:00:00:00:00:03 --vni 43 --ip 10.0.0.3 --sg web + \
  sg rule add web --ip-proto tcp --port 443 --cidr 0.0.0.0/0 >/dev/null
"$BIN/butterfly-bench" --a "$dir/qemu-vhost-sender" --b "$dir/qemu-vhost-receiver" --rate $RATE --warm 0 --learn 0 --secs 60 \
  >"$dir/load" 2>&1 </dev/null &
load=$!
wait_for 20 attached receiver || fail "the load did not start: $(cat "$dir/load")"

tmux_ new-session -d -x 100 -y 16 "LANG=C.UTF-8 '$BIN/butterfly' top -e 'ipc://$dir/api' --interval 500; echo ended with \$?; sleep 60"
# Within a tenth of what is sent.
await '^sender +42 +attached +(1[89]|2[012])\.[0-9]k '
await '^receiver .* (1[89]|2[012])\.[0-9]k '
await '^3 NICs +(1[89]|2[012])\.[0-9]k packets/s'
begins alone && fail "who has no traffic is first"
await '[▁▂▃▄▅▆▇█]{4}'
ok "rates of the guests, within a tenth of $RATE packets a second, and bars of them"
# Bold and reversed, and nothing that a terminal without colours lacks.
colours=$(tmux_ capture-pane -p -e | grep -oE $'\e\\[[0-9;]*m' | grep -vE $'\e\\[(0|1|7|0;1|0;7|1;7|27|22|39|49|39;49|59|39;49;59)?m' || true)
[ -z "$colours" ] || fail "it uses colours: $(cat -v <<<"$colours")"
ok "no colours"

keys s
await 'sorted by drops'
keys s s
await 'sorted by id'
wait_for 5 begins alone || fail "alone is not first by id"
keys Down Enter
await '^alone +VNI 43'
await '0 +web: tcp 443 in from 0.0.0.0/0'
await '^sessions \(0 of 0\)'
ok "chosen, opened: drops, rules and sessions of one NIC"
keys Escape
await '^nic +vni'

for size in "40 8" "20 4" "200 50" "100 16"; do
  tmux_ resize-window -x "${size% *}" -y "${size#* }"
  wait_for 5 shows '^3 NICs' || fail "nothing to be seen in a window of $size"
done
await '^sender +42 +attached'
ok "windows from 20 x 4 to 200 x 50"

keys p
await '^paused'
keys p
kill -STOP "$DAEMON_PID"
await '^NO ANSWER'
kill -CONT "$DAEMON_PID"
wait_for 10 eval '! shows "^NO ANSWER"' || fail "it does not notice that the daemon is back"
ok "a daemon that does not answer is told, and its return is seen"
keys q
await '^ended with 0'

# One look is one second, in which a busy host may not let the load send as much.
page_tells() {
  page=$(bf top --once --interval 1000)
  grep -qE '^receiver .* (1[89]|2[012])\.[0-9]k ' <<<"$page"
}
json_tells() {
  bf top --json --interval 1000 | python3 -I -S -c '
import json, sys
board, rate = json.load(sys.stdin), float(sys.argv[1])
nics = {nic["id"]: nic for nic in board["nics"]}
seen = nics["receiver"]["out_packets_per_second"]
assert abs(seen - rate) < rate / 10, seen
assert nics["alone"]["in_packets_per_second"] == 0 and 0 < board["workers_busy"] < 1, board' $RATE
}
wait_for 10 page_tells || fail "the page does not tell the rate: $page"
wait_for 10 json_tells || fail "--json tells something else"
# What a person is told of a change that succeeded, and a script, which has no terminal, is not.
typed() { script -qec "$BIN/butterfly -e ipc://$dir/api $1" /dev/null </dev/null | tr -d '\r'; }
says() {
  typed "$1" >"$dir/typed"
  grep -qF -- "note: $2" "$dir/typed" || fail "butterfly $1 does not say: $2: $(cat "$dir/typed")"
  # The same by a script: nothing is said.
  local words
  read -ra words <<<"$1"
  bf "${words[@]}" 2>"$dir/silent" >/dev/null || fail "butterfly $1 fails"
  [ ! -s "$dir/silent" ] || fail "butterfly $1 speaks to a script: $(cat "$dir/silent")"
}
bf nic add --id third --mac 02:00:00:00:00:05 --vni 43 --ip 10.0.0.9 --sg web
bf nic add --id fourth --mac 02:00:00:00:00:06 --vni 43 --ip 10.0.0.7 --sg web
says 'nic add --id twin --mac 02:00:00:00:00:03 --vni 43 --sg wbe' 'twin waits for its MAC address, which alone has'
says 'nic sg set twin wbe' 'security group wbe does not exist: it allows nothing until it does'
says 'sg rule del web --ip-proto tcp --port 443 --cidr 10.0.0.0/8' 'web has no such rule: nothing changed'
says 'sg del wbe' 'there was no security group wbe: nothing changed'
says 'nic del nobody' 'there was no NIC nobody: nothing changed'
says 'sg member del web 10.9.9.9' '10.9.9.9 was no member of security group web: nothing changed'
out='sg rule add out --dir out --ip-proto all --cidr 10.0.0.0/8'
# shellcheck disable=SC2086
bf nic add --id fifth --mac 02:00:00:00:00:07 --vni 43 --sg out + $out
says 'sg rule del out --dir out --ip-proto all --cidr 10.0.0.0/8' 'fifth may send anything now: no OUTBOUND rule is left in the groups of it'
# shellcheck disable=SC2086
bf $out
says 'sg del out' 'fifth may send anything now'
bf nic del fifth
says 'nic add --id alone --mac 02:00:00:00:00:03 --vni 44 --sg web' 'alone was made anew, as these changed: vni'
says 'nic update --id third --ip 10.0.0.9 10.0.0.7' '10.0.0.7 is also declared for fourth: each of them may use it'
says 'nic add --id fourth --mac 02:00:00:00:00:06 --vni 43 --ip 10.0.0.7 --sg web' '10.0.0.7 is also declared for third'
bf nic del fourth
for line in 'nic details thrid' 'nic stats thrid' 'nic update --id thrid --ip 10.0.0.9' 'sg rule list wbe' 'sg member list wbe' 'sg show wbe'; do
  typed "$line" >"$dir/typed" || true
  grep -qE 'did you mean (third|web)\?' "$dir/typed" || fail "butterfly $line suggests nothing: $(cat "$dir/typed")"
done
bf nic del third
typed 'sg rule del web' >"$dir/typed"
if [ "$(wc -l <"$dir/typed")" != 2 ] || ! grep -q 'HASH missing' "$dir/typed"; then
  fail "a missing word is told in more than two lines: $(cat "$dir/typed")"
fi
typed 'sg add web' | grep -qF 'note: security group web was there and is empty now: it had 1 rule and 0 members' || fail "an emptied group is not told"
typed 'nic add --id third --mac 02:00:00:00:00:05 --vni 43 --sg web' >"$dir/typed"
! grep -q note: "$dir/typed" || fail "there is a note where nothing is wrong"
ok "what succeeds and was probably not meant is told to people"

bf top </dev/null 2>"$dir/refused" && fail "it runs without a terminal"
grep -q -- --once "$dir/refused" || fail "it does not say what to do without a terminal"
ok "--once and --json agree, and without a terminal it says so"

say "terminal: ok"
