# Sourced by run.sh: docs/encryption.md. There is no systemd: `systemctl` starts and stops what the unit would.
# shellcheck shell=bash

mkdir -p "$VM_DIR/sockets"
systemctl_shim
# configured BLOCK...: the daemon's file is an ordinary one with these blocks of the page.
configured() {
  printf '[general]\nip = 192.0.2.1\nsocket-dir = %s\nendpoint = tcp://127.0.0.1:9999\nlog-level = info\nuplink = none\n' "$VM_DIR/sockets" >/etc/butterfly/butterflyd.ini
  cat "$@" | awk '/^\[security\]$/ && seen++ { next } 1' >>/etc/butterfly/butterflyd.ini
}
# The shim asks without a key, and an answer that it is refused is one.
# shellcheck disable=SC2016 # for the shim
sed -i 's/butterfly nic list -t 1000 .*/said=$(butterfly nic list -t 1000 2>\&1) \&\& exit; [[ $said != *REJECTED* ]] || exit 0/' "$VM_DIR/bin/systemctl"
carry() {
  take "$@" >"$VM_DIR/block"
  carry_out "$VM_DIR/block"
}
refused() { # refused TEXT COMMAND...
  local text=$1 told
  shift
  if told=$("$@" 2>&1); then fail "$* is carried out"; fi
  [[ $told == *"$text"* ]] || fail "$* is refused so: $told"
}

take 'In three steps' ini >"$VM_DIR/key.ini"
take 'Two forms' ini >"$VM_DIR/forms.ini"
configured /dev/null
systemctl start
butterfly nic list >/dev/null || fail "without a key nobody is asked for one, and nic list fails"
carry 'In three steps' sh
[ "$(stat -c '%a %G' /etc/butterfly/key)" = '640 butterfly' ] || fail "the key is $(stat -c '%a %G' /etc/butterfly/key)"
configured "$VM_DIR/key.ini"
carry 'In three steps' sh 2
grep -q 'Encryption key loaded' "$VM_DIR/logs/butterflyd" || fail "the daemon says: $(tail -3 "$VM_DIR/logs/butterflyd")"
refused REJECTED butterfly nic list
ok "a key"

k=/etc/butterfly/key
butterfly nic add --id vm-1 --mac 52:54:00:12:34:01 --vni 42 --ip 10.0.0.1 -k $k >/dev/null
[ "$(butterfly nic list -k $k --legacy-encryption)" = vm-1 ] || fail "the form of old clients is not taken"
configured "$VM_DIR/key.ini" "$VM_DIR/forms.ini"
systemctl restart
butterfly nic add --id vm-1 --mac 52:54:00:12:34:01 --vni 42 --ip 10.0.0.1 -k $k >/dev/null
refused NOT_SUPPORTED butterfly nic list -k $k --legacy-encryption
ok "one form only"

cp $k "$VM_DIR/old-key"
(umask 077 && openssl rand -base64 32 >/etc/butterfly/new-key)
carry 'A new key' sh
[ "$(butterfly nic list -k $k)" = vm-1 ] || fail "the vnic is not there with the new key"
refused REJECTED butterfly nic list -k "$VM_DIR/old-key"
ok "a new key"
systemctl stop
