#!/usr/bin/env python3
"""Writes docs/api.md, to standard output: what the public headers declare, with their comments.

    api.py XML-FOLDER HEADER...

Doxygen (see Doxyfile) says what there is: kind, name, line, comment. How it is declared, and the
headings in between, come from the header itself, so that nothing looks different here and there.
Declarations that follow each other without a blank line and without a comment of their own belong
to the comment before them.

A checksum of each header stands above its chapter: by it a test sees that this file is up to date
without having Doxygen.
"""
import hashlib
import re
import sys
import textwrap
import xml.etree.ElementTree as xml
from pathlib import Path

TOP = """# API

Made from the comments in the public headers by `./dev docs`: change it there. Rules for all of it:

- **Names**: `new`/`retain`/`release` for what is counted, `init`/`fini` for what you embed.
- **Order of arguments**: the object, what goes in, the time-out, `ret_…` for what comes out, `reterr`.
- **Ownership**: arguments are borrowed for the call; what comes out of `ret_…` is yours, and is set on
  success only; accessors lend. Where it is otherwise the comment says so: TAKES, LENDS.
- **Errors**: zero is success; `reterr` (may be NULL) gets one sentence on what is wrong, where, and
  what to do. [operations.md](operations.md) has a line on each.

| header | what is in it |
| --- | --- |
"""


class Item:
    """A declaration: the lines that it takes (from 1, both included) and its comment."""

    def __init__(self, first, last, comment):
        self.first, self.last, self.comment = first, last, comment


def comment_of(element):
    found = element.find("detaileddescription//verbatim")
    text = "" if found is None else "".join(found.itertext())
    return without_stars(text.strip().split("\n"))


def without_stars(lines):
    return "\n".join(re.sub(r"^\s*\*/?( |$)|\s*\*/$", "", line) for line in lines).strip()


def last_line(lines, first):
    """Where the declaration that begins on line `first` ends."""
    depth, at = 0, first
    while True:
        line = re.sub(r"/\*.*?(\*/|$)|^\s*\*.*", "", lines[at - 1])
        if lines[first - 1].startswith("#define"):
            if not line.endswith("\\"):
                return at
        else:
            depth += line.count("{") - line.count("}")
            if depth == 0 and (line.rstrip().endswith((";", "}")) or ";" in line):
                return at
        at += 1


def items_of(folder, compound, lines):
    """The public declarations of a header, in their order."""
    places = {}
    elements = list(compound.iter("memberdef"))
    for inner in compound.iter("innerclass"):
        elements.append(xml.parse(folder / (inner.get("refid") + ".xml")).getroot()[0])
    for element in elements:
        name = element.findtext("name") or element.findtext("compoundname")
        first = int(element.find("location").get("line"))
        if re.search(r"__|_H$|^TETHER_HERE_TEXT|^X$", name) or lines[first - 1].startswith("}"):
            continue  # internal, a guard, or the second name of a struct
        places[first] = Item(first, last_line(lines, first), comment_of(element))
    return [places[first] for first in sorted(places)]


def declaration(lines, item):
    text = lines[item.first - 1 : item.last]
    macro = re.match(r"#define \w+\([^)]*\)", text[0])
    if macro and "STATUS_MAP" not in text[0]:
        return macro.group(0)  # without its value, which is no part of the API
    code = "\n".join(text).replace("TETHER_API ", "")
    code = re.sub(r"^static inline (.*\))\n\{.*", r"\1;", code, flags=re.S)
    code = re.sub(r"\s*TETHER_PRINTF\(\d, \d\)", "", code)
    if "{" not in code and not code.startswith("#"):
        code = unindent(code)
    return code


def unindent(code):
    """Arguments line up with the bracket again, now that TETHER_API is gone; short ones on one line."""
    head, _, tail = code.partition(";")
    flat = re.sub(r"\s+", " ", head).replace("( ", "(")
    if len(flat) + len(tail) < 98:
        return flat + ";" + tail
    lines = head.split("\n")
    indent = lines[0].index("(") + 1
    return "\n".join([lines[0]] + [" " * indent + line.strip() for line in lines[1:]]) + ";" + tail


def prose(paragraph):
    """A paragraph as Markdown: names as code, and nothing that Markdown takes for something else."""
    parts = re.split(r"(`[^`]*`)", " ".join(paragraph))
    for i in range(0, len(parts), 2):
        text = parts[i].replace("<", "&lt;")
        text = re.sub(r"(\b(?:tether_\w+(?:\(\))?|TETHER_[A-Z_]+|\w+\(\)))", r"`\1`", text)
        parts[i] = re.sub(r"\b(\w+://)(?!\w)", r"`\1`", text)
    text = re.sub(r"^([A-Z][a-z]+(?: [a-z]+)*):", r"**\1:**", "".join(parts))
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)


def markdown(comment):
    out = []
    for block in re.split(r"\n\s*\n", comment):
        paragraph = []
        for line in block.split("\n") + [None]:
            indented = line is not None and line.startswith("    ")
            if paragraph and (line is None or indented != paragraph[0].startswith("    ")):
                if paragraph[0].startswith("    "):
                    out.append("```c\n" + "\n".join(l[4:] for l in paragraph) + "\n```")
                else:
                    out.append(prose(paragraph))
                paragraph = []
            if line is not None:
                paragraph.append(line)
    return "\n\n".join(out).replace("```\n\n```c\n", "\n")


def entries_of(folder, compound, lines):
    """What stands between blank lines: (line, Markdown), a declaration or several and their text."""
    groups = []
    for item in items_of(folder, compound, lines):
        if groups and not item.comment and item.first == groups[-1][-1].last + 1:
            groups[-1].append(item)
        else:
            groups.append([item])
    for group in groups:
        code = "\n".join(declaration(lines, item) for item in group)
        yield group[0].first, f"```c\n{code}\n```\n\n{markdown(group[0].comment)}"


def headings_of(lines):
    """The headings, with the text below some of them: (line, Markdown)."""
    for at, line in enumerate(lines, 1):
        heading = re.match(r"/\* ---- (.*?)(?: -+.*|$)", line)
        if heading:
            end = next(i for i in range(at, len(lines)) if "*/" in lines[i - 1])
            yield at, f"### {heading.group(1)}\n\n{markdown(without_stars(lines[at:end]))}"


def chapter(path, folder, compound):
    source = Path(path).read_bytes()
    lines = source.decode().split("\n")
    parts = sorted([*headings_of(lines), *entries_of(folder, compound, lines)])
    checksum = hashlib.sha256(source).hexdigest()[:16]
    top = f"<!-- {path} {checksum} -->\n\n## {path}\n\n{markdown(comment_of(compound))}"
    return "\n\n".join([top] + [text.strip() for _, text in parts])


def main():
    folder, headers = Path(sys.argv[1]), sys.argv[2:]
    compounds = {}
    for entry in xml.parse(folder / "index.xml").getroot().iter("compound"):
        if entry.get("kind") == "file":
            compound = xml.parse(folder / (entry.get("refid") + ".xml")).getroot()[0]
            compounds[compound.find("location").get("file")] = compound
    text = TOP
    for path in headers:
        summary = re.split(r"\.\s", comment_of(compounds[path]) + " ")[0].replace("\n", " ")
        text += f"| [{path}](#{re.sub('[^a-z_-]', '', path)}) | {summary} |\n"
    text += "\n" + "\n\n".join(chapter(path, folder, compounds[path]) for path in headers)
    print(text)


if __name__ == "__main__":
    main()
