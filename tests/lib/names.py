#!/usr/bin/env python3
"""names.py: names of types, which are unique in a crate.

Fails with each name that two types of a crate have which others of its files can see (`pub`, `pub(crate)`,
`pub(super)`), and each type with `impl` blocks in another folder than its own. Reads crates/*/src, tests apart.
"""
import re
import sys
from collections import defaultdict
from pathlib import Path

from sources import read

REPO = Path(__file__).resolve().parents[2]

# Words of two protocols each, always written with their module: `igmp::Query`.
TWICE = {("packet", "Query"), ("packet", "Tcp")}
# Types with an `impl` block elsewhere. The name of a drop reason is in the list of the stages, above the number.
APART = {("datapath", "DropReason")}

TYPE = re.compile(r"^(?:(pub)(?:\([^)]*\))? )?(?:unsafe )?(struct|enum|union|trait|type) (\w+)", re.MULTILINE)
IMPL = re.compile(r"^(?:unsafe )?impl(?:<[^{]*?>)? (\w+)(?:<[^{]*?>)?\s*(?:where[^{]*)?\{", re.MULTILINE)


def folder(path):
    """Where a module and the modules below it are: `x` of x.rs with x/, x/mod.rs and x/y.rs."""
    below = path.with_suffix("")
    return below if below.is_dir() else path.parent


def check(root):
    """What is wrong with the types of a crate."""
    crate = root.parent.name
    files = [path for path in root.rglob("*.rs") if not {"tests", "tests.rs"} & set(path.relative_to(root).parts)]
    seen, homes = defaultdict(list), defaultdict(set)
    texts = {path: read(path) for path in sorted(files)}
    for path, text in texts.items():
        for visible, kind, name in TYPE.findall(text):
            homes[name].add(folder(path))
            if visible:
                seen[name].append(str(path.relative_to(REPO)))
    for name, where in sorted(seen.items()):
        if len(where) > 1 and (crate, name) not in TWICE:
            yield f"{crate}: several types are called {name}: {', '.join(where)}"
    for path, text in texts.items():
        for name in IMPL.findall(text):
            if name in homes and folder(path) not in homes[name] and path.parent not in homes[name] and (crate, name) not in APART:
                yield f"{crate}: {path.relative_to(REPO)} has an impl block of {name}, which is of another folder"


def main():
    wrong = [line for root in sorted((REPO / "crates").glob("*/src")) for line in check(root)]
    if wrong:
        sys.exit("\n".join(wrong))
    print("names are unique")


main()
