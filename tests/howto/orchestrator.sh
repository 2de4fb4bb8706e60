# Sourced by run.sh: docs/orchestrator.md. The agent against a real daemon: twice the same, changes, a daemon that was killed. The unit is given to
# systemd-analyze; there are no containers here: what theirs run, and their probes, is run with the capabilities that they name.
# shellcheck shell=bash

PYTHON=/usr/bin/python3 # Debian's, for which its packages are
mkdir -p "$VM_DIR/agent"
awk '/^```python/ { on = 1; next } /^```/ || /^switch = / { on = 0 } on' "$REPO/docs/python-client.md" >"$VM_DIR/agent/butterfly.py"
protoc -I "$REPO/crates/api/proto" --python_out="$VM_DIR/agent" "$REPO"/crates/api/proto/*.proto
take 'The agent' python >"$VM_DIR/agent/agent.py"
lines=$(grep -c . "$VM_DIR/agent/agent.py")
[ "$lines" -le 42 ] || fail "the agent has $lines lines"
desired=$VM_DIR/agent/desired.json
take 'What should be' json >"$desired"

last_event() { butterfly events --last 1 --json | $PYTHON -c 'import json, sys; print(json.loads(sys.stdin.read())["seq"])'; }
# agent: starts it. declared N: it has been done N times.
agent() {
  PYTHONDONTWRITEBYTECODE=1 $PYTHON "$VM_DIR/agent/agent.py" "$desired" tcp://127.0.0.1:9999 >"$VM_DIR/logs/agent" 2>&1 &
  AGENT_PID=$!
  OTHERS+=($!)
}
declared() { [ "$(grep -c '^as declared$' "$VM_DIR/logs/agent")" -ge "$1" ]; }
there() { [ "$(butterfly nic list | tr '\n' ' ')$(butterfly sg list | tr '\n' ' ')" = "$1" ]; }

daemon --metrics 127.0.0.1:9998
take 'What happened' sh >"$VM_DIR/events"
(cd "$VM_DIR" && exec setsid bash -euo pipefail "$VM_DIR/events") >"$VM_DIR/logs/events" 2>&1 &
OTHERS+=($!)
butterfly nic add --id stray --mac 52:54:00:00:00:77 --vni 1 >/dev/null
agent
wait_for 10 declared 1 || fail "the agent is not done: $(<"$VM_DIR/logs/agent")"
there 'vm-1 vm-2 admins web ' || fail "there are other things than those declared: $(butterfly dump)"
butterfly dump >"$VM_DIR/dump"
before=$(last_event)

# A second run changes nothing.
end "$AGENT_PID"
agent
wait_for 10 declared 1 || fail "the agent is not done again"
[ "$(last_event)" = "$before" ] || fail "a second run changed something: $(butterfly events --since "$before")"
ok "declared twice, done once"

# Another address, in place; another machine; one that is gone.
sed -e 's/"10.0.0.1"/"10.0.0.11"/; s/vm-2/vm-3/; s/:02"/:03"/' "$desired" >"$desired.new"
mv "$desired.new" "$desired"
wait_for 10 declared 2 || fail "the agent does not see the new file: $(<"$VM_DIR/logs/agent")"
there 'vm-1 vm-3 admins web ' || fail "it is not as declared: $(butterfly dump)"
[ "$(butterfly events --since "$before" --json | $PYTHON -c 'import json, sys; print(*sorted(json.loads(l)["kind"] + " " + json.loads(l)["nic_id"] for l in sys.stdin))')" = \
  'nic-added vm-3 nic-removed vm-2 nic-updated vm-1' ] || fail "more was changed than was declared: $(butterfly events --since "$before")"
# What is wrong is told, again and again, and the rest is done.
sed 's/"vni": 42, "ip": \["10.0.0.2"\]/"vni": 16777216/' "$desired" >"$desired.new"
mv "$desired.new" "$desired"
wait_for 10 grep -q '^nic vm-3: Bad NIC format: .*16777216' "$VM_DIR/logs/agent" || fail "the agent does not tell what is refused: $(<"$VM_DIR/logs/agent")"
wait_for 10 test -s "$VM_DIR/failures.log" || fail "what failed is not among the events that are followed"
take 'What should be' json >"$desired.new"
mv "$desired.new" "$desired"
wait_for 10 declared 3 || fail "the agent does not mend it: $(<"$VM_DIR/logs/agent")"
ok "changes, and no more than those"

# A daemon that was killed knows nothing, and soon everything.
kill -9 "$DAEMON_PID"
wait "$DAEMON_PID" 2>/dev/null || true
daemon --metrics 127.0.0.1:9998
wait_for 20 declared 4 || fail "the agent does not declare it to a new daemon: $(<"$VM_DIR/logs/agent")"
butterfly dump | cmp - "$VM_DIR/dump" || fail "what a new daemon was told is not the same"
ok "a daemon that was killed is told everything again"

take 'Is it ready?' sh >"$VM_DIR/ready"
carry_out "$VM_DIR/ready"
grep -q '^butterfly_start_time_seconds [0-9]' "$VM_DIR/ready.said" || fail "not ready: $(<"$VM_DIR/ready.said")"
grep -q '^no machine yet$' "$VM_DIR/ready.said" || fail "a machine is attached that is not there: $(<"$VM_DIR/ready.said")"
end "$AGENT_PID" "$DAEMON_PID"

# systemd understands the unit; nothing but the files it names is missing here.
take systemd ini >"$VM_DIR/butterfly-agent.service"
systemd-analyze verify "$VM_DIR/butterfly-agent.service" >"$VM_DIR/verified" 2>&1 || true
! grep -E 'butterfly-agent.service:[0-9]+:|Unknown' "$VM_DIR/verified" || fail "systemd does not understand the unit"

# contained NUMBER: what a container of the page runs, with its capabilities and no others, and its probe.
contained() {
  take 'In containers' yaml "$1" >"$VM_DIR/$1.yaml"
  $PYTHON - "$VM_DIR/$1.yaml" >"$VM_DIR/contained" <<'PYTHON'
import shlex, sys, yaml
page = yaml.safe_load(open(sys.argv[1]))
if page.get("kind") == "DaemonSet":
    spec = page["spec"]["template"]["spec"]
    assert page["apiVersion"] == "apps/v1" and page["spec"]["selector"]["matchLabels"] == page["spec"]["template"]["metadata"]["labels"]
    one, = spec["containers"]
    assert {v["name"] for v in spec["volumes"]} == {m["name"] for m in one["volumeMounts"]}
    command, probe, caps = one["command"] + one["args"], one["readinessProbe"]["exec"]["command"], one["securityContext"]["capabilities"]
    drop, add = caps["drop"], caps["add"]
else:
    one = page["services"]["butterflyd"]
    command, probe, drop, add = one["command"], one["healthcheck"]["test"], one["cap_drop"], one["cap_add"]
    assert probe.pop(0) == "CMD"
assert drop == ["ALL"]
print("command=(" + shlex.join(str(w).replace("$(HOST_IP)", "192.0.2.1") for w in command) + ")")
print("probe=(" + shlex.join(probe) + ")")
print("caps=" + ",".join("+" + c.lower() for c in add))
PYTHON
  local command=() probe=() caps=''
  # shellcheck source=/dev/null
  . "$VM_DIR/contained"
  rm -rf /run/butterfly
  install -d -g kvm -m 2771 /run/butterfly
  setsid setpriv --bounding-set "-all,$caps" --inh-caps=-all "${command[@]}" </dev/null >"$VM_DIR/logs/contained" 2>&1 &
  DAEMON_PID=$!
  ready() {
    alive "$DAEMON_PID" || fail "the container's daemon ended: $(<"$VM_DIR/logs/contained")"
    "${probe[@]}" >/dev/null 2>&1
  }
  wait_for 10 ready || fail "the container's probe fails"
  grep -q 'uplink af_xdp eth0' "$VM_DIR/logs/contained" || fail "the container's daemon has no uplink: $(<"$VM_DIR/logs/contained")"
  butterfly nic add --id vm-1 --mac 52:54:00:00:00:01 --vni 42 -e ipc:///run/butterfly/api >/dev/null
  [ "$(stat -c '%U %G %a' /run/butterfly/qemu-vhost-vm-1)" = 'root kvm 660' ] || fail "the socket is not for QEMU: $(stat /run/butterfly/qemu-vhost-vm-1)"
  end "$DAEMON_PID"
}
ip link add eth0 type veth peer name wire
ip addr add 192.0.2.1/24 dev eth0
ip link set eth0 up
ip link set wire up
contained 1
contained 2
ip link del eth0
ok "what the containers run"
