#!/usr/bin/env python3
"""Round trips of 64-byte frames between two guests that poll, through testpmd, OVS-DPDK and a filtered pair of Butterfly.

  latency.py [ROUNDS [SECONDS]]     (3 rounds of 3 seconds)

Guest A sends a frame, B answers when it has it, A sends the next one when the answer is there. Rounds are interleaved;
the table has medians over rounds. Needs root, two quiet cores, huge pages, dpdk-testpmd and openvswitch-switch-dpdk.
"""
import json
import os
import signal
import statistics
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS / "peers"))

import peers  # noqa: E402
from host import Bench, Failure, await_quiet  # noqa: E402
from ovs import Ovs  # noqa: E402
from switches import Sut, Testpmd  # noqa: E402

BIN = Path(os.environ.get("BIN") or TESTS.parent / "target/release")
FIGURES = ("p50_us", "p90_us", "p99_us", "p999_us", "p9999_us", "max_us")
FLOWS = 1000


def run(bench, switch, seconds):
    result = bench.dir / "ping.json"
    command = [BIN / "butterfly-bench", "--a", switch.sockets[0], "--b", switch.sockets[1], "--dir", "ping", "--huge",
               "--flows", str(FLOWS), "--secs", str(seconds), "--pin", str(bench.opts.gen_core), "--json", result]
    command += ["--serve"] if switch.generator_serves else []
    process = bench.start(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    signal.alarm(60 + seconds)
    said, _ = process.communicate()
    signal.alarm(0)
    bench.end(process)
    if process.returncode:
        raise Failure(f"butterfly-bench failed: {said}")
    return json.loads(result.read_text())["latency"]


def main():
    rounds, seconds = [int(word) for word in (sys.argv[1:] + ["3", "3"][len(sys.argv) - 1:])[:2]]
    script = TESTS / "peers/butterfly.sh"
    sys.argv = ["latency.py", "matrix", "--name", "butterfly, filtered", "--", script, "filtered", "{a}", "{b}", "{core}",
                "10"]
    sys.argv = [str(word) for word in sys.argv]
    opts = peers.arguments()
    makers = {
        "testpmd io": lambda bench: Testpmd(bench, opts),
        "OVS-DPDK": lambda bench: Ovs(bench, opts, "normal"),
        "OVS-DPDK, conntrack": lambda bench: Ovs(bench, opts, "ct"),
        "butterfly, filtered": lambda bench: Sut(bench, opts),
    }
    seen = {name: [] for name in makers}
    with Bench(opts) as bench:
        for number in range(rounds):
            print(f"# round {number + 1} of {rounds}", flush=True)
            for name, make in makers.items():
                await_quiet(opts.quiet)
                with make(bench) as switch:
                    latency = run(bench, switch, seconds)
                seen[name].append(latency)
                figures = "  ".join(f"{figure[:-3]} {latency[figure]:.2f}" for figure in FIGURES)
                print(f"{name:<22} {figures} us, {latency['samples']} round trips", flush=True)
    print("\n| round trip, us | median | 90 % | 99 % | 99.9 % | 99.99 % | longest |\n|---|---|---|---|---|---|---|")
    for name, all_rounds in seen.items():
        cells = [f"{statistics.median(latency[figure] for latency in all_rounds):.2f}" for figure in FIGURES]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"error: {failure}")
