#!/usr/bin/env python3
"""Ratios of medians over all rounds of tests/bench/run.sh or filter.sh, and whether the promises are kept.

  ratios.py [--check] RUNS.json...

A promise is about the ratio to testpmd ("limit"), to OVS with connection tracking, or to the same switch without idle vnics. With --check, exit status 1
if one is not kept or cannot be judged because no second was valid.
"""
import json
import statistics
import sys

# (switch, compared with, frame size or None for every, flows or None for every, what, at most or at least, bound)
PROMISES = [
    ("butterfly", "limit", 64, None, "cycles", "at most", 1.10),
    ("butterfly", "limit", 64, None, "mpps", "at least", 0.90),
    ("butterfly", "limit", 1400, None, "cycles", "at most", 0.45),
    ("butterfly+idle", "butterfly", None, None, "cycles", "at most", 1.05),
    ("butterfly+idle", "butterfly", None, None, "mpps", "at least", 0.95),
    ("filtered", "ovs ct", 64, 1, "cycles", "at most", 0.25),
    ("filtered", "ovs ct", 64, 1000, "cycles", "at most", 0.20),
    ("filtered", "ovs ct", 64, 100000, "cycles", "at most", 0.125),
    ("filtered", "limit", 64, 1000, "cycles", "at most", 1.25),
    ("vxlan", "ovs vxlan", 64, 1000, "cycles", "at most", 0.75),
    ("filtered", "limit", 1400, 1000, "cycles", "at most", 0.50),
]


def main():
    check = "--check" in sys.argv
    cells = {}
    for name in (a for a in sys.argv[1:] if not a.startswith("--")):
        for run in json.load(open(name))["runs"]:
            cell = cells.setdefault((run["switch"], run["size"], run["flows"]), {"mpps": [], "cycles": []})
            cell["mpps"] += run["valid_mpps"]
            if run["cycles_per_packet"]:
                cell["cycles"].append(run["cycles_per_packet"])
    medians = {key: {k: statistics.median(v) if v else None for k, v in cell.items()} for key, cell in cells.items()}
    show = lambda x, spec: "-" if x is None else format(x, spec)

    print(f"\n{'switch':<16}{'bytes':>6}{'flows':>8}{'Mpps':>9}{'seconds':>9}{'cycles/packet':>15}{'runs':>6}")
    for (switch, size, flows), m in sorted(medians.items(), key=lambda x: (x[0][1], x[0][2], x[0][0])):
        cell = cells[switch, size, flows]
        print(f"{switch:<16}{size:>6}{flows:>8}{show(m['mpps'], '.3f'):>9}{len(cell['mpps']):>9}"
              f"{show(m['cycles'], '.0f'):>15}{len(cell['cycles']):>6}")

    print("\nratios of medians:")
    kept = True
    for switch, other, size, wanted, what, sense, bound in PROMISES:
        for (name, s, flows), m in sorted(medians.items(), key=lambda x: (x[0][1], x[0][2])):
            if name != switch or size not in (None, s) or wanted not in (None, flows):
                continue
            base = medians.get((other, s, flows), {}).get(what)
            if not base or not m[what]:
                verdict, ratio = "NOT MEASURED (no valid run)", None
            else:
                ratio = m[what] / base
                good = ratio <= bound if sense == "at most" else ratio >= bound
                verdict = "kept" if good else "NOT KEPT"
            kept = kept and verdict == "kept"
            unit = "cycles per packet" if what == "cycles" else "packets per second"
            print(f"  {switch} / {other}, {s} bytes, {flows} flows, {unit}: {show(ratio, '.2f')} "
                  f"({sense} {bound:.2f}: {verdict})")
    return 1 if check and not kept else 0


if __name__ == "__main__":
    sys.exit(main())
