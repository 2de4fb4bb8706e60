#!/usr/bin/env python3
"""Butterfly beside testpmd, OVS-DPDK and the kernel: the matrix of docs/figures.md, measured and written from nothing.

  compare.py [--rounds 3] [--secs 3] [--only TEXT] [--out docs/figures]     (make compare)

With --only, rows that are not measured keep what OUT.json has of them.

Each row is measured in rounds, in which all switches of the row take turns. A cell is the median of valid seconds over all rounds: seconds in which the
generator and the switch's thread each had their core. Writes OUT.md, OUT.json (every second of every run) and OUT.svg.
What is not installed is left out and named. Needs root, two quiet cores, huge pages, and Debian's packages dpdk, openvswitch-switch-dpdk and nftables.
"""
import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS / "peers"))

import peers  # noqa: E402
from host import Bench, Failure, await_quiet, sh  # noqa: E402
from ovs import Ovs  # noqa: E402
from switches import Sut, Switch, Testpmd  # noqa: E402

BIN = Path(os.environ.get("BIN") or TESTS.parent / "target/release")
SCRIPT = TESTS / "peers/butterfly.sh"
TESTPMD, NORMAL, CT, VXLAN = "testpmd io", "OVS-DPDK", "OVS-DPDK, conntrack", "OVS-DPDK, VXLAN"
TSO = "OVS-DPDK, TSO"
BRIDGE, NFTABLES = "kernel bridge", "kernel bridge, nftables"
NAT, FORWARDING, MASQUERADE = "OVS-DPDK, conntrack NAT", "kernel forwarding", "kernel forwarding, nftables SNAT"
PLAIN, FILTERED, RULES, TUNNEL = "Butterfly", "Butterfly, filtered", "Butterfly, 10,000 rules", "Butterfly, VXLAN, filtered"
ROUTED, SNAT = "Butterfly, routed, filtered", "Butterfly, SNAT, filtered"
# MAC address of the router between the two ends: that of Butterfly's "r1". It is the same everywhere.
ROUTER = "b2:f0:0c:53:fd:ac"


@dataclass
class Row:
    """A load, who gets it, and what is promised: (switch, other, "cycles" or "mpps", "at most" or "at least", bound)."""
    title: str
    switches: list
    load: str = ""
    size: int = 64
    flows: int = 1
    tunnel: str = ""  # direction of a row in which socket B carries VXLAN
    sessions: int = 0  # size of Butterfly's table of sessions
    router: bool = False  # a router is between the two ends
    promises: list = field(default_factory=list)


def cycles(switch, other, bound):
    return (switch, other, "cycles", "at most", bound)


ROWS = [
    Row("64 bytes, one flow, not filtered", [TESTPMD, NORMAL, BRIDGE, PLAIN], promises=[cycles(PLAIN, TESTPMD, 0.60)]),
    Row("1,400 bytes, one flow, not filtered", [TESTPMD, NORMAL, BRIDGE, PLAIN], size=1400, promises=[cycles(PLAIN, TESTPMD, 0.55)]),
    Row("64 bytes, 1,000 flows, filtered", [TESTPMD, CT, NFTABLES, FILTERED], flows=1000, promises=[cycles(FILTERED, TESTPMD, 0.95)]),
    Row("64 bytes, 100,000 flows, filtered", [TESTPMD, CT, FILTERED], flows=100_000, sessions=1_048_576,
        promises=[cycles(FILTERED, TESTPMD, 1.1)]),
    Row("64 bytes, 1,000,000 flows, filtered", [TESTPMD, FILTERED], flows=1_000_000, sessions=4_194_304,
        promises=[cycles(FILTERED, TESTPMD, 1.8)]),
    Row("64 bytes, 1,000,000 flows, filtered, the table 95 % full", [TESTPMD, FILTERED], flows=1_000_000, sessions=1_048_576),
    Row("1,400 bytes, 1,000 flows, filtered", [TESTPMD, CT, FILTERED], size=1400, flows=1000,
        promises=[cycles(FILTERED, TESTPMD, 0.60)]),
    Row("64 bytes, 1,000 flows, into VXLAN", [VXLAN, TUNNEL], flows=1000, tunnel="uni", promises=[cycles(TUNNEL, VXLAN, 0.65)]),
    Row("64 bytes, 1,000 flows, out of VXLAN", [VXLAN, TUNNEL], flows=1000, tunnel="rev", promises=[cycles(TUNNEL, VXLAN, 0.50)]),
    Row("a TCP stream in frames of 45 segments, not filtered; million segments a second", [TSO, PLAIN], size=1502,
        load="--tcp --segments 45 --queue-size 1024 --burst 4", promises=[(PLAIN, TSO, "mpps", "at least", 2.0)]),
    Row("every frame a new session", [CT, FILTERED, RULES], load="--new-sessions", sessions=4_194_304,
        promises=[(FILTERED, CT, "mpps", "at least", 8.0), (RULES, FILTERED, "mpps", "at least", 1 / 1.3)]),
    Row("64 bytes, 1,000 flows, routed", [FORWARDING, FILTERED, ROUTED], flows=1000, router=True,
        promises=[(ROUTED, FORWARDING, "mpps", "at least", 8.0), cycles(ROUTED, FILTERED, 1.15)]),
    Row("64 bytes, 1,000 flows, SNAT", [MASQUERADE, NAT, SNAT], flows=1000, router=True,
        promises=[(SNAT, MASQUERADE, "mpps", "at least", 10.0), (SNAT, NAT, "mpps", "at least", 5.0)]),
    Row("every frame a new session, SNAT", [MASQUERADE, NAT, SNAT], load="--new-sessions --client-ports 1000", sessions=4_194_304,
        router=True, promises=[(SNAT, MASQUERADE, "mpps", "at least", 10.0), (SNAT, NAT, "mpps", "at least", 5.0)]),
]


class Kernel(Switch):
    """The kernel's bridge between two pairs of interfaces, of which the generator has the far ends. Its work is done on the switch's core."""
    RULESET = """table bridge t {
  chain forward {
    type filter hook forward priority 0; policy drop;
    ct state established,related accept
    ip saddr 10.0.0.0/24 udp dport 5001-5004 ct state new accept
%s  }
}
"""

    def __init__(self, bench, opts, filtered):
        super().__init__(bench, opts)
        self.filtered = filtered
        self.ns = f"peers-ovs-{os.getpid()}"  # the name that a later run sweeps away, if this one is killed
        self.sockets = ["dev:a0", "dev:b0"]

    def start(self):
        self.s.namespaces.append(self.ns)
        sh("ip", "netns", "add", self.ns)
        run = lambda *words: sh("ip", "-n", self.ns, *words)
        run("link", "add", "br0", "type", "bridge")
        run("link", "set", "br0", "up")
        for end in "ab":
            run("link", "add", f"{end}0", "type", "veth", "peer", "name", f"{end}1")
            run("link", "set", f"{end}1", "master", "br0")
            for near in (f"{end}0", f"{end}1"):
                sh("ip", "netns", "exec", self.ns, "sh", "-c",
                   f"echo 1 >/proc/sys/net/ipv6/conf/{near}/disable_ipv6; ip link set {near} up")
            # What arrives at the bridge is forwarded by the switch's core.
            mask = format(1 << self.o.core, "x")
            sh("ip", "netns", "exec", self.ns, "sh", "-c", f"echo {mask} >/sys/class/net/{end}1/queues/rx-0/rps_cpus")
        if self.filtered:
            rules = "".join(f"    ip saddr 10.{1 + n}.0.0/16 tcp dport {n} ct state new accept\n" for n in range(1, 10))
            made = subprocess.run(["ip", "netns", "exec", self.ns, "nft", "-f", "-"], input=self.RULESET % rules, text=True,
                                  capture_output=True)
            if made.returncode:
                raise Failure(f"this kernel does not track connections of a bridge: {made.stderr.strip()}")

    def threads(self):
        return []

    def stop(self):
        if self.ns in self.s.namespaces:
            sh("ip", "netns", "del", self.ns, check=False)
            self.s.namespaces.remove(self.ns)


class Forwarding(Kernel):
    """The kernel's router between the same interfaces, which may translate what leaves by the second one."""

    def start(self):
        self.s.namespaces.append(self.ns)
        sh("ip", "netns", "add", self.ns)
        run = lambda *words: sh("ip", "-n", self.ns, *words)
        inside = lambda script: sh("ip", "netns", "exec", self.ns, "sh", "-c", script)
        inside("echo 1 >/proc/sys/net/ipv4/ip_forward")
        # 64 thousand sessions would be its limit here, and the next ones refused.
        inside("echo 4194304 >/proc/sys/net/netfilter/nf_conntrack_max 2>/dev/null || true")
        for n, (end, own) in enumerate((("a", "10.0.0.0/31"), ("b", "10.0.0.3/31"))):
            run("link", "add", f"{end}0", "type", "veth", "peer", "name", f"{end}1")
            run("link", "set", f"{end}1", "address", ROUTER)
            for near in (f"{end}0", f"{end}1"):
                inside(f"echo 1 >/proc/sys/net/ipv6/conf/{near}/disable_ipv6; ip link set {near} up")
            run("addr", "add", own, "dev", f"{end}1")
            run("neigh", "replace", f"10.0.0.{n + 1}", "lladdr", f"02:00:00:00:00:0{n + 1}", "dev", f"{end}1")
            inside(f"echo {1 << self.o.core:x} >/sys/class/net/{end}1/queues/rx-0/rps_cpus")
        if self.filtered:
            sh("ip", "netns", "exec", self.ns, "nft", "add table ip t; add chain ip t post { type nat hook postrouting priority 100; };"
               " add rule ip t post oifname b1 snat to 192.0.2.9")


def butterfly(bench, mode, *words):
    """Butterfly as peers.py starts any switch."""
    argv = ["compare.py", "sut", "--clear-cmd", f"{SCRIPT} mark {{a}}", "--cycles-cmd", f"{SCRIPT} cycles {{a}}"]
    argv += ["--vxlan"] if mode == "vxlan" else []
    # Its table of sessions is in huge pages, as docs/tuning.md has it: the guests' memory of the others is, too.
    argv += ["--sut-hugepages", str(64 + int(os.environ.get("SESSIONS") or 1_048_576) * 160 // 2**20)]
    argv += ["--", str(SCRIPT), mode, "{a}", "{b}", "{core}", *words]
    return Sut(bench, options(argv))


def options(argv):
    """Options of peers.py."""
    saved, sys.argv = sys.argv, argv
    try:
        return peers.arguments()
    finally:
        sys.argv = saved


MAKERS = {
    TESTPMD: lambda bench: Testpmd(bench, bench.opts),
    NORMAL: lambda bench: Ovs(bench, bench.opts, "normal"),
    TSO: lambda bench: Ovs(bench, argparse.Namespace(**vars(bench.opts) | {"tso": True}), "normal"),
    CT: lambda bench: Ovs(bench, bench.opts, "ct"),
    VXLAN: lambda bench: Ovs(bench, bench.opts, "vxlan"),
    BRIDGE: lambda bench: Kernel(bench, bench.opts, False),
    NFTABLES: lambda bench: Kernel(bench, bench.opts, True),
    PLAIN: lambda bench: butterfly(bench, "run", "0"),
    FILTERED: lambda bench: butterfly(bench, "filtered", "10"),
    RULES: lambda bench: butterfly(bench, "filtered", "10000"),
    TUNNEL: lambda bench: butterfly(bench, "vxlan", "10"),
    NAT: lambda bench: Ovs(bench, bench.opts, "nat"),
    FORWARDING: lambda bench: Forwarding(bench, bench.opts, False),
    MASQUERADE: lambda bench: Forwarding(bench, bench.opts, True),
    ROUTED: lambda bench: butterfly(bench, "routed", "10"),
    SNAT: lambda bench: butterfly(bench, "snat", "10"),
}


def missing(name):
    """Why a switch cannot be measured here, or None."""
    if name in (NORMAL, TSO, CT, VXLAN, NAT) and not os.path.exists(Ovs.BINARY):
        return "openvswitch-switch-dpdk is not installed"
    if name == TESTPMD and not shutil.which("dpdk-testpmd"):
        return "dpdk is not installed"
    if name in (NFTABLES, MASQUERADE) and not shutil.which("nft"):
        return "nftables is not installed"
    return None


def generate(bench, switch, row, secs):
    """Runs butterfly-bench and returns rates of valid seconds, and busy cycles per packet if all of them were."""
    result = bench.dir / "bench.json"
    result.unlink(missing_ok=True)
    command = ["ip", "netns", "exec", switch.ns] if isinstance(switch, Kernel) else []
    command += [BIN / "butterfly-bench", "--a", switch.sockets[0], "--b", switch.sockets[1], "--size", str(row.size), "--secs", str(secs),
                "--warm", "1", "--pin", str(bench.opts.gen_core), "--json", result, "--sync", *row.load.split()]
    command += [] if row.load else ["--flows", str(row.flows), "--order", "random"]
    if row.router and switch.routes:
        # One port outside for each of A's; what translates needs to see no answer.
        command += ["--router", ROUTER, "--learn", "0"]
        command += [] if row.load else ["--client-ports", "1000"]
    command += [] if isinstance(switch, Kernel) else ["--huge"]
    command += ["--serve"] if switch.generator_serves else []
    command += [f"--watch-tid={thread}" for thread in switch.threads()]
    process = bench.start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    signal.signal(signal.SIGALRM, lambda *_: process.kill())
    signal.alarm(60 + secs + row.flows // 20_000)
    said = []
    try:
        for line in process.stdout:
            said.append(line)
            if line.startswith("READY"):
                switch.mark()
                process.stdin.write("\n")
                process.stdin.flush()
        process.wait()
    finally:
        signal.alarm(0)
        bench.end(process)
    if process.returncode or not result.exists():
        raise Failure(f"butterfly-bench failed: {''.join(said)[-800:]}")
    seconds = json.loads(result.read_text())["seconds"]
    valid = [second["rx_mpps"] for second in seconds if second["valid"]]
    used = switch.cycles()
    return {"mpps": valid, "cycles": used if len(valid) == len(seconds) else None, "seconds": seconds}


def tunnel(bench, make, row, secs):
    """The same by DPDK's driver, which carries VXLAN at socket B."""
    with contextlib.ExitStack() as stack:
        switch = stack.enter_context(make(bench))
        bench.opts.dir, bench.opts.random, bench.opts.secs = row.tunnel, True, secs
        data = peers.run_generator(bench, switch, row.flows, row.size)
        used = switch.cycles()
    fine = lambda second: min(second["cpu"], second["switch_cpu"]) > peers.VALID_SHARE
    valid = [second["rx_mpps"] for second in data["seconds"] if fine(second)]
    return {"mpps": valid, "cycles": used if len(valid) == len(data["seconds"]) else None, "seconds": data["seconds"]}


def one(bench, row, name, secs, tries=3):
    """Measures one switch once, again if not one second was valid."""
    os.environ["SESSIONS"] = str(row.sessions or "")
    for _ in range(tries):
        await_quiet(bench.opts.quiet)
        if row.tunnel:
            run = tunnel(bench, MAKERS[name], row, secs)
        else:
            with MAKERS[name](bench) as switch:
                switch.routes = name in (NAT, FORWARDING, MASQUERADE, ROUTED, SNAT)
                run = generate(bench, switch, row, secs)
        if run["mpps"]:
            break
    rate = f"{statistics.median(run['mpps']):8.3f} Mpps" if run["mpps"] else "no valid second"
    used = f"{run['cycles']:7.0f} cycles" if run["cycles"] else ""
    print(f"  {name:<28} {rate} {used}", flush=True)
    return {"row": row.title, "switch": name, "time": time.strftime("%FT%T%z"), **run}


def medians(runs):
    """Of each row and switch: million frames a second and cycles per packet, or None."""
    found = {}
    for run in runs:
        cell = found.setdefault((run["row"], run["switch"]), {"mpps": [], "cycles": []})
        cell["mpps"] += run["mpps"]
        cell["cycles"] += [run["cycles"]] if run["cycles"] else []
    return {key: {what: statistics.median(all_) if all_ else None for what, all_ in cell.items()} for key, cell in found.items()}


def ratio(runs, row, promise):
    """Median over the rounds in which both were measured, or None."""
    switch, other, what, *_ = promise

    def rounds(name):
        of = [run[what] for run in runs if (run["row"], run["switch"]) == (row.title, name)]
        return [statistics.median(value) if value and what == "mpps" else value for value in of]

    each = [mine / theirs for mine, theirs in zip(rounds(switch), rounds(other)) if mine and theirs]
    return statistics.median(each) if each else None


def judge(row, runs, promise):
    """A promise with its measured ratio, as cells of a table."""
    switch, other, what, sense, bound = promise
    measured = ratio(runs, row, promise)
    if measured is None:
        return [row.title, f"{switch} / {other}", what, "not measured", f"{sense} {bound:.2f}", "-"]
    kept = measured <= bound if sense == "at most" else measured >= bound
    return [row.title, f"{switch} / {other}", what, f"{measured:.2f}", f"{sense} {bound:.2f}", "yes" if kept else "**no**"]


def table(head, lines):
    """A table in Markdown."""
    rows = [head, ["---"] * len(head), *lines]
    return "".join("| " + " | ".join(row) + " |\n" for row in rows)


def document(rows, runs, left_out, machine, rounds, secs):
    """docs/figures.md."""
    show = lambda value, spec: "-" if value is None else format(value, spec)
    cells, found = [], medians(runs)
    for row in rows:
        for name in row.switches:
            cell = found.get((row.title, name))
            if cell:
                cells.append([row.title, name, show(cell["mpps"], ".3f"), show(cell["cycles"], ".0f")])
    judged = [judge(row, runs, promise) for row in rows for promise in row.promises]
    versions = ", ".join(f"{key} {value}" for key, value in machine.items() if value)
    without = "".join(f"- {name}: {why}\n" for name, why in left_out.items())
    return (
        "# Figures\n\nWritten by `make compare`, which starts every switch, loads it with `butterfly-bench` (rows with VXLAN: with DPDK's\n"
        "driver) and writes this page. Do not edit it. [performance.md](performance.md) says what the figures\nmean.\n\n"
        f"Medians over the valid seconds of {rounds} rounds of {secs} s, in which the switches took turns, on\n"
        f"{time.strftime('%F')}. Machine: {versions}.\n\n"
        + "![Busy cycles per packet of each switch](figures.svg)\n\n"
        + table(["load", "switch", "million packets a second", "busy cycles per packet"], cells)
        + "\nThe kernel's work is not counted in cycles. The generator sends and receives through packet sockets\n"
        + "there, which costs it most of its core: such a row says what both reach together.\n"
        + "\n## What is promised\n\nMedians of the ratios of each round.\n\n"
        + table(["load", "beside", "of", "measured", "promised", "kept"], judged)
        + (f"\n## Left out\n\n{without}" if without else "")
    )


def picture(rows, found):
    """Bars of cycles per packet, as SVG."""
    bars = [(row.title, name, found[row.title, name]["cycles"]) for row in rows for name in row.switches
            if found.get((row.title, name), {}).get("cycles")]
    longest = max((value for _, _, value in bars), default=1)
    out, y, last = [], 20, None
    for title, name, value in bars:
        if title != last:
            y += 26
            out.append(f'<text x="10" y="{y}" font-weight="bold">{title}</text>')
            y, last = y + 8, title
        width = max(1, round(value / longest * 460))
        colour = "#2b6cb0" if name.startswith("Butterfly") else "#a0aec0"
        out.append(f'<rect x="220" y="{y}" width="{width}" height="14" fill="{colour}"/>'
                   f'<text x="210" y="{y + 11}" text-anchor="end">{name}</text>'
                   f'<text x="{226 + width}" y="{y + 11}">{value:.0f}</text>')
        y += 18
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 740 {y + 20}" font-family="sans-serif" font-size="12">\n'
            f'<rect width="740" height="{y + 20}" fill="white"/>\n<text x="10" y="20">Busy cycles per packet: less is better</text>\n'
            + "\n".join(out) + "\n</svg>\n")


def with_huge_pages():
    """Starts this program anew where huge pages can be files, as systemd has it everywhere."""
    if not any(line.split()[2] == "hugetlbfs" for line in Path("/proc/mounts").read_text().splitlines()):
        script = 'mkdir -p /dev/hugepages && mount -t hugetlbfs none /dev/hugepages && exec "$@"'
        os.execvp("unshare", ["unshare", "--mount", "sh", "-c", script, "sh", sys.executable, __file__, *sys.argv[1:]])


def kept(asked, rows):
    """Runs of former times, of rows that are not measured now."""
    before = asked.out.with_suffix(".json")
    if not asked.only or not before.exists():
        return []
    former = json.loads(before.read_text())
    if former["machine"] != peers.machine():
        raise Failure(f"{before} is of another machine: measure all rows, or name another --out")
    measured = {row.title for row in rows}
    return [run for run in former["runs"] if run["row"] not in measured]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--secs", type=int, default=3)
    parser.add_argument("--only", default="", help="rows whose title contains this")
    parser.add_argument("--out", default=TESTS.parent / "docs/figures", type=Path)
    asked = parser.parse_args()
    with_huge_pages()
    rows = [row for row in ROWS if asked.only in row.title]
    left_out = {name: why for row in rows for name in row.switches if (why := missing(name))}
    runs, failed = kept(asked, rows), {}
    try:
        with Bench(options(["compare.py", "matrix"])) as bench:
            for number in range(asked.rounds):
                for row in rows:
                    print(f"# round {number + 1} of {asked.rounds}: {row.title}", flush=True)
                    for name in row.switches:
                        if name in left_out:
                            continue
                        try:
                            runs.append(one(bench, row, name, asked.secs))
                        except Failure as failure:
                            print(f"  {name}: {failure}", flush=True)
                            failed[f"{name}, {row.title}"] = str(failure).splitlines()[0]
    finally:  # an interrupted comparison still has what it measured
        found = medians(runs)
        machine = peers.machine()
        asked.out.with_suffix(".json").write_text(json.dumps({"machine": machine, "runs": runs}, indent=1) + "\n")
        asked.out.with_suffix(".md").write_text(document(ROWS, runs, left_out | failed, machine, asked.rounds, asked.secs))
        asked.out.with_suffix(".svg").write_text(picture(ROWS, found))
    print(f"written: {asked.out}.md, .json, .svg")
    for row in rows:
        for promise in row.promises:
            print(" | ".join(judge(row, runs, promise)))


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"error: {failure}")
