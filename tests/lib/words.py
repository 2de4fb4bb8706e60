#!/usr/bin/env python3
"""words.py: doc comments that do not begin with a verb or a noun, and lines over 100 columns.

Reads the Rust files of crates/, tests/ and fuzz/, tests included. Prints file:line of each doc
comment line that begins with one of WORDS, and of each line that is too long. String literals
and the bodies of macros may be longer, as rustfmt leaves them alone.
"""
import re
import sys
from pathlib import Path

WORDS = "What|Who|Whose|Whom|Whoever|Whatever|Whether|Where|It is|It has|That"
COLUMNS = 100

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
    spans, at, found = bodies(text), 0, []
    for number, (line, full) in enumerate(zip(text.split("\n"), whole.split("\n")), 1):
        place = f"{path.relative_to(REPO)}:{number}"
        if doc := DOC.match(full):
            found.append(f"{place}: a doc comment begins with a verb or a noun, not {doc[1]!r}")
        comment = full.lstrip().startswith("//")
        in_macro = any(first < at + len(line) and at < end for first, end in spans)
        if len(full if comment else line) > COLUMNS and (comment or not in_macro):
            found.append(f"{place}: {len(full)} columns, and {COLUMNS} are allowed")
        at += len(line) + 1
    return found


def main():
    files = [path for root in ("crates", "tests", "fuzz") for path in (REPO / root).rglob("*.rs")]
    files = sorted(path for path in files if "target" not in path.relative_to(REPO).parts)
    if found := [line for path in files for line in complaints(path)]:
        sys.exit("\n".join(found))
    print("doc comments begin with verbs and nouns, lines end in time")


main()
