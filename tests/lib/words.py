#!/usr/bin/env python3
"""words.py: doc comments that do not begin with a verb or a noun, and lines over 100 columns.

Reads the Rust files of crates/, tests/ and fuzz/, tests included. Prints file:line of each doc
comment line that begins with one of WORDS, and of each line that is too long. String literals
and the bodies of macros may be longer, as rustfmt leaves them alone.

LEFT and LONG say how many a part of the tree still has. More fail, and fewer too: then lower the
number there.
"""
import re
import sys
from pathlib import Path

WORDS = "What|Who|Whose|Whom|Whoever|Whatever|Whether|Where|It is|It has|That"
COLUMNS = 100

# Doc comments still to be rewritten, by crate (or "tests", "fuzz"). Others have none.
LEFT = {
    "tests": 49,
}

# Lines that are still too long, in the same way.
LONG = {
    "tests": 4,
}

REPO = Path(__file__).resolve().parents[2]
DOC = re.compile(rf"\s*//[/!] ({WORDS})\b")
MACRO = re.compile(r"\b\w+!(?: \w+)?\s*([(\[{])")
# Strings, also raw ones; characters; comments. All that could hold a bracket or a quote.
TEXT = re.compile(
    r'b?r(#*)".*?"\1'
    r'|b?c?"(?:\\.|[^"\\])*"'
    r"|b?'(?:\\.[^']*|[^'\\\n])'"
    r"|//[^\n]*|/\*.*?\*/",
    re.DOTALL,
)


def emptied(found):
    """A literal without its text, a comment as it is but for brackets; the lines stay."""
    text = found[0]
    if text.startswith("//"):
        return re.sub(r"[()\[\]{}]", ".", text)
    return '""' + "\n" * text.count("\n")


def bodies(text):
    """The spans of the macro calls in a text without literals."""
    spans, end = [], 0
    for call in MACRO.finditer(text):
        if call.start() < end or "//" in text[text.rfind("\n", 0, call.start()) + 1 : call.start()]:
            continue
        depth, end = 1, call.end()
        while depth and end < len(text):
            depth += (text[end] in "([{") - (text[end] in ")]}")
            end += 1
        spans.append((call.start(), end))
    return spans


def complaints(path):
    """The lines of a file that begin with one of WORDS, and those that are too long."""
    whole = path.read_text(encoding="utf-8")
    text = TEXT.sub(emptied, whole)
    spans, at, begun, long = bodies(text), 0, [], []
    for number, (line, full) in enumerate(zip(text.split("\n"), whole.split("\n")), 1):
        place = f"{path.relative_to(REPO)}:{number}"
        if doc := DOC.match(full):
            begun.append(f"{place}: a doc comment begins with a verb or a noun, not {doc[1]!r}")
        comment = full.lstrip().startswith("//")
        in_macro = any(first < at + len(line) and at < end for first, end in spans)
        if len(full if comment else line) > COLUMNS and (comment or not in_macro):
            long.append(f"{place}: {len(full)} columns, and {COLUMNS} are allowed")
        at += len(line) + 1
    return begun, long


def main():
    parts = {path.name: path for path in sorted((REPO / "crates").iterdir()) if path.is_dir()}
    parts |= {name: REPO / name for name in ("tests", "fuzz")}
    wrong = False
    for name, root in parts.items():
        files = [path for path in sorted(root.rglob("*.rs")) if "target" not in path.parts]
        of_files = [complaints(path) for path in files]
        for kind, (table, left) in enumerate((("LEFT", LEFT), ("LONG", LONG))):
            found = [line for of_file in of_files for line in of_file[kind]]
            if len(found) != left.get(name, 0):
                wrong = True
                print("\n".join(found))
                print(f"{name}: {len(found)} such lines, and {table} says {left.get(name, 0)}")
    if wrong:
        sys.exit(1)
    print("doc comments begin with verbs and nouns, lines end in time")


main()
