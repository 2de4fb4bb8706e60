#!/usr/bin/env python3
"""imports.py: imports go down, between crates, between the folders of a crate and between its files.

Reads Cargo.toml, the `use` lines and the paths of crates/*/src, tests apart, and fails with
- each arrow that goes up the list CRATES, or FLOORS of a crate, and each module that is not there;
- a crate whose files have a larger circle than CIRCLES says, or a smaller one: then the number is
  to be lowered. A file and the one that it is a part of may import each other.
"""
import re
import sys
import tomllib
from pathlib import Path

from sources import read

# All crates, the lowest first.
CRATES = [
    "version", "layout", "point", "mem", "holder", "store", "packet", "model", "manual", "api", "control",
    "uplink", "vhost",
    "guest-driver", "guest", "datapath", "butterflyd", "butterfly", "bench",
]

# Files and folders of a crate's src, the lowest first. lib.rs and main.rs are above all of them.
FLOORS = {
    "datapath": [
        "engine", "ip", "session", "world", "overlay", "stages", "worker", "plane", "endpoint",
        "report", "checkpoint", "switch", "harness",
    ],
    "vhost": ["maps", "sigbus", "memory", "dirty", "net", "ring", "port", "control"],
    "butterflyd": [
        "log", "config", "host", "holding", "events", "recorder", "checkpoint", "poison", "metrics",
        "keeper", "dataplane", "wires", "upgrade", "handlers", "proof", "run",
    ],
    "butterfly": ["failure", "text", "line", "daemon", "tree", "help", "commands", "run"],
}

# The largest circle of a crate, where it has one of more than two files.
CIRCLES = {}

REPO = Path(__file__).resolve().parents[2]


def named(module):
    """A module as Rust writes it."""
    return "::".join(module) or "(root)"


def module(path, root):
    """Name of a file's module, as a tuple."""
    parts = path.relative_to(root).with_suffix("").parts
    return parts[:-1] if parts[-1] in ("mod", "lib", "main") else parts


def leaves(tree, prefix=()):
    """The paths of a `use` tree."""
    tree = " ".join(tree.split())
    group = re.fullmatch(r"(.*?)\{(.*)\}", tree)
    if not group:
        yield prefix + tuple(word.split(" as ")[0].strip() for word in tree.split("::"))
        return
    inner = prefix + tuple(word for word in group[1].split("::") if word)
    depth, begun = 0, 0
    for at, letter in enumerate(group[2] + ","):
        depth += (letter == "{") - (letter == "}")
        if letter == "," and depth == 0:
            if group[2][begun:at].strip():
                yield from leaves(group[2][begun:at].strip(), inner)
            begun = at + 1


class Crate:
    def __init__(self, root):
        files = [path for path in root.rglob("*.rs") if not {"tests", "tests.rs"} & set(path.relative_to(root).parts)]
        self.texts = {module(path, root): read(path) for path in files}
        self.passed_on = {}
        for name, text in self.texts.items():
            for tree in re.findall(r"^\s*pub(?:\([^)]*\))? use ([^;]+);", text, re.MULTILINE):
                for path in leaves(tree):
                    found = self.find(name, path)
                    if found and found[1]:
                        self.passed_on[(name, found[1])] = found[0]
        self.imports = {name: self.imported(name, text) for name, text in self.texts.items()}

    def find(self, here, path):
        """The module that a path leads to, and the word behind it."""
        at = here
        if path[0] == "crate":
            at, path = (), path[1:]
        elif path[0] in ("self", "super"):
            while path and path[0] in ("self", "super"):
                at, path = at[:-1] if path[0] == "super" else at, path[1:]
        elif here + path[:1] not in self.texts:
            return None
        while path and at + path[:1] in self.texts:
            at, path = at + path[:1], path[1:]
        return at, path[0] if path else None

    def imported(self, name, text):
        trees = re.findall(r"^\s*(?:pub(?:\([^)]*\))? )?use ([^;]+);", text, re.MULTILINE)
        paths = [path for tree in trees for path in leaves(tree)]
        rest = re.sub(r"^\s*(?:pub(?:\([^)]*\))? )?use [^;]+;", "", text, flags=re.MULTILINE)
        paths += [tuple(path.split("::")) for path in re.findall(r"\b(?:crate|super)(?:::\w+)+", rest)]
        found = set()
        for path in paths:
            target, word = self.find(name, path) or (name, None)
            for _ in range(5):
                target = self.passed_on.get((target, word), target)
            found.add(target)
        return (found & set(self.texts)) - {name}

    def circles(self):
        """Sets of files each of which leads to each (Tarjan)."""
        order, low, stack, found = {}, {}, [], []

        def visit(name):
            order[name] = low[name] = len(order)
            stack.append(name)
            for other in sorted(self.imports[name]):
                if other not in order:
                    visit(other)
                    low[name] = min(low[name], low[other])
                elif other in stack:
                    low[name] = min(low[name], order[other])
            if low[name] == order[name]:
                at = stack.index(name)
                found.append(sorted(stack[at:]))
                del stack[at:]

        for name in sorted(self.texts):
            if name not in order:
                visit(name)
        return found


def crates_up():
    """Crates that depend on one above them. What only their tests need is apart."""
    for manifest in sorted((REPO / "crates").glob("*/Cargo.toml")):
        here = manifest.parent.name
        if here not in CRATES:
            yield f"{here} is not in CRATES"
            continue
        content = tomllib.loads(manifest.read_text(encoding="utf-8"))
        tables = [content, *content.get("target", {}).values()]
        needs = {name for table in tables for kind in ("dependencies", "build-dependencies") for name in table.get(kind, {})}
        ours = sorted(name.removeprefix("butterfly-") for name in needs if name.startswith("butterfly-"))
        for other in ours:
            if other not in CRATES:
                yield f"{here} -> {other}, which is not in CRATES"
            elif CRATES.index(other) >= CRATES.index(here):
                yield f"{here} -> {other} goes up"


def files_up(name, crate):
    """Arrows between files of a crate that go up its floors, and modules that have none."""
    floors = {top: floor for floor, top in enumerate(FLOORS[name])}
    tops = {module[0] for module in crate.texts if module}
    yield from (f"{name}: {top} is not in FLOORS" for top in sorted(tops - set(floors)))
    yield from (f"{name}: FLOORS has {top}, and there is none" for top in sorted(set(floors) - tops))

    def floor(module):
        return floors.get(module[0]) if module else len(floors)

    for here, others in sorted(crate.imports.items()):
        for other in sorted(others):
            low, high = floor(here), floor(other)
            if low is not None and high is not None and low < high:
                yield f"{name}: {named(here)} -> {named(other)} goes up"


def circle(name, crate):
    """What is wrong with a crate's largest circle."""
    largest = max(crate.circles(), key=len)
    size, known = len(largest) if len(largest) > 2 else 0, CIRCLES.get(name, 0)
    if size != known:
        yield f"{name}: {size} files import each other, and CIRCLES says {known}: {', '.join(map(named, largest))}"


def main():
    sys.setrecursionlimit(10_000)
    wrong = list(crates_up())
    for root in sorted((REPO / "crates").glob("*/src")):
        name, crate = root.parent.name, Crate(root)
        if name in FLOORS:
            wrong += files_up(name, crate)
        wrong += circle(name, crate)
    if wrong:
        sys.exit("\n".join(wrong))
    print("imports go down")


main()
