#!/bin/bash
# run.sh [CHECK...]: the API as its contract has it, driven by a client in Python that shares no code with ours: every request and every
# situation of encryption, in clear text and in both forms. Then our client with a key: every command that stays connected, a daemon of old, and
# somebody between who swaps, repeats and forges. Last the program of docs/python-client.md, as it is printed there.
# CHECK: only these functions of contract.py. In some 15 s.
set -euo pipefail
# shellcheck source=../lib/common.sh
. "$(dirname "$0")/../lib/common.sh"
# shellcheck source=../lib/daemon.sh
. "$TESTS/lib/daemon.sh"

PYTHON=/usr/bin/python3 # Debian's, for which its packages are
if ! { $PYTHON -c 'import zmq, google.protobuf, nacl, cryptography' && command -v protoc openssl; } >/dev/null 2>&1; then
  die "run make setup (packages protobuf-compiler python3-protobuf python3-zmq python3-nacl python3-cryptography openssl)"
fi
need_programs butterflyd butterfly

HOME_DIR=$(mktemp -d /tmp/bfly-contract.XXXXXX)
BETWEEN=''
cleanup() {
  local status=$? name
  trap - EXIT INT TERM
  end "$BETWEEN"
  for name in clear locked strict; do
    daemon "$name"
    [ "$status" -eq 0 ] || { say "$name:" >&2 && daemon_log; }
    daemon_stop || status=1
  done
  rm -rf "$HOME_DIR"
  exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

# daemon NAME: what daemon.sh does from now on, it does with this one. They answer to app_quit, and then they are gone.
daemon() {
  DAEMON_DIR=$HOME_DIR/$1
  DAEMON_PID=$(cat "$DAEMON_DIR/daemon.pid" 2>/dev/null || true)
}

openssl rand -base64 32 >"$HOME_DIR/key"
openssl rand -base64 32 >"$HOME_DIR/other"
chmod 600 "$HOME_DIR/key"
KEY=(-k "$HOME_DIR/key")

# Its own question needs the key, too.
daemon_answers() {
  alive "$DAEMON_PID" || die "butterflyd ended while it started: $(tail -3 "$DAEMON_DIR/butterflyd.log")"
  [ -S "$DAEMON_DIR/api" ] && bf nic list -t 1000 ${ASKED[@]+"${ASKED[@]}"} >/dev/null 2>&1
}
start() { # start NAME OPTION...
  mkdir -p "$HOME_DIR/$1"
  daemon_start "$HOME_DIR/$1" --sessions 1000 "${@:2}"
}
ASKED=() && start clear
ASKED=("${KEY[@]}")
start locked "${KEY[@]}"
# By the file, as most will have it.
printf '[security]\nencryption_key_path = %s\nlegacy_encryption = false\n' "$HOME_DIR/key" >"$HOME_DIR/ini"
start strict -c "$HOME_DIR/ini"
grep -q '^No encryption configured$' "$HOME_DIR/clear/butterflyd.log" || die "the daemon without a key does not say so"
grep -q '^Encryption key loaded$' "$HOME_DIR/strict/butterflyd.log" || die "the daemon with a key does not say so"

protoc -I "$REPO/crates/api/proto" --python_out="$HOME_DIR" "$REPO"/crates/api/proto/*.proto
export PYTHONPATH=$HOME_DIR PYTHONDONTWRITEBYTECODE=1

# ---- Our client with a key

# says WORDS STATUS COMMAND...: the client ends with this status, and what it says has WORDS in it.
says() {
  local words=$1 status=$2 got=0 told
  shift 2
  told=$(timeout 10 "$BIN/butterfly" "$@" -t 5000 2>&1) || got=$?
  if [ "$got" -ne "$status" ] || [[ $told != *"$words"* ]]; then
    die "butterfly $*: status $got where $status was expected, \"$words\" is to be in: $told"
  fi
}
api() { echo "ipc://$HOME_DIR/$1/api"; }
nic=(--mac 52:54:00:00:00:01 --vni 7 --ip 10.0.0.1)

the_client() {
  local form
  for form in '' --legacy-encryption; do
    # shellcheck disable=SC2206 # nothing if empty
    local ask=("${KEY[@]}" -e "$(api locked)" $form)
    says /qemu-vhost-a 0 nic add --id a "${nic[@]}" "${ask[@]}"
    says $'a\na' 0 nic list + nic list "${ask[@]}"
    says 'request counter' 0 status "${ask[@]}"
    says $'Request is encrypted\nReceived encrypted response' 0 nic list -v "${ask[@]}"
    says 'nic_add {' 0 dump "${ask[@]}"
    "$BIN/butterfly" dump "${ask[@]}" >"$HOME_DIR/dump"
    says '' 0 request "$HOME_DIR/dump" "${ask[@]}"
    # Those that stay connected.
    says '"nics"' 0 top --once --json "${ask[@]}"
    says '' 0 trace all --seconds 0.2 "${ask[@]}"
    says '' 0 capture all -w "$HOME_DIR/pcapng" --seconds 0.2 "${ask[@]}"
    [ -s "$HOME_DIR/pcapng" ] || die "the capture is empty"
    "$BIN/butterfly" events --follow "${ask[@]}" >"$HOME_DIR/events" &
    BETWEEN=$!
    wait_for 5 grep -q nic-added "$HOME_DIR/events" || die "events --follow tells nothing"
    says '' 0 nic del a "${ask[@]}"
    wait_for 5 grep -q nic-removed "$HOME_DIR/events" || die "events --follow does not go on"
    end "$BETWEEN"
    BETWEEN=''
  done
  says 'help: a daemon with a key refuses what is in clear text' 1 nic list -e "$(api locked)"
  says 'is this its key?' 1 nic list -e "$(api locked)" -k "$HOME_DIR/other"
  says 'a daemon without a key answers so' 1 nic list -e "$(api clear)" "${KEY[@]}"
  says 'Encrypted message error: NOT_SUPPORTED' 1 nic list -e "$(api strict)" "${KEY[@]}" --legacy-encryption
  # Refusals are events, and who only asks for the epoch is none.
  says 'refused: a request in clear text, where a key is wanted' 0 events -e "$(api locked)" "${KEY[@]}"
  say "ok the client with a key"
}

# The other host is asked with the same key.
explain_far() {
  local ask=("${KEY[@]}" -e "$(api locked)")
  says /qemu-vhost-here 0 nic add --id here "${nic[@]}" "${ask[@]}"
  says /qemu-vhost-there 0 nic add --id there --mac 52:54:00:00:00:02 --vni 7 --ip 10.0.0.2 -e "$(api strict)" "${KEY[@]}"
  # In its own words: it has no uplink.
  says 'nothing comes from outside' 1 explain --from here --to there --port 80 --far-endpoint "$(api strict)" "${ask[@]}"
  says '' 0 nic del here "${ask[@]}"
  says '' 0 nic del there -e "$(api strict)" "${KEY[@]}"
  say "ok explain on two hosts"
}

# between PART TO: somebody at $HOME_DIR/between.
between() {
  $PYTHON "$TESTS/contract/between.py" "$1" "ipc://$HOME_DIR/between" "$(api "$2")" "$HOME_DIR/key" 2>"$HOME_DIR/between.log" &
  BETWEEN=$!
  wait_for 5 test -S "$HOME_DIR/between" || die "between.py does not start: $(<"$HOME_DIR/between.log")"
}
nobody_between() {
  end "$BETWEEN"
  BETWEEN=''
  rm -f "$HOME_DIR/between"
}

somebody_between() {
  local ask=(-e "ipc://$HOME_DIR/between" "${KEY[@]}")
  between original clear
  says $'NOT_SUPPORTED\nhelp: the daemon does not take this encryption: one of butterfly 0.13 wants --legacy-encryption' 1 nic list "${ask[@]}"
  says old 0 nic list "${ask[@]}" --legacy-encryption
  nobody_between
  between clear clear
  says 'the reply is not encrypted, and was not read' 1 nic list "${ask[@]}"
  says 'the reply is not encrypted, and was not read' 1 nic list "${ask[@]}" --legacy-encryption
  nobody_between
  between swap locked
  says 'cannot decrypt message' 1 nic list "${ask[@]}"
  nobody_between
  between record locked
  says '' 0 sg add once "${ask[@]}"
  says 'somebody repeats what was sent' 0 events -e "$(api locked)" "${KEY[@]}"
  says '' 0 sg del once "${ask[@]}"
  nobody_between
  say "ok somebody between"
}

# The blocks of a document in this language.
blocks() { awk -v begin="\`\`\`$2" '$0 == "```" { on = 0 } on { print } $0 == begin { on = 1 }' "$REPO/docs/$1"; }

the_documents() {
  blocks python-client.md python >"$HOME_DIR/client.py"
  local lines
  lines=$(sed -n '/^class/,/^switch/p' "$HOME_DIR/client.py" | wc -l)
  [ "$lines" -le 36 ] || die "the client of docs/python-client.md has $lines lines"
  for name in clear locked strict; do
    local key=()
    [ "$name" = clear ] || key=("$HOME_DIR/key")
    (cd "$HOME_DIR" && timeout 10 $PYTHON client.py "$(api "$name")" ${key[@]+"${key[@]}"}) >"$HOME_DIR/said" ||
      die "the program of docs/python-client.md fails with the daemon \"$name\""
    [[ $(head -2 "$HOME_DIR/said") == "socket: $HOME_DIR/$name/qemu-vhost-vm-1"$'\nnics: vm-1' ]] ||
      die "the program of docs/python-client.md says $(<"$HOME_DIR/said")"
    [ "$name" = clear ] && key=() || key=("${KEY[@]}")
    says '' 0 nic del vm-1 + sg del web -e "$(api "$name")" ${key[@]+"${key[@]}"}
  done
  ! (cd "$HOME_DIR" && timeout 10 $PYTHON client.py "$(api locked)" "$HOME_DIR/other") 2>/dev/null ||
    die "the program of docs/python-client.md takes what is no reply"
  say "ok the program of docs/python-client.md"
}

if [ $# -eq 0 ]; then
  the_client
  explain_far
  somebody_between
  the_documents
fi
timeout -k 5 60 $PYTHON "$TESTS/contract/contract.py" "$HOME_DIR" "$@"
if [ $# -eq 0 ]; then
  for name in clear locked strict; do
    daemon "$name"
    wait_for 5 gone "$DAEMON_PID" || die "app_quit was answered and did not happen: $name"
    ! grep -q "$(<"$HOME_DIR/key")" "$DAEMON_DIR/butterflyd.log" || die "the key is in the log"
  done
fi
say "contract: ok"
