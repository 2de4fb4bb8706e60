"""sources.py: Rust files as the checks beside this one read them."""
import re

TESTS = r"#\[cfg\(.*test.*\)\]\s*(?:pub(?:\([^)]*\))? )?mod \w+"


def read(path):
    """A file without comments, and without the tests: those at its end, and modules of their own."""
    text = re.sub(r"^\s*//.*$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return re.split(TESTS + r"\s*\{", re.sub(TESTS + ";", "", text))[0]
