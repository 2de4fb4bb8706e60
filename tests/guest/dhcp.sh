# Sourced by run.sh: real guests that get their addresses from their network, by busybox's client.
# shellcheck shell=bash

# ask GUEST [OPTIONS...]: the guest's client looks for an address, once, and writes what it was told to /tmp/told.
# shellcheck disable=SC2016 # the guest's shell expands
ask() {
  local guest=$1
  shift
  vm exec --timeout 30 "$guest" 'cat >/tmp/script <<"END"
#!/bin/sh
[ "$1" = deconfig ] || set >/tmp/told
END
    chmod +x /tmp/script; rm -f /tmp/told'
  vm exec --timeout 40 "$guest" "udhcpc -f -q -n -i eth0 -t 3 -T 1 -s /tmp/script $*"
}
# told GUEST NAME VALUE: that is what its network told it.
told() { vm exec "$1" "grep -qx \"$2='$3'\" /tmp/told"; }
expect_told() { # expect_told GUEST NAME=VALUE...
  local guest=$1 one
  shift
  for one in "$@"; do
    told "$guest" "${one%%=*}" "${one#*=}" || fail "$guest was not told $one: $(vm exec "$guest" 'cat /tmp/told')"
  done
}
dhcp_network() { # dhcp_network OPTIONS...: network 42, whose router joins it to no other
  bf network add --vni 42 --subnet 10.42.0.0/24 --gateway 10.42.0.1 --mtu 1400 "$@" >/dev/null
}

# A filtered guest and one that bypasses filters get what their vnics declare; a death of the daemon changes nothing; a lease
# that was taken back is refused.
# shellcheck disable=SC2154 # run.sh sets dir and accel
dhcp() {
  local guest options="-O mtu -O search -O staticroutes -O broadcast -O 249" said
  daemon_stop
  daemon_start "$dir" --state-dir "$dir/state"
  dhcp_network --dhcp --dns 9.9.9.9 1.1.1.1 --search example.com --lease 600 --next-server 10.42.0.5 \
    --boot-file pxelinux.0 --dhcp-route 10.9.0.0/16=10.42.0.7
  bf router add r + router attach r --vni 42 >/dev/null
  bf nic add --id a --mac 52:54:00:00:00:01 --vni 42 --ip 10.42.0.11 --enable-antispoof --sg none + \
    nic add --id b --mac 52:54:00:00:00:02 --vni 42 --ip 10.42.0.12 --bypass-filtering >/dev/null
  vm start a --socket "$dir/qemu-vhost-a" --mac 52:54:00:00:00:01 --accel "$accel" --limit 300 --no-wait
  vm start b --socket "$dir/qemu-vhost-b" --mac 52:54:00:00:00:02 --accel "$accel" --limit 300 --no-wait
  up a b
  said=$(ask a "$options" 2>&1) || fail "a gets no address: $said; $(bf drops)"
  expect_told a ip=10.42.0.11 subnet=255.255.255.0 broadcast=10.42.0.255 dns='9.9.9.9 1.1.1.1' search=example.com \
    lease=600 mtu=1400 serverid=10.42.0.1 siaddr=10.42.0.5 boot_file=pxelinux.0 \
    staticroutes='10.9.0.0/16 10.42.0.7 0.0.0.0/0 10.42.0.1'
  vm exec a '[ -s /tmp/told ] && ! grep -q ^router= /tmp/told' || fail "a was told routers beside routes"
  said=$(ask b 2>&1) || fail "b gets no address: $said; $(bf drops)"
  expect_told b ip=10.42.0.12 router=10.42.0.1

  # What was told works: its gateway answers from the address that was leased.
  vm exec a 'ip addr add 10.42.0.11/24 dev eth0'
  ping_all a 10.42.0.1 3 || fail "a does not reach its gateway from its lease"

  # No server died: there is none.
  daemon_kill
  daemon_start "$dir" --state-dir "$dir/state"
  for guest in a b; do attached $guest || fail "$guest is not attached"; done
  said=$(ask a "-r 10.42.0.11" 2>&1) || fail "a gets no address after a death: $said; $(bf drops)"
  expect_told a ip=10.42.0.11 lease=600

  # An address that is not declared any more is refused, and the client takes the one that is.
  bf nic update --id a --ip 10.42.0.21 >/dev/null
  said=$(ask a "-r 10.42.0.11" 2>&1) || fail "a gets no other address: $said; $(bf drops)"
  expect_told a ip=10.42.0.21
  bf nic update --id b --ip 192.0.2.1 >/dev/null
  if said=$(ask b 2>&1); then fail "b gets an address that is in no subnet: $said"; fi
  [ "$(nic_field b 'd["dhcp-no-lease"]')" -ge 3 ] || fail "what b asked is dropped as: $(bf drops b)"
  bf shutdown >/dev/null
  daemon_forget
  wait_for 10 no_holder || fail "the holder outlasts a shutdown"
  rm -rf "$dir/state"
  daemon_start "$dir"
}
