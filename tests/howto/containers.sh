# Sourced by run.sh: docs/containers.md, with podman. The image is made here: busybox, which is called nginx and serves a page. There is no systemd, so
# podman leaves control groups alone. The daemon has what the page says it needs: no root, CAP_NET_ADMIN and nothing else.
# shellcheck shell=bash

CAPABILITIES=+net_admin daemon
# carry HEADING LANGUAGE [N]: carries that block out; what it said is in $said.
carry() {
  take "$@" >"$VM_DIR/block"
  carry_out "$VM_DIR/block"
  said=$(<"$VM_DIR/block.said")
}

# The other machine of the page, and a group that lets it and the web server be reached.
ip netns add other
butterfly nic add --type TAP --id other0 --mac 52:54:00:00:00:22 --vni 42 --ip 10.0.0.22 --sg web --netns other >/dev/null
ip netns exec other ip addr add 10.0.0.22/24 dev other0
butterfly sg rule add web --ip-proto icmp --cidr 10.0.0.0/24
butterfly sg rule add web --ip-proto tcp --port 80 --cidr 10.0.0.0/24

carry 'A namespace' sh
[[ $said == *$'blue0\n'* && $said == *' 3 received'* ]] || fail "the namespace said: $said"
[[ $(ip netns exec blue ip -o link show dev blue0) == *UP*'mtu 1500'*52:54:00:00:00:21* ]] || fail "blue0 is: $(ip netns exec blue ip -o link show dev blue0)"
carry 'A namespace' sh 2
[ "$(ip netns exec blue cat /sys/class/net/blue0/mtu)" = 1400 ] || fail "blue0 has another MTU"
[[ $(ip netns exec blue ethtool -k blue0) == *'tx-checksumming: off'* ]] || fail "ethtool changed nothing"
ip netns exec blue ping -c 1 10.0.0.22 >/dev/null || fail "no ping without offloads and with a smaller MTU"
ok "a namespace"

# Debian's hosts have version 2 of control groups where some test machines have both, which crun refuses.
mounted=''
[ "$(stat -fc %T /sys/fs/cgroup)" = cgroup2fs ] || { mount -t cgroup2 howto /sys/fs/cgroup && mounted=1; }
mkdir -p /etc/containers "$VM_DIR/image/bin" "$VM_DIR/image/www"
printf '[containers]\ncgroups = "disabled"\n[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n' >/etc/containers/containers.conf
printf '[storage]\ndriver = "overlay"\ngraphroot = "%s/memory/containers"\nrunroot = "/run/containers"\n' "$VM_DIR" >/etc/containers/storage.conf
cp /bin/busybox "$VM_DIR/image/bin/"
echo 'a page of the container' >"$VM_DIR/image/www/index.html"
tar -C "$VM_DIR/image" -cf "$VM_DIR/image.tar" .
podman import -c 'CMD ["/bin/busybox", "httpd", "-f", "-h", "/www"]' "$VM_DIR/image.tar" localhost/nginx >"$VM_DIR/logs/podman" 2>&1 ||
  fail "podman makes no image: $(<"$VM_DIR/logs/podman")"
carry 'A container' sh
[[ $said == *$'\nweb0' ]] || fail "the container said: $said"
page() { ip netns exec "$1" curl -s -m 5 http://10.0.0.23/; }
[ "$(page blue)" = 'a page of the container' ] || fail "blue does not get the page"
butterfly sg rule del web --ip-proto tcp --port 80 --cidr 10.0.0.0/24
if page other >/dev/null 2>&1; then fail "the group does not decide about a container"; fi
pid=$(podman inspect -f '{{.State.Pid}}' web)
refused=$(butterfly nic add --type TAP --id path0 --mac 52:54:00:00:00:24 --vni 42 --netns "/proc/$pid/ns/net" 2>&1) && fail "the daemon looked into others' processes"
[[ $refused == *'Permission denied'* ]] || fail "the namespace of a process is refused so: $refused"

# It goes first; then the other way round.
ip netns exec web ip link del web0
wait_for 5 eval '! attached_to web0' || fail "web0 is gone and its vnic attached"
trouble=$(take 'When it ends' text | sed 's/^trouble *//')
[[ $(butterfly nic show web0) == *"$trouble"* ]] || fail "nic show says: $(butterfly nic show web0)"
[[ $(butterfly events) == *"$trouble"* ]] || fail "events say: $(butterfly events)"
butterfly nic add --type TAP --id web0 --mac 52:54:00:00:00:23 --vni 42 --ip 10.0.0.23 --sg web --netns web >/dev/null
attached_to web0 || fail "the same nic add does not mend it"
carry 'A container' sh 2
[ -z "$(podman ps -aq)$(butterfly nic list | grep web0 || true)$(ip netns list | grep web || true)" ] || fail "the container is still there"
[ -z "$mounted" ] || umount /sys/fs/cgroup
ok "a container"

carry 'Pings inside the switch' sh
measured() { grep -q '^ping time for 1[0-9]* pkts: min/mean/max [0-9]* us [0-9.]* us [0-9]* us$' "$VM_DIR/logs/butterflyd"; }
wait_for 20 measured || fail "nothing was measured"
carry 'Pings inside the switch' sh 2
[[ $said == *'min/mean/max: '* ]] || fail "nic stats says: $said"
ok "pings inside the switch"
for name in blue other; do ip netns del "$name"; done
