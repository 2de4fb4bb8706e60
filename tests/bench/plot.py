#!/usr/bin/env python3
"""Draws what filtering costs against the number of rules, members and sessions: docs/filtering-cost.svg.

  plot.py [PROGRAM]     PROGRAM: the example filter_cost of butterfly-datapath (target/release/examples/filter_cost)

In-memory rings on one core (CORE, 1), cycles of the switch per 64-byte frame; the median of three runs each. Takes some four minutes on a quiet
machine. The figures behind the curves are written beside, as filtering-cost.json.
"""
import json
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
PROGRAM = sys.argv[1] if len(sys.argv) > 1 else str(REPO / "target/release/examples/filter_cost")
CORE = os.environ.get("CORE", "1")
# title, what varies, series: name and arguments (kind, flows, rules, groups, members, batches) from the number
PLOTS = [
    ("rules", [10, 100, 1000, 10_000],
     {"established, 1,000 flows": lambda n: ("established", 1000, n, max(1, n // 100), 0, 6000),
      "new sessions": lambda n: ("new", 60_000, n, max(1, n // 100), 0, 6000)}),
    ("members of a group", [10, 100, 1000, 10_000, 100_000],
     {"established, 1,000 flows": lambda n: ("established", 1000, 10, 1, n, 6000),
      "new sessions": lambda n: ("new", 60_000, 10, 1, n, 6000)}),
    ("sessions", [10, 100, 1000, 10_000, 100_000, 1_000_000],
     {"established, random order": lambda n: ("established", n, 10, 1, 0, 6000)}),
]
COLOURS = ["#0b6e4f", "#c84630"]
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 300, 260, 48, 34, 44


def measure(arguments):
    runs = []
    for _ in range(3):
        command = ["taskset", "-c", CORE, PROGRAM, *map(str, arguments)]
        out = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
        runs.append(float(re.search(r"([\d.]+) cycles/packet", out)[1]))
    return statistics.median(runs)


def text(x, y, content, anchor="middle", size=11):
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" font-size="{size}">{content}</text>'


def plot(at, title, numbers, series):
    most = max(max(values) for values in series.values()) * 1.15
    step = next(s for s in (20, 50, 100, 200, 500, 1000, 2000) if most / s <= 6)
    x = lambda i: at + LEFT + (WIDTH - LEFT - 20) * i / (len(numbers) - 1)
    y = lambda value: TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / most)
    out = [text(at + WIDTH / 2, 18, f"cycles per frame against {title}", size=12)]
    for n in range(0, int(most) + 1, step):
        out.append(f'<line x1="{x(0):.0f}" x2="{x(len(numbers) - 1):.0f}" y1="{y(n):.1f}" y2="{y(n):.1f}" stroke="#ddd"/>')
        out.append(text(x(0) - 6, y(n) + 4, n, "end"))
    out += [text(x(i), HEIGHT - BOTTOM + 16, f"{n:,}".replace(",000,000", "M").replace(",000", "k")) for i, n in enumerate(numbers)]
    for (name, values), colour in zip(series.items(), COLOURS):
        points = " ".join(f"{x(i):.1f},{y(value):.1f}" for i, value in enumerate(values))
        out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        out += [f'<circle cx="{x(i):.1f}" cy="{y(value):.1f}" r="3" fill="{colour}"/>' for i, value in enumerate(values)]
        line = list(series).index(name)
        out.append(f'<rect x="{x(0) + 70 * line + 60 * line:.0f}" y="{HEIGHT - 18}" width="10" height="10" fill="{colour}"/>')
        out.append(text(x(0) + 70 * line + 60 * line + 14, HEIGHT - 9, name, "start", 10))
    return out


def main():
    figures = []
    for title, numbers, series in PLOTS:
        values = {name: [measure(arguments(n)) for n in numbers] for name, arguments in series.items()}
        figures.append((title, numbers, values))
        print(title, numbers, values, flush=True)
    body = [line for i, (title, numbers, values) in enumerate(figures) for line in plot(i * WIDTH, title, numbers, values)]
    size = f'width="{WIDTH * len(figures)}" height="{HEIGHT}"'
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">', '<rect width="100%" height="100%" fill="white"/>',
           *body, "</svg>"]
    (REPO / "docs/filtering-cost.svg").write_text("\n".join(svg) + "\n", encoding="utf-8")
    (REPO / "docs/filtering-cost.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


main()
