#!/usr/bin/env python3
"""The page that bench/report.py makes: well-formed, complete, and in need of nothing else.

    report_test.py REPORT.PY SAMPLE.TSV RESULTS.TSV INDEX.HTML

The last two are the results in the tree and the page beside them, which must belong together.
"""

import os
import subprocess
import sys
import tempfile
import unittest
from html.parser import HTMLParser

REPORT, SAMPLE, RESULTS, INDEX = sys.argv[1:5]
VOID = {"meta", "br", "hr", "img", "input", "link"}


def make(tsv):
    """What the generator makes of some results, as text."""
    with tempfile.TemporaryDirectory() as folder:
        index = os.path.join(folder, "index.html")
        subprocess.run([sys.executable, REPORT, tsv, index], check=True)
        with open(index, encoding="utf-8") as page:
            return page.read()


def lines_of(path):
    with open(path, encoding="utf-8") as lines:
        return [line.rstrip("\n").split("\t") for line in lines]


class Page(HTMLParser):
    """Reads a page, and notes what is open, what is said and what is referred to."""

    def __init__(self, text):
        super().__init__()
        self.open, self.words, self.references, self.mistakes = [], [], [], []
        self.feed(text)
        self.close()
        self.mistakes += ["<%s> is never closed" % tag for tag in self.open]

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)
        self.references += [value for name, value in attrs if name in ("href", "src", "srcset")]

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.mistakes.append("</%s> closes something else, line %d" % (tag, self.getpos()[0]))

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.append(" ".join(data.split()))


class TheSample(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.text = make(SAMPLE)
        cls.page = Page(cls.text)

    def test_is_well_formed(self):
        self.assertTrue(self.text.startswith("<!DOCTYPE html>"))
        self.assertEqual(self.page.mistakes, [])

    def test_shows_every_result(self):
        said = "\n".join(self.page.words)
        results = [line for line in lines_of(SAMPLE) if line[0] == "result"]
        self.assertEqual(self.text.count('<span class="track"><b'), len(results))
        for _, _, figure, _, who, *_ in results:
            self.assertIn(figure, said)
            self.assertIn(who, said)
        for value in ("15.9 µs", "42.2 µs", "5,300 µs", "390,836/s", "0.027 ns", "178 ns"):
            self.assertIn(value, said)

    def test_compares_with_tether(self):
        self.assertIn("2.66× faster", self.page.words)  # raw TCP
        self.assertIn("18.3× slower", self.page.words)  # gRPC: less of what more is better of

    def test_shows_goals_and_whether_they_were_met(self):
        said = "\n".join(self.page.words)
        for text in ("64 B against raw TCP", "64 outstanding", "at most 2.50×", "at least 300,000/s"):
            self.assertIn(text, said)
        self.assertEqual(self.page.words.count("met"), 2)
        self.assertEqual(self.page.words.count("missed"), 1)
        self.assertIn("goal 39.8 µs", self.page.words)

    def test_shows_notes_once_and_the_machine(self):
        self.assertEqual(self.page.words.count("not installed: Cap'n Proto (libcapnp-dev)"), 1)
        self.assertIn("A <fast> & small one, 2 online", self.page.words)
        self.assertIn("Measured 2026-01-02 03:04 UTC, revision 0123abc, in 82 s.", self.page.words)

    def test_needs_nothing_else(self):
        self.assertTrue(self.page.references)
        for reference in self.page.references:
            self.assertTrue(reference.startswith("#"), reference)
        for outside in ("http:", "https:", "url(", "@import", "<link", "<img"):
            self.assertNotIn(outside, self.text)

    def test_is_light_and_dark(self):
        for part in ("prefers-color-scheme:dark", "data-theme=dark", 'id="theme"'):
            self.assertIn(part, self.text)


class Mistakes(unittest.TestCase):
    def refused(self, line):
        with tempfile.NamedTemporaryFile("w", suffix=".tsv") as tsv:
            tsv.write("took\trpc\t1\n" + line + "\n")
            tsv.flush()
            done = subprocess.run(
                [sys.executable, REPORT, tsv.name, os.devnull], stderr=subprocess.PIPE, text=True
            )
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("line 2: ", done.stderr)

    def test_a_kind_that_is_not_known(self):
        self.refused("rumour\trpc\tit is fast")

    def test_fields_that_are_missing(self):
        self.refused("result\trpc\tcall\tsame")

    def test_a_number_that_is_none(self):
        self.refused("result\trpc\tcall\tsame\twho\tus\tless\tfast\t1\t2")


class TheTree(unittest.TestCase):
    def test_has_the_page_of_its_results(self):
        with open(INDEX, encoding="utf-8") as page:
            self.assertTrue(
                page.read() == make(RESULTS), "bench/report is old: bench/report.py makes it anew"
            )


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
