"""OVS-DPDK as a peer: a private instance with its own database, run directory and network namespace."""
import contextlib
import json
import os
import re
import shutil
import subprocess

from host import EAL, Failure, sh, tail, wait_for
from switches import Switch

OVS_MODES = ("normal", "ct", "vxlan", "ctvxlan")


class Ovs(Switch):
    """A private OVS-DPDK: own database, run directory and network namespace; one PMD thread."""
    generator_serves = True
    BINARY = os.environ.get("OVS_VSWITCHD") or "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk"
    SCHEMA = "/usr/share/openvswitch/vswitch.ovsschema"

    def __init__(self, bench, opts, mode):
        super().__init__(bench, opts)
        self.mode, self.name, self.vxlan = mode, f"ovs {mode}", "vxlan" in mode
        self.ns = f"peers-ovs-{os.getpid()}"
        self.dir = bench.dir / f"ovs{bench.count}"
        self.env = dict(os.environ, **{f"OVS_{k}DIR": str(self.dir) for k in ("RUN", "LOG", "DB", "SYSCONF")})
        self.running = []

    def vsctl(self, *args):
        return sh("ovs-vsctl", "--timeout=20", f"--db=unix:{self.dir}/db.sock", *args, env=self.env)

    def appctl(self, *args, **kw):
        return sh("ovs-appctl", "-t", f"{self.dir}/vswitchd.ctl", *args, env=self.env, **kw)

    def spawn(self, cmd, name, ready, favoured):
        log = self.s.logs / f"{name}.log"
        p = self.s.start(cmd, log, favoured=favoured, env=self.env, stdin=subprocess.DEVNULL)
        self.running.append(p)
        if not wait_for(lambda: p.poll() is not None or os.path.exists(ready), 30) or p.poll() is not None:
            raise Failure(f"{name} did not start:\n{tail(log)}")
        return p

    def start(self):
        o, d = self.o, self.dir
        if not os.path.exists(self.BINARY):
            raise Failure(f"{self.BINARY} is missing: install openvswitch-switch-dpdk or set OVS_VSWITCHD")
        self.s.need_pages(512 + 256)
        d.mkdir()
        self.s.namespaces.append(self.ns)
        sh("ip", "netns", "add", self.ns)
        sh("ip", "-n", self.ns, "link", "set", "lo", "up")
        sh("ovsdb-tool", "create", d / "conf.db", self.SCHEMA)
        self.spawn(["taskset", "-c", o.gen_core, "ovsdb-server", d / "conf.db", f"--remote=punix:{d}/db.sock",
                    f"--pidfile={d}/ovsdb-server.pid", f"--unixctl={d}/ovsdb.ctl"],
                   "ovsdb-server", d / "db.sock", False)
        self.vsctl("--no-wait", "init")
        settings = {
            "dpdk-init": "true", "dpdk-socket-mem": "512", "vhost-sock-dir": ".", "max-idle": "60000",
            "pmd-cpu-mask": hex(1 << o.core), "dpdk-lcore-mask": hex(1 << o.gen_core),
            "dpdk-extra": " ".join(EAL + ["--in-memory"]), "emc-insert-inv-prob": str(o.emc_inv_prob),
            "n-handler-threads": "1", "n-revalidator-threads": "1",
            "userspace-tso-enable": "true" if o.tso else "false",
        }
        self.vsctl("--no-wait", "set", "Open_vSwitch", ".",
                   *(f"other_config:{k}={json.dumps(v)}" for k, v in settings.items()))
        p = self.spawn(["ip", "netns", "exec", self.ns, self.BINARY, f"unix:{d}/db.sock",
                        f"--pidfile={d}/vswitchd.pid", f"--unixctl={d}/vswitchd.ctl"],
                       "ovs-vswitchd", d / "vswitchd.ctl", True)
        self.pid = p.pid
        self.connect()
        sh("ovs-ofctl", "-OOpenFlow13", "del-flows", "br0", env=self.env)
        (d / "flows.txt").write_text("\n".join(ovs_flows(self.mode, "tcp" if o.tcp else "udp")) + "\n")
        sh("ovs-ofctl", "-OOpenFlow13", "add-flows", "br0", d / "flows.txt", env=self.env)

    def connect(self):
        """Bridges and ports. The VXLAN modes' uplink is a second vhost-user port on a bridge of its own."""
        port = "type=dpdkvhostuserclient options:vhost-server-path="
        add = lambda bridge, name, *interface: self.vsctl("add-port", bridge, name, "--", "set", "Interface", name,
                                                          *" ".join(interface).split())
        self.vsctl("add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev", "fail-mode=secure")
        add("br0", "vm0", port + self.sockets[0], "ofport_request=1")
        if not self.vxlan:
            add("br0", "vm1", port + self.sockets[1], "ofport_request=2")
            return
        self.vsctl("add-br", "brphy", "--", "set", "bridge", "brphy", "datapath_type=netdev",
                   'other-config:hwaddr="02:00:00:00:aa:01"')
        add("brphy", "up0", port + self.sockets[1])
        sh("ip", "-n", self.ns, "addr", "add", "192.168.50.1/24", "dev", "brphy")
        sh("ip", "-n", self.ns, "link", "set", "brphy", "up")
        add("br0", "vx0", "type=vxlan options:remote_ip=192.168.50.2 options:key=100", "ofport_request=3")

        def neighbour():  # nobody answers ARP there; the route may take a moment to be seen
            with contextlib.suppress(Failure):
                self.appctl("tnl/arp/set", "brphy", "192.168.50.2", "02:00:00:00:aa:02")
                return True
        if not wait_for(neighbour, 10, 0.3):
            raise Failure("ovs-appctl tnl/arp/set failed")

    def mark(self):
        self.appctl("dpif-netdev/pmd-stats-clear")

    def cycles(self):
        self.stats = self.appctl("dpif-netdev/pmd-stats-show", "-pmd", self.o.core)
        m = re.search(r"avg processing cycles per packet: ([\d.]+)", self.stats)
        return float(m[1]) if m else None

    def notes(self):
        notes = {k: v.strip() for k, v in re.findall(r"^\s*(emc hits|megaflow hits|miss with .*?upcall|"
                                                     r"packet recirculations|avg\. .*?):(.*)$",
                                                     getattr(self, "stats", ""), re.M)}
        if "ct" in self.mode:
            notes["conntrack entries"] = self.appctl("dpctl/ct-get-nconns", check=False).strip()
        return notes

    def stop(self):
        for p in reversed(self.running):
            self.s.end(p)
        self.running = []
        if self.ns in self.s.namespaces:  # its TAP devices are persistent, they go with the namespace
            sh("ip", "netns", "del", self.ns, check=False)
            self.s.namespaces.remove(self.ns)
        shutil.rmtree(self.dir, ignore_errors=True)


def ovs_flows(mode, proto):
    """OpenFlow rules. ct and ctvxlan imitate the table layout of OpenStack's OVS firewall, smaller."""
    if mode == "normal":
        return ["table=0,priority=0,actions=NORMAL"]
    if mode == "nat":
        # A router between two networks, with a zone of connections, that translates what port 1 sends.
        towards = lambda p: f"mod_dl_src:b2:f0:0c:53:fd:ac,mod_dl_dst:02:00:00:00:00:0{p},dec_ttl,output:{p}"
        return ["table=0,in_port=1,ip,actions=ct(table=1,zone=1,nat)",
                f"table=1,in_port=1,ip,ct_state=+new+trk,actions=ct(commit,zone=1,nat(src=192.0.2.9)),{towards(2)}",
                f"table=1,in_port=1,ip,ct_state=-new+est+trk,actions={towards(2)}",
                "table=0,in_port=2,ip,actions=ct(table=2,zone=1,nat)",
                f"table=2,in_port=2,ip,ct_state=-new+est+trk,actions={towards(1)}"]
    if mode == "vxlan":
        return ["table=0,in_port=1,dl_dst=02:00:00:00:00:02,actions=output:3",
                "table=0,in_port=3,dl_dst=02:00:00:00:00:01,actions=output:1"]

    def regs(p):  # REG5 = port, REG6 = conntrack zone, as set when a packet enters or is about to leave by port p
        return f"load:{p}->NXM_NX_REG5[],load:{0x100 + p:#x}->NXM_NX_REG6[]"

    zone = "zone=NXM_NX_REG6[0..15]"
    mac = lambda p: f"02:00:00:00:00:0{p}"
    flows = ["table=0,priority=90,in_port=3,actions=resubmit(,60)",
             f"table=60,priority=90,dl_dst={mac(1)},actions={regs(1)},resubmit(,81)"]
    # Egress: anti-spoofing (71), state (72), commit (73), where to (74).
    for p in (1, 2):
        flows += [f"table=0,priority=100,in_port={p},actions={regs(p)},resubmit(,71)",
                  f"table=71,priority=95,arp,reg5={p},in_port={p},dl_src={mac(p)},arp_spa=10.0.0.{p},"
                  "actions=resubmit(,94)",
                  f"table=71,priority=65,ip,reg5={p},in_port={p},dl_src={mac(p)},nw_src=10.0.0.{p},"
                  f"actions=ct(table=72,{zone})",
                  f"table=73,priority=100,ct_state=+new-est,ip,dl_dst={mac(3 - p)},in_port={p},"
                  f"actions=ct(commit,{zone}),resubmit(,74)"]
    flows += ["table=72,priority=80,ct_state=+inv+trk,actions=drop",
              "table=72,priority=77,ct_state=+est-rel-rpl,ip,actions=resubmit(,73)",
              "table=72,priority=76,ct_state=+est-rel+rpl,ip,actions=resubmit(,73)",
              "table=72,priority=75,ct_state=-est+rel,ip,actions=resubmit(,73)",
              "table=72,priority=74,ct_state=+new-est,ip,actions=resubmit(,73)",
              "table=73,priority=90,actions=resubmit(,74)",
              f"table=74,priority=100,dl_dst={mac(1)},actions={regs(1)},resubmit(,81)",
              f"table=74,priority=100,dl_dst={mac(2)},actions="
              + (f"{regs(2)},resubmit(,81)" if mode == "ct" else "output:3"),
              "table=94,priority=1,actions=NORMAL"]
    # Ingress: state (81), security group rules (82).
    flows += [f"table=81,priority=80,ip,actions=ct(table=82,{zone})",
              "table=82,priority=80,ct_state=+inv+trk,actions=drop"]
    rules = ["tcp,tp_dst=22", "tcp,tp_dst=80", "tcp,tp_dst=443", "tcp,tp_dst=3306", "tcp,nw_src=10.0.5.0/24,tp_dst=8080",
             "icmp", "udp,tp_dst=53"] + [f"{proto},tp_dst={port}" for port in range(5001, 5005)]
    rules += ["udp,tp_dst=0x1000/0xf000"]  # where new sessions go
    for p in (1, 2):
        flows += [f"table=81,priority=90,arp,reg5={p},actions=output:{p}",
                  f"table=82,priority=76,ct_state=+est-rel+rpl,ip,reg5={p},actions=output:{p}",
                  f"table=82,priority=75,ct_state=-est+rel,ip,reg5={p},actions=output:{p}"]
        for rule in rules:
            flows += [f"table=82,priority=77,ct_state=+est-rel-rpl,reg5={p},{rule},actions=output:{p}",
                      f"table=82,priority=77,ct_state=+new-est,reg5={p},{rule},"
                      f"actions=ct(commit,{zone}),output:{p}"]
    return flows
