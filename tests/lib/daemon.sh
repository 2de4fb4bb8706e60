# Sourced after common.sh: a private butterflyd and its client. The caller's trap calls daemon_stop.
# shellcheck shell=bash

DAEMON_PID=''
DAEMON_DIR='' # sockets, API and log; set by daemon_start

# daemon_start DIR [OPTION...]: start butterflyd with its sockets and API in DIR and wait until it answers. Without an uplink, unless
# the options name one.
daemon_start() {
  DAEMON_DIR=$1
  shift
  need_programs butterflyd butterfly
  rm -f "$DAEMON_DIR/api"
  # A session of its own: Ctrl-C on a terminal ends the script, whose trap then ends the daemon, in that order. Unless the
  # caller wants it in its own, for the priority that belongs to a session.
  # shellcheck disable=SC2086 # nothing if empty
  ${DAEMON_SESSION-setsid} "$BIN/butterflyd" -i 42.0.0.1 --uplink none -s "$DAEMON_DIR" -e "ipc://$DAEMON_DIR/api" -l info --no-syslog \
    "$@" \
    </dev/null >>"$DAEMON_DIR/butterflyd.log" 2>&1 &
  DAEMON_PID=$!
  echo "$DAEMON_PID" >"$DAEMON_DIR/daemon.pid"
  if ! wait_for 10 daemon_answers; then
    die "butterflyd did not answer within 10 s; repeat with: $BIN/butterflyd -i 42.0.0.1 --uplink none -s DIR -e ipc://DIR/api $*"
  fi
}

daemon_answers() {
  alive "$DAEMON_PID" || die "butterflyd ended while it started: $(tail -3 "$DAEMON_DIR/butterflyd.log")"
  [ -S "$DAEMON_DIR/api" ] && bf nic list -t 1000 >/dev/null 2>&1
}

daemon_log() {
  [ ! -s "$DAEMON_DIR/butterflyd.log" ] || {
    echo "--- last lines of butterflyd's log:"
    tail -20 "$DAEMON_DIR/butterflyd.log"
    echo "---"
  } >&2
}

# bf COMMAND...: the client on that daemon. Never waits for ever.
bf() { "$BIN/butterfly" "$@" -e "ipc://$DAEMON_DIR/api" -t 10000; }

# daemon_kill: as a crash. daemon_stop: as an operator; fails if it does not end in time.
daemon_kill() {
  kill -9 "$DAEMON_PID"
  wait "$DAEMON_PID" 2>/dev/null || true
  daemon_forget
}
daemon_forget() {
  DAEMON_PID=''
  rm -f "$DAEMON_DIR/daemon.pid"
}
daemon_stop() {
  [ -n "$DAEMON_PID" ] || return 0
  local pid=$DAEMON_PID
  daemon_forget
  kill "$pid" 2>/dev/null || true
  if ! wait_for 5 gone "$pid"; then
    kill -9 "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
    echo "butterflyd did not end within 5 s of SIGTERM" >&2
    return 1
  fi
  wait "$pid" 2>/dev/null || true
}

# nic_field NIC EXPRESSION: a Python expression over `nic show --json` as n; drops as d, a mapping from reason to count.
nic_field() {
  local answer
  answer=$(bf nic show "$1" --json) || return 1
  python3 -I -S -c '
import json, sys
n = json.loads(sys.argv[2])
d = {x["reason"]: x["count"] for x in n["drops"]}
print(eval(sys.argv[1]))' "$2" "$answer"
}

attached() { [ "$(nic_field "$1" 'n["attached"]')" = True ]; }
detached() { [ "$(nic_field "$1" 'n["attached"]')" = False ]; }
