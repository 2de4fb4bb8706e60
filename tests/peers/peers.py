#!/usr/bin/env python3
"""Run the peers of a virtual switch side by side with it, under one traffic generator and one set of validity checks.

A second of a run counts only if the generator's thread and the switch's poll thread each had more than 98 % of their
core in it; everything else is printed as invalid and left out of every figure. README.md explains how to read the
output.
"""
import argparse
import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

from host import HERE, WORK, Bench, Failure, Interrupted, await_quiet, sh
from ovs import OVS_MODES, Ovs
from switches import Sut, Testpmd, eal

VALID_SHARE = 0.98


# ---- One run ---------------------------------------------------------------------------------------------------------

def build_generator():
    """vugen, built into the work directory when its source is newer."""
    WORK.mkdir(parents=True, exist_ok=True)
    sh("make", "-s", "-C", HERE / "vugen", f"OUT={WORK}", timeout=120)
    return WORK / "vugen"


def run_generator(bench, switch, flows, size):
    o = bench.opts
    result = bench.dir / "vugen.json"
    result.unlink(missing_ok=True)
    cmd = [build_generator(), "-l", o.gen_core, *eal(o, 256, "gen")]
    for i, path in enumerate(switch.sockets):
        cmd += ["--vdev", f"net_virtio_user{i},path={path},queues=1,{o.virtio}"
                + (",server=1" if switch.generator_serves else "")]
    cmd += ["--", "--flows", flows, "--size", size, "--dir", o.dir, "--secs", o.secs, "--warm", o.warm, "--sync",
            "--json", result, "--watch", ",".join(map(str, switch.threads()))]
    cmd += [f for f, on in (("--vxlan", switch.vxlan), ("--tcp", o.tcp), ("--payload-check", o.payload_check),
                               ("--random", o.random)) if on]
    output = []
    p = bench.start(cmd, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + 60 + o.secs + o.warm + 4 * flows / 200000
    signal.signal(signal.SIGALRM, lambda *_: p.kill())
    signal.alarm(int(deadline - time.monotonic()))
    try:
        for line in p.stdout:
            output.append(line)
            if line.startswith("READY"):
                switch.mark()
                p.stdin.write("\n")
                p.stdin.flush()
            elif o.verbose:
                print("    " + line.rstrip())
        p.wait()
    finally:
        signal.alarm(0)
        bench.end(p)
    if p.returncode or not result.exists():
        raise Failure(f"the generator failed (status {p.returncode}):\n{''.join(output)[-1500:]}"
                      f"\nswitch's log: {bench.logs}")
    return json.loads(result.read_text())


def measure(bench, make_switch, flows, size):
    """Start a fresh switch, run the generator against it, return what was seen."""
    o = bench.opts
    await_quiet(o.quiet)
    with make_switch() as switch:
        data = run_generator(bench, switch, flows, size)
        cycles = switch.cycles()
        notes = switch.notes()
    run = {"switch": switch.name, "flows": flows, "size": size, "dir": o.dir, "seconds": data["seconds"],
           "summary": data["summary"], "tsc_hz": data["tsc_hz"], "notes": notes, "time": time.strftime("%FT%T%z")}
    if o.dir == "lat":
        s = data["summary"]
        run["valid"] = min(s["cpu"], s["switch_cpu"]) > VALID_SHARE
        return run
    ok = [s for s in data["seconds"] if s["cpu"] > VALID_SHARE and s["switch_cpu"] > VALID_SHARE]
    counted = "tx_mpps" if o.dir == "uplink" else "rx_mpps"
    run["valid_mpps"] = [s[counted] for s in ok]
    # Counters cover the whole run, and a preempted thread's busy cycles include its absence: all or nothing.
    run["cycles_per_packet"] = cycles if len(ok) == len(data["seconds"]) else None
    return run


def describe(run):
    head = f"{run['switch']:<12} {run['flows']:>6} flows {run['size']:>4} B {run['dir']:<6}"
    s = run["summary"]
    if run["dir"] == "lat":
        return (f"{head} {'valid' if run['valid'] else 'INVALID'} p50 {s['p50_us']:.2f} p90 {s['p90_us']:.2f} "
                f"p99 {s['p99_us']:.2f} p99.9 {s['p999_us']:.2f} us, timeouts {s['timeouts']} of "
                f"{s['samples'] + s['timeouts']}")
    v = run["valid_mpps"]
    text = f"{head} valid {len(v)}/{len(run['seconds'])} s"
    if v:
        text += f"  Mpps {min(v):.3f}/{statistics.median(v):.3f}/{max(v):.3f} (min/median/max)"
    else:
        shares = ", ".join(f"{x['cpu']:.2f}+{x['switch_cpu']:.2f}" for x in run["seconds"])
        text += f"  (core shares generator+switch: {shares})"
    if run["cycles_per_packet"]:
        text += f"  {run['cycles_per_packet']:.0f} cycles/packet"
    return text + "".join(f"  {k} {s[k]}" for k in ("bad", "corrupt") if s[k])


def attempts(bench, make_switch, flows, size):
    """Runs until enough valid seconds are there, or patience ends."""
    o = bench.opts
    runs, valid = [], 0
    for _ in range(o.tries):
        run = measure(bench, make_switch, flows, size)
        runs.append(run)
        print(describe(run), flush=True)
        if o.verbose:
            for k, v in run["notes"].items():
                print(f"    {k}: {v}")
        valid += run["valid"] if o.dir == "lat" else len(run["valid_mpps"])
        if valid >= (1 if o.dir == "lat" else o.min_valid):
            break
    return runs


# ---- Subcommands -----------------------------------------------------------------------------------------------------

def machine():
    info = {"kernel": os.uname().release, "cpus": os.cpu_count()}
    m = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
    info["cpu"] = m[1] if m else "?"
    for name, cmd in (("dpdk", ["pkg-config", "--modversion", "libdpdk"]), ("ovs", [Ovs.BINARY, "--version"])):
        with contextlib.suppress(Failure, OSError):
            info[name] = sh(*cmd, check=False).splitlines()[0] if os.path.exists(cmd[0]) or name == "dpdk" else None
    return info


def save(opts, runs, table=None):
    if opts.json:
        Path(opts.json).write_text(json.dumps({"machine": machine(), "runs": runs, "table": table}, indent=1) + "\n")


def single(bench, make_switch):
    o = bench.opts
    runs = []
    for _ in range(o.rounds):
        for size in o.sizes:
            for flows in o.flows:
                runs += attempts(bench, make_switch, flows, size)
    save(o, runs, None if o.dir == "lat" else summarise(runs))
    enough = [r for r in runs if r.get("valid") or r.get("valid_mpps")]
    return 0 if enough else 3


def cmd_limit(bench):
    return single(bench, lambda: Testpmd(bench, bench.opts))


def cmd_ovs(bench):
    return single(bench, lambda: Ovs(bench, bench.opts, bench.opts.mode))


def cmd_sut(bench):
    return single(bench, lambda: Sut(bench, bench.opts))


def cmd_matrix(bench):
    o = bench.opts
    makers = []
    for name in o.switches:
        if name == "limit":
            makers.append(lambda: Testpmd(bench, o))
        elif name in OVS_MODES:
            makers.append(lambda name=name: Ovs(bench, o, name))
        else:
            raise Failure(f"--switches: limit, {', '.join(OVS_MODES)}; not {name}")
    if o.cmd or o.pid:
        makers.append(lambda: Sut(bench, o))
    runs = []
    try:
        for r in range(o.rounds):
            print(f"# round {r + 1} of {o.rounds}", flush=True)
            for size in o.sizes:
                for flows in o.flows:
                    for make in makers:
                        try:
                            runs += attempts(bench, make, flows, size)
                        except Failure as e:
                            print(f"{make().name} {flows} flows {size} B FAILED: {e}", flush=True)
                        save(o, runs)
    finally:  # an interrupted matrix still reports what it has
        table = summarise(runs)
        save(o, runs, table)
        print_table(table)
    return 0 if table else 3


def summarise(runs):
    """One row per switch, flows and size, over all valid seconds of all rounds."""
    rows = {}
    for r in runs:
        key = (r["switch"], r["flows"], r["size"])
        row = rows.setdefault(key, {"switch": r["switch"], "flows": r["flows"], "size": r["size"], "dir": r["dir"],
                                    "mpps": [], "cycles": [], "runs": 0, "measured": 0, "bad": 0, "corrupt": 0,
                                    "tsc_hz": r["tsc_hz"]})
        row["mpps"] += r["valid_mpps"]
        row["runs"] += 1
        row["measured"] += len(r["seconds"])
        row["bad"] += r["summary"]["bad"]
        row["corrupt"] += r["summary"]["corrupt"]
        if r["cycles_per_packet"]:
            row["cycles"].append(r["cycles_per_packet"])
    median = {k: statistics.median(v["mpps"]) for k, v in rows.items() if v["mpps"]}
    table = []
    for (name, flows, size), v in sorted(rows.items(), key=lambda x: (x[0][2], x[0][1])):
        m = median.get((name, flows, size))
        ratio = lambda to: m / median[to, flows, size] if m and median.get((to, flows, size)) else None
        table.append({
            "switch": name, "flows": flows, "size": size, "dir": v["dir"], "runs": v["runs"],
            "valid_seconds": len(v["mpps"]), "measured_seconds": v["measured"], "median_mpps": m,
            "min_mpps": min(v["mpps"], default=None), "max_mpps": max(v["mpps"], default=None),
            "gbps": m * size * 8 / 1000 if m else None,
            "cycles_per_packet": statistics.median(v["cycles"]) if v["cycles"] else None,
            "core_cycles_per_packet": v["tsc_hz"] / m / 1e6 if m else None,
            "to_limit": ratio("limit"), "to_normal": ratio("ovs normal"), "to_ct": ratio("ovs ct"),
            "bad": v["bad"], "corrupt": v["corrupt"]})
    return table


def print_table(table):
    f = lambda spec: lambda x: "-" if x is None else format(x, spec)
    columns = [("switch", "switch", str), ("flows", "flows", str), ("B", "size", str),
               ("Mpps median", "median_mpps", f(".3f")), ("min", "min_mpps", f(".3f")), ("max", "max_mpps", f(".3f")),
               ("Gbit/s", "gbps", f(".1f")), ("valid s", None, None), ("cycles/pkt", "cycles_per_packet", f(".0f")),
               ("core cycles/pkt", "core_cycles_per_packet", f(".0f")), ("/limit", "to_limit", f(".2f")),
               ("/normal", "to_normal", f(".2f")), ("/ct", "to_ct", f(".2f")), ("bad", "bad", str)]
    lines = [[title for title, _, _ in columns]]
    for row in table:
        lines.append([show(row[key]) if key else f"{row['valid_seconds']}/{row['measured_seconds']}"
                      for _, key, show in columns])
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    lines.insert(1, ["-" * w for w in widths])
    print()
    for line in lines:
        print("| " + " | ".join(c.ljust(w) if i == 0 else c.rjust(w)
                                for i, (c, w) in enumerate(zip(line, widths))) + " |")


def arguments():
    numbers = lambda text: [int(x) for x in text.split(",")]
    common = argparse.ArgumentParser(add_help=False)
    g = common.add_argument_group("traffic")
    g.add_argument("--flows", type=numbers, metavar="N,..", help="flows (limit, ovs, sut: 1; matrix: 1,1000,100000)")
    g.add_argument("--random", action="store_true", help="flows in a random order, the same every time")
    g.add_argument("--sizes", type=numbers, metavar="B,..",
                   help="frame sizes up to 9000 (limit, ovs, sut: 64; matrix: 64,1400)")
    g.add_argument("--virtio", default="in_order=0", metavar="ARGS",
                   help="more of the generator's virtio-user devices (in_order=0), e.g. in_order=0,mrg_rxbuf=0")
    g.add_argument("--dir", choices=("uni", "bidi", "rev", "lat", "uplink"), default="uni")
    g.add_argument("--secs", type=int, default=3, help="measured seconds per run (3)")
    g.add_argument("--warm", type=int, default=1, help="seconds at full speed before (1)")
    g.add_argument("--tcp", action="store_true", help="TCP with handshakes instead of UDP")
    g.add_argument("--payload-check", action="store_true", help="verify every byte of every frame (slower)")
    g = common.add_argument_group("running")
    g.add_argument("--rounds", type=int, help="rounds R (1; matrix: 3)")
    g.add_argument("--tries", type=int, default=5, help="runs at most until --min-valid seconds are valid (5)")
    g.add_argument("--min-valid", type=int, default=1, metavar="S", help="valid seconds wanted per case and round (1)")
    g.add_argument("--quiet", type=int, default=60, metavar="S", help="wait so long for a quiet machine (60)")
    g.add_argument("--core", type=int, default=1, help="core of the switch's poll thread (1)")
    g.add_argument("--gen-core", type=int, default=0, help="core of the generator (0)")
    g.add_argument("--no-huge", action="store_true", help="no huge pages (limit, sut)")
    g.add_argument("--json", metavar="FILE", help="write every second of every run, and the table")
    g.add_argument("--verbose", "-v", action="store_true")
    ovs = argparse.ArgumentParser(add_help=False)
    g = ovs.add_argument_group("OVS")
    g.add_argument("--emc-inv-prob", type=int, default=100, help="emc-insert-inv-prob (100; 0 turns the EMC off)")
    g.add_argument("--tso", action="store_true", help="userspace-tso-enable")
    sut = argparse.ArgumentParser(add_help=False)
    g = sut.add_argument_group("switch under test; commands may hold {a} {b} (sockets), {core}, {dir}, {pid}")
    g.add_argument("--name", default="sut", help="its name in the output")
    g.add_argument("--sockets", nargs=2, metavar=("A", "B"), help="its vhost-user sockets (made up, see {a} {b})")
    g.add_argument("--switch-connects", action="store_true", help="it is the sockets' client; the generator serves")
    g.add_argument("--pid", type=int, help="process that holds the poll thread (the command, and its children)")
    g.add_argument("--tid", type=int, help="the poll thread itself (the busiest one pinned to --core)")
    g.add_argument("--vxlan", action="store_true", help="socket B is an uplink that carries VXLAN")
    g.add_argument("--setup-cmd", metavar="SH", 
                   help="shell command after the start, e.g. create ports; repeated until it succeeds")
    g.add_argument("--clear-cmd", metavar="SH", help="shell command that resets its counters")
    g.add_argument("--cycles-cmd", metavar="SH", help="shell command whose last number is busy cycles per packet")
    g.add_argument("--sut-hugepages", type=int, default=0, metavar="MB", help="huge page memory it needs")
    g.add_argument("--ready-timeout", type=int, default=30, metavar="S")
    g.add_argument("cmd", nargs="*", metavar="-- CMD", help="starts it, in the foreground")

    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    sub = parser.add_subparsers(required=True, metavar="COMMAND")
    add = lambda name, run, help_, parents: sub.add_parser(name, help=help_, parents=parents,
                                                           description=help_).set_defaults(run=run, command=name)
    add("limit", cmd_limit, "testpmd io between two net_vhost ports: the upper limit", [common])
    p = sub.add_parser("ovs", help="a private OVS-DPDK", parents=[common, ovs])
    p.add_argument("mode", choices=OVS_MODES)
    p.set_defaults(run=cmd_ovs, command="ovs")
    add("sut", cmd_sut, "any other switch with two vhost-user sockets", [common, sut])
    p = sub.add_parser("matrix", help="all of them, interleaved, one table", parents=[common, ovs, sut])
    p.add_argument("--switches", type=lambda t: t.split(","), default=["limit", *OVS_MODES],
                   metavar="NAME,..", help="limit,normal,ct,vxlan,ctvxlan")
    p.set_defaults(run=cmd_matrix, command="matrix")
    sub.add_parser("quiet", help="only wait until nothing else computes", parents=[common]).set_defaults(
        run=None, command="quiet")
    o = parser.parse_args()
    matrix = o.command == "matrix"
    o.flows = o.flows or ([1, 1000, 100000] if matrix else [1])
    o.sizes = o.sizes or ([64, 1400] if matrix else [64])
    o.rounds = o.rounds or (3 if matrix else 1)
    if matrix and o.dir == "lat":
        parser.error("matrix compares throughput; use limit, ovs or sut with --dir lat")
    if o.core == o.gen_core:
        parser.error("--core and --gen-core must differ")
    if o.no_huge and o.command in ("ovs", "matrix"):
        parser.error("OVS-DPDK is run with huge pages only here")
    return o


def main():
    opts = arguments()
    if opts.command == "quiet":
        return 0 if await_quiet(opts.quiet) else 1

    def interrupt(signum, frame):
        for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # once is enough; cleaning up takes seconds
            signal.signal(s, signal.SIG_IGN)
        raise Interrupted(signum)

    for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(s, interrupt)
    try:
        with Bench(opts) as bench:
            return opts.run(bench)
    except Interrupted as e:
        print("interrupted; everything is cleaned up", file=sys.stderr)
        return 128 + e.args[0]
    except Failure as e:
        print(f"error: {e}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
