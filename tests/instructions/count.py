#!/usr/bin/env python3
"""Counts instructions per packet of a fixed amount of switching, stage by stage, and compares them with committed figures.

count.py PROGRAM FIGURES [--update]   PROGRAM is the example fixed_work of butterfly-datapath

The figures are exact for one compiler and one C library, whatever else the machine is doing. A count more than 3 % above the
committed one fails. --update writes the file: that is a commit of its own, which says why the packet path got longer.
"""
import json
import re
import subprocess
import sys
import tempfile

BATCHES = 300
TOLERANCE = 1.03
ROUND = re.compile(r"worker::rounds::Worker::round\b")


def count(program, case, stages):
    """Instructions per packet: of a whole round and of each stage in it (functions that are kept out of line for this purpose)."""
    with tempfile.NamedTemporaryFile(prefix="callgrind.") as out:
        valgrind = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out.name}", "--toggle-collect=*Worker*round*"]
        done = subprocess.run([*valgrind, program, case, str(BATCHES)], capture_output=True, text=True, check=False, timeout=300)
        match = re.search(r"(\d+) packets", done.stdout)
        if done.returncode or not match:
            sys.exit(f"{' '.join([*valgrind, program, case, str(BATCHES)])} failed:\n{done.stdout}{done.stderr}")
        packets = int(match[1])
        annotate = ["callgrind_annotate", "--inclusive=yes", "--threshold=100", "--show-percs=no", "--auto=no", out.name]
        lines = subprocess.run(annotate, capture_output=True, text=True, check=True).stdout.splitlines()
    totals = {}
    for line in lines:
        found = re.match(r"\s*([\d,]+)\s+(.*)", line)
        if not found:
            continue
        instructions, where = int(found[1].replace(",", "")), found[2]
        names = [stage for stage in stages if f"::{stage}::{stage}" in where]
        if ROUND.search(where):
            names.append("total")
        for name in names:
            totals[name] = max(totals.get(name, 0), instructions)
    if "total" not in totals or "deliver" not in totals:
        sys.exit(f"case {case}: the profile does not name the packet path; was it inlined?")
    totals["deliver"] -= totals.get("leave", 0)  # which is a part of it
    totals["take"] = totals["total"] - sum(totals.get(stage, 0) for stage in stages)
    return {name: round(n / packets, 2) for name, n in sorted(totals.items())}


def main():
    program, figures = sys.argv[1:3]
    cases = subprocess.run([program, "list"], capture_output=True, text=True, check=True).stdout.split()
    stages = subprocess.run([program, "stages"], capture_output=True, text=True, check=True).stdout.split()
    now = {case: count(program, case, stages) for case in cases}
    if "--update" in sys.argv:
        with open(figures, "w", encoding="utf-8") as file:
            json.dump(now, file, indent=1)
            file.write("\n")
    with open(figures, encoding="utf-8") as file:
        committed = json.load(file)
    failed = 0
    print(f"{'instructions per packet':<24}" + "".join(f"{name:>11}" for name in ("total", "take", *stages)))
    for case, counts in now.items():
        print(f"{case:<24}" + "".join(f"{counts.get(name, 0):>11.1f}" for name in ("total", "take", *stages)))
        allowed = committed.get(case, {}).get("total")
        if allowed is None:
            failed += 1
            print(f"  {case}: no committed figure")
        elif counts["total"] > allowed * TOLERANCE:
            failed += 1
            print(f"  {case}: {counts['total']} is more than 3 % above the committed {allowed}")
    print(f"{len(now) - failed} passed, {failed} failed")
    sys.exit(failed > 0)


main()
