"""block.py write|check PAGE NAME <OUTPUT: compares OUTPUT with the block of a page below <!-- capture: NAME -->, or writes it there.

Numbers, times and the padding of columns do not count: a block whose shape is that of OUTPUT is left alone.
"""
import difflib
import re
import sys

# What differs from run to run, the longest first. A number is one that stands alone: not in an address, nor in a name.
VARIABLE = [
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?( UTC)?|\b\d\d:\d\d:\d\d\.\d+", "TIME"),
    (r"(?:\b\d[\d.]* (?:ms|s|min|h|d|days?)\b ?)+", "SPAN "),
    (r"(\d\.\d+\.\d+\.\d+:)(?:3[2-9]|[456]\d)\d{3}\b", r"\1PORT"),
    (r"(?:[0-9a-f]{2}:){5}[0-9a-f]{2}(?<!52:54:00:00:00:0\d)", "MAC"),
    (r"[▁▂▃▄▅▆▇█]+", ""),
    (r"(?<![\w.:/#-])[#]?\d[\d.,]*[kMG]?(?:bit/s)?(?![\w:/-]|\.\d)", "N"),
]


def shape(text):
    lines = []
    for line in text.splitlines():
        for pattern, word in VARIABLE:
            line = re.sub(pattern, word, line)
        lines.append(" ".join(line.split()))
    return lines


def main():
    mode, page, name = sys.argv[1:]
    new = re.sub(r"\n{3,}", "\n\n", "\n".join(line.rstrip() for line in sys.stdin.read().splitlines()).strip("\n") + "\n")
    with open(page, encoding="utf-8") as file:
        text = file.read()
    found = list(re.finditer(rf"^<!-- capture: {re.escape(name)} -->\n```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    if len(found) != 1:
        sys.exit(f"{page} has {len(found)} blocks below <!-- capture: {name} -->, and has to have one")
    old = found[0][1]
    if shape(old) == shape(new):
        return
    if mode == "check":
        sys.stdout.writelines(f"{line}\n" for line in difflib.unified_diff(shape(old), shape(new), f"{page}: {name}", "what is printed", lineterm="", n=1))
        sys.exit(1)
    with open(page, "w", encoding="utf-8") as file:
        file.write(text[: found[0].start(1)] + new + text[found[0].end(1) :])
    print(f"{page}: {name} is new")


main()
