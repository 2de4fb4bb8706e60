# Sourced by run.sh: docs/tracing.md. The machines are network namespaces on TAP vnics, of which one asks the other for a page all the time. What has no
# end of its own is ended as a person does it, by Ctrl-C, after a while.
# shellcheck shell=bash

CAPABILITIES=+net_admin daemon
for n in 1 2; do
  ip netns add "vm$n"
  butterfly nic add --type TAP --id "vm-$n" --mac "52:54:00:12:34:0$n" --vni 42 --ip "10.0.0.$n" --sg web --netns "vm$n" >/dev/null
  ip -n "vm$n" addr add "10.0.0.$n/24" dev "vm-$n"
done
butterfly sg rule add web --ip-proto tcp --port 443 --cidr 10.0.0.0/24
mkdir -p "$VM_DIR/page"
ip netns exec vm2 busybox httpd -f -p 443 -h "$VM_DIR/page" &
OTHERS+=($!)
ip netns exec vm1 bash -c 'while :; do curl -s -m 1 http://10.0.0.2:443/ >/dev/null; ping -c 1 -W 1 10.0.0.2 >/dev/null 2>&1; sleep 0.1; done' &
OTHERS+=($!)

# each HEADING CHECK: every line of a block, ended after a while; what it said is in $said.
each() {
  local line running
  take "$1" sh ${3:+"$3"} | sed -e ':a' -e '/\\$/N; s/\\\n//; ta' -e 's/  *#.*//' >"$VM_DIR/lines"
  while IFS= read -r line; do
    # A session of its own is what Ctrl-C ends; timeout would send two signals.
    (cd "$VM_DIR" && exec setsid bash -c "$line" </dev/null >lines.said 2>&1) &
    running=$!
    wait_for 3 gone "$running" || kill -INT -- "-$running"
    # What reads from a pipe is interrupted, too, and may say so.
    wait "$running" || [[ $line == *' | '* ]] || fail "this fails: $line: $(<"$VM_DIR/lines.said")"
    said=$(<"$VM_DIR/lines.said")
    "$2" "$line"
  done <"$VM_DIR/lines"
}

traced() {
  case $1 in
    *'--count 10') [ "$(grep -c 'tcp 10.0.0.*443' <<<"$said")" = 10 ] || fail "$1 says: $said" ;;
    *--json) [ -z "$said" ] || grep -q '^{\|printed of' <<<"$said" || fail "$1 says: $said" ;;
    *) grep -q '10.0.0.1.* > 10.0.0.2' <<<"$said" || fail "$1 says: $said" ;;
  esac
}
each 'Trace' traced
ok "traces"

captured() {
  case $1 in
    *'-V') [[ $said == *'Transmission Control Protocol'*'443'* ]] || fail "$1 says: ${said:0:300}" ;;
    *) [[ $said == *packets\ written* ]] || fail "$1 says: $said" ;;
  esac
}
each 'Capture' captured
tshark -r "$VM_DIR/vm-1.pcapng" -T fields -e frame.comment 2>/dev/null | grep -q 'delivered to nic vm-2; rule web: in tcp 443' || fail "no comment says by which rule"
[ "$(tshark -r "$VM_DIR/net.pcapng" -T fields -e frame.cap_len 2>/dev/null | sort -n | tail -1)" -le 128 ] || fail "more than 128 bytes of a packet"
ok "captures"

written() {
  case $1 in
    *show*) [[ $said == *vm-1.pcapng* ]] || fail "$1 says: $said" ;;
    *true*) sleep 1 ;;
  esac
}
each 'Files of the daemon' written
[ "$(tshark -r /var/tmp/vm-1.pcapng 2>/dev/null | wc -l)" -gt 0 ] || fail "nothing is in the file"
rm -f /var/tmp/vm-1.pcapng* "/tmp/butterfly-$DAEMON_PID-vm-1.pcap"
ok "files"

mirrored() { case $1 in *'show probe') [[ $said == *vm-1* ]] || fail "$1 says: $said" ;; *'show vm-1') [[ $said == *probe* ]] || fail "$1 says: $said" ;; esac; }
each 'Mirrors' mirrored
ok "a mirror"
for n in 1 2; do ip netns del "vm$n"; done
