#!/usr/bin/env python3
"""Draws how long traffic stands still after deaths and upgrades: docs/stand-still.svg.

  plot.py [ROUNDS]      deaths and upgrades of each kind, 100

Each curve says which part of the deaths (upgrades) cost no more than so many milliseconds. Takes some ten minutes on a quiet machine. The figures
behind the curves are written beside, as stand-still.json. Uses the programs of BIN (target/release).
"""
import json
import re
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
ROUNDS = sys.argv[1] if len(sys.argv) > 1 else "100"
FEW, MANY = ["--pairs", "10", "--sessions", "20000"], ["--pairs", "50", "--sessions", "100000"]
SERIES = {
    "upgrades, 20 vnics, 20,000 sessions": ([*FEW, "--upgrades"], "#0b6e4f"),
    "upgrades, 100 vnics, 100,000 sessions": ([*MANY, "--upgrades"], "#5fb49c"),
    "deaths, 20 vnics, 20,000 sessions": (FEW, "#c84630"),
    "deaths, 100 vnics, 100,000 sessions": (MANY, "#e8a598"),
}
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 300, 48, 20, 34, 44


def measure(options):
    command = [str(REPO / "tests/crash/run.sh"), *options, "--rounds", ROUNDS]
    out = subprocess.run(command, capture_output=True, text=True, check=True, timeout=3600).stdout
    return sorted(int(found) for found in re.findall(r"^round \d+: stood still for (\d+) ms", out, re.MULTILINE))


def text(x, y, content, anchor="middle", size=11):
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" font-size="{size}">{content}</text>'


def draw(figures):
    most = max(times[-1] for times in figures.values()) * 1.05
    x = lambda value: LEFT + (WIDTH - LEFT - RIGHT) * value / most
    y = lambda part: TOP + (HEIGHT - TOP - BOTTOM) * (1 - part)
    out = [text(WIDTH / 2, 18, "part of deaths and upgrades after which traffic stood still for no longer", size=12)]
    for part in (0, 0.25, 0.5, 0.75, 1):
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(part):.1f}" y2="{y(part):.1f}" stroke="#ddd"/>')
        out.append(text(LEFT - 6, y(part) + 4, f"{part:.0%}", "end"))
    for value in range(0, int(most) + 1, 50):
        out.append(text(x(value), HEIGHT - BOTTOM + 16, f"{value} ms"))
    for line, (name, times) in enumerate(figures.items()):
        colour = SERIES[name][1]
        points = [f"{x(times[0]):.1f},{y(0):.1f}"]
        for n, value in enumerate(times):
            points += [f"{x(value):.1f},{y(n / len(times)):.1f}", f"{x(value):.1f},{y((n + 1) / len(times)):.1f}"]
        out.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="2"/>')
        at = (LEFT + 300 * (line % 2), HEIGHT - 22 + 14 * (line // 2))
        out.append(f'<rect x="{at[0]}" y="{at[1]}" width="10" height="10" fill="{colour}"/>')
        out.append(text(at[0] + 14, at[1] + 9, name, "start", 10))
    return out


def main():
    figures = {}
    for name, (options, _) in SERIES.items():
        figures[name] = times = measure(options)
        print(f"{name}: {len(times)}, median {times[len(times) // 2]} ms, worst {times[-1]} ms", flush=True)
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif">',
           '<rect width="100%" height="100%" fill="white"/>', *draw(figures), "</svg>"]
    (REPO / "docs/stand-still.svg").write_text("\n".join(svg) + "\n", encoding="utf-8")
    (REPO / "docs/stand-still.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


main()
