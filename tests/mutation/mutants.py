#!/usr/bin/env python3
"""Mutation testing of rpc/ and rref/: does a test fail when a line of the library is wrong?

    ./dev mutants [FILES OR FOLDERS...] [COUNT] [--seed=N] [--out=FILE.tsv] [--budget=SECONDS] …

Happy path: choose COUNT mutants by the seed; write all of them into a scratch copy of HEAD, each behind
a switch (source.py); build the tests once; run each test once without a mutant, to learn how long it
takes and which mutants it reaches; then, for each mutant, run the tests that reach it, those first that
are quick or have killed many mutants, until one fails. Mutants that survive are tried again under the
address sanitizer, which sees leaks; mutants that take a lock away are tried under the thread sanitizer.

Outcomes: `killed` (a test failed twice in a row), `flaky` (a test failed once and passed when repeated),
`survived` (all tests that reach it pass), `unreached` (no test reaches it), `no build`. A test that takes
much longer than without the mutant has failed, too. Every test runs in a process namespace of its own, so
that nothing outlives it.

The results stand in a TSV file, a line a mutant, as soon as they are known; with the same file, a second
run goes on where the first stopped.
"""
import argparse
import collections
import concurrent.futures
import fnmatch
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import source  # noqa: E402

# How likely a mutant of a folder and of a kind is chosen. Constants are often equivalent.
FOLDER_WEIGHT = {"rpc/peer/": 3, "rpc/lane/": 3, "rpc/call/": 3, "rpc/serve/": 3, "rpc/group/": 3, "rpc/future/": 3, "rref/": 3}
KIND_WEIGHT = {"constant": 0.3, "empty function": 2, "no lock": 2, "sum": 0.5}

TEST_PACKAGES = ["base", "net", "rpc", "rref", "proc", "fuzz", "errors", "sim", "tools", "examples"]
# Not worth their time here: the simulation is a program of its own below.
SLOW = ["//tests/sim:rref_sim_test", "//tests/rref:depth_test"]
SIMULATION = ("//tests/sim:sim_range", ["1", "300", "1"])
COLUMNS = ["file", "line", "kind", "was", "now", "outcome", "by", "seconds"]


def run(command, **options):
    return subprocess.run(command, check=True, text=True, **options)


def output(command, **options):
    return run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, **options).stdout


class Test:
    def __init__(self, label, arguments=(), env=None, tags=()):
        self.label, self.arguments, self.env, self.tags = label, list(arguments), env or {}, set(tags)
        self.seconds = 0.0
        self.reaches = set()
        self.kills = collections.Counter()  # by file of the mutant

    def rank(self, file):
        return (0.2 + self.seconds) / (1 + 4 * self.kills[file] + sum(self.kills.values()))


class Tree:
    """The scratch copy of HEAD: a git worktree with a Bazel server of its own."""

    def __init__(self, folder, revision):
        self.folder = folder
        if not (folder / "WORKSPACE").exists():
            run(["git", "worktree", "prune"])
            run(["git", "worktree", "add", "-q", "--force", "--detach", str(folder), revision])
        else:
            run(["git", "checkout", "-q", "--force", "--detach", revision], cwd=folder)

    def bazel(self, *arguments):
        # Mutants do not belong into a cache that others share.
        quiet = ["--noshow_progress", "--ui_event_filters=-info", "--noremote_upload_local_results"]
        return subprocess.run(["nice", "-n", "10", "bazel", arguments[0], *quiet, *arguments[1:]], cwd=self.folder)

    def bin(self, config):
        return pathlib.Path(output(["bazel", "info", f"--config={config}", "bazel-bin"], cwd=self.folder).strip())

    def build(self, config, labels):
        if self.bazel("build", f"--config={config}", "--show_result=0", *labels).returncode != 0:
            sys.exit("mutants: the tree with the mutants does not build")
        return self.bin(config)

    def tests(self):
        scope = " + ".join(f"kind(cc_test, //tests/{package}/...)" for package in TEST_PACKAGES)
        found = []
        root = xml.etree.ElementTree.fromstring(
            output(["bazel", "query", "--noshow_progress", "--output=xml", scope], cwd=self.folder)
        )
        for rule in root.iter("rule"):
            env = {p[0].get("value"): p[1].get("value") for p in rule.findall("dict[@name='env']/pair")}
            tags = {s.get("value") for s in rule.findall("list[@name='tags']/string")}
            if rule.find("list[@name='args']/*") is None and "manual" not in tags and rule.get("name") not in SLOW:
                found.append(Test(rule.get("name"), env=env, tags=tags))
        found.append(Test(*SIMULATION, tags=["no_tsan"]))
        return found

    def close(self):
        subprocess.run(["bazel", "shutdown"], cwd=self.folder, check=False)
        run(["git", "worktree", "remove", "--force", str(self.folder)])


# ---- Choosing mutants and writing them into the tree ----


def compiles(tree, include, path, text):
    # -fsyntax-only would not warn of cases that fall through.
    flags = ["-std=gnu11", "-D_GNU_SOURCE", "-S", "-o", "/dev/null", f"-I{tree.folder}", f"-I{include}", "-x", "c", "-"]
    warnings = ["-Wall", "-Wextra", "-Wshadow", "-Wno-format-truncation", "-Werror"]
    folder = (tree.folder / path).parent
    done = subprocess.run(["gcc", *warnings, f"-iquote{folder}", *flags], input=text, text=True, capture_output=True, check=False)
    return done.returncode == 0


def choose(tree, include, patterns, count, seed):
    """Mutants that compile and fit each other, by file, and those that do not compile."""
    files = [
        f
        for f in output(["git", "ls-files", "rpc/*.c", "rref/*.c"], cwd=tree.folder).split()
        if not patterns or any(f == p or f.startswith(p.rstrip("/") + "/") or fnmatch.fnmatch(f, p) for p in patterns)
    ]
    if not files:
        sys.exit("mutants: no such files in rpc/ or rref/")
    rng = random.Random(seed)
    pool = []
    for file in files:
        weight = next((w for folder, w in FOLDER_WEIGHT.items() if file.startswith(folder)), 1)
        for mutant in source.find(file, (tree.folder / file).read_text()):
            # A key as in Efraimidis and Spirakis: the largest keys are a weighted sample.
            pool.append((rng.random() ** (1 / (weight * KIND_WEIGHT.get(mutant.kind, 1))), len(pool), mutant))
    pool.sort(reverse=True)
    queue = [mutant for _, _, mutant in pool]
    chosen, bad = collections.defaultdict(list), []
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as executor:
        while queue and sum(map(len, chosen.values())) < count:
            grown = take(queue, chosen, count - sum(map(len, chosen.values())))
            check = lambda file: split(tree, include, file, chosen[file])  # noqa: E731
            for file, (good, wrong) in zip(grown, executor.map(check, grown)):
                chosen[file] = good
                bad += wrong
    for i, mutant in enumerate(mutant for group in chosen.values() for mutant in group):
        mutant.id = i
    return chosen, bad


def take(queue, chosen, n):
    """Moves n mutants that fit the chosen ones from the queue to them: the files that got some."""
    grown, left = set(), []
    for mutant in queue:
        others = [edit for other in chosen[mutant.file] for edit in other.edits]
        if n == 0:
            left.append(mutant)
        elif all(source.fits(edit, others) for edit in mutant.edits):
            chosen[mutant.file].append(mutant)
            grown.add(mutant.file)
            n -= 1
    queue[:] = left
    return sorted(grown)


def split(tree, include, file, group):
    """The mutants of a group that compile, and those that do not."""
    text = (tree.folder / file).read_text()
    if compiles(tree, include, file, source.instrument(text, group)):
        return group, []
    good = [m for m in group if compiles(tree, include, file, source.instrument(text, [m]))]
    return good, [m for m in group if m not in good]


# ---- Running tests ----

SANITIZER_ENV = {
    "plain": {},
    "asan": {"ASAN_OPTIONS": "detect_leaks=1:strict_string_checks=1", "UBSAN_OPTIONS": "print_stacktrace=1"},
    "tsan": {"TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1"},
}
SLOWER = {"plain": 1, "asan": 4, "tsan": 10}


class Runner:
    def __init__(self, config, folder):
        self.config, self.bin = config, folder
        self.isolate = []
        namespace = ["unshare", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"]
        if subprocess.run([*namespace, "true"], stderr=subprocess.DEVNULL, check=False).returncode == 0:
            self.isolate = namespace
        if config == "tsan" and subprocess.run(["setarch", "-R", "true"], check=False).returncode == 0:
            self.isolate += ["setarch", "-R"]

    def usable(self, test):
        return not test.tags & {"no_sanitizer", f"no_{self.config}"} or self.config == "plain"

    def run(self, test, env, limit):
        """'passed', 'failed' or 'timed out', and the last line of the output that tells why."""
        package, name = test.label[2:].split(":")
        binary = self.bin / package / name
        runfiles = pathlib.Path(f"{binary}.runfiles") / "tether"
        with tempfile.TemporaryDirectory() as scratch:
            variables = {
                **{k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "USER")},
                **test.env, **SANITIZER_ENV[self.config], **env,
                "TEST_TMPDIR": scratch, "TMPDIR": scratch, "TEST_SRCDIR": str(runfiles.parent), "TEST_WORKSPACE": "tether",
            }
            with open(pathlib.Path(scratch) / "log", "w+b") as log:
                child = subprocess.Popen(
                    ["nice", "-n", "10", *self.isolate, str(binary), *test.arguments],
                    cwd=runfiles if runfiles.exists() else scratch,
                    env=variables, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                )
                try:
                    status = "passed" if child.wait(limit) == 0 else "failed"
                except subprocess.TimeoutExpired:
                    status = "timed out"
                try:
                    os.killpg(child.pid, 9)  # unshare takes everything in the namespace with it
                except ProcessLookupError:
                    pass
                child.wait()
                log.seek(0)
                lines = log.read().decode(errors="replace").splitlines()
        tells = [line for line in lines if "[  FAILED  ]" in line or "ERROR: " in line or "SUMMARY: " in line]
        return status, (tells[0] if tells else lines[-1] if lines else "")[:100].replace("\t", " ")


def measure(runner, tests, jobs, slowest, verbose):
    """Runs every test without a mutant, for its time and for what it reaches.

    Returns the tests that pass, and the mutants that only tests reach that take too long."""

    def one(test):
        with tempfile.NamedTemporaryFile() as reached:
            reached.truncate(65536)
            started = time.monotonic()
            status, why = runner.run(test, {"TETHER_MUTANT_MAP": reached.name}, slowest)
            test.seconds = time.monotonic() - started
            test.reaches = {i for i, byte in enumerate(pathlib.Path(reached.name).read_bytes()) if byte}
        if verbose or status != "passed":
            print(f"{test.label}: {status} in {test.seconds:.1f} s, reaches {len(test.reaches)} {why if status != 'passed' else ''}", flush=True)
        return status

    with concurrent.futures.ThreadPoolExecutor(jobs) as executor:
        statuses = list(zip(tests, executor.map(one, tests)))
    passed = [test for test, status in statuses if status == "passed"]
    slow = [test for test, status in statuses if status == "timed out"]
    return passed, set().union(*(test.reaches for test in slow)) - set().union(*(test.reaches for test in passed))


def judge(runner, mutant, tests, slow, budget):
    """Runs the tests that reach a mutant until one of them fails: (outcome, by)."""
    covering = [test for test in tests if mutant.id in test.reaches and runner.usable(test)]
    covering.sort(key=lambda test: test.rank(mutant.file))
    if not covering:
        return ("unreached", "but by a slow test" if mutant.id in slow else "")
    spent, maybe, skipped = 0.0, "", 0
    for test in covering:
        expected = test.seconds * SLOWER[runner.config]
        if spent + expected > budget and spent > 0:
            skipped += 1
            continue
        env = {"TETHER_MUTANT": str(mutant.id)}
        limit = 20 * SLOWER[runner.config] ** 0.5 + 4 * expected
        started = time.monotonic()
        status, why = runner.run(test, env, limit)
        if status == "failed" and runner.run(test, env, limit)[0] == "passed":
            status, maybe = "passed", f"{test.label} {why}"
        spent += time.monotonic() - started
        if status != "passed":
            test.kills[mutant.file] += 1
            return ("killed", f"{runner.config} {test.label} {status} {why}")
    if maybe:
        return ("flaky", f"{runner.config} {maybe}")
    return ("survived", f"{runner.config}: {len(covering) - skipped} of {len(covering)} tests")


class Results:
    def __init__(self, path):
        self.path, self.lock = path, threading.Lock()
        self.rows = {}
        if path.exists():
            for line in path.read_text().splitlines()[1:]:
                row = dict(zip(COLUMNS, line.split("\t")))
                self.rows[self.key(row)] = row

    @staticmethod
    def key(row):
        return row["file"], str(row["line"]), row["kind"], row["was"], row["now"]

    def knows(self, mutant):
        return self.key(vars(mutant)) in self.rows

    def put(self, mutant, outcome, by, seconds):
        with self.lock:
            row = {c: str(getattr(mutant, c)).replace("\t", " ") for c in COLUMNS[:5]}
            row.update(outcome=outcome, by=by.replace("\t", " "), seconds=f"{seconds:.0f}")
            self.rows[self.key(row)] = row
            text = "\t".join(COLUMNS) + "\n" + "".join("\t".join(r[c] for c in COLUMNS) + "\n" for r in self.rows.values())
            self.path.write_text(text)
            print(f"{outcome:9} {mutant.file}:{mutant.line} {mutant.kind}: {mutant.was[:60]} -> {mutant.now[:60]} [{by}]", flush=True)


def summary(results):
    counts = collections.Counter(row["outcome"] for row in results.rows.values())
    kills = collections.Counter(row["by"].split()[1] for row in results.rows.values() if row["outcome"] == "killed")
    print("mutants:", ", ".join(f"{n} {outcome}" for outcome, n in counts.most_common()))
    for label, n in kills.most_common(15):
        print(f"  {n:4} killed by {label}")


def main():
    parser = argparse.ArgumentParser(prog="./dev mutants", description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="*", help="files, folders or patterns in rpc/ and rref/, and how many mutants (50)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(".mutants.tsv"))
    parser.add_argument("--budget", type=float, default=90, help="seconds of tests for one mutant (90)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--kinds", default="", help="only these kinds, separated by commas")
    parser.add_argument("--tests", default="", help="only tests whose label matches one of these patterns, separated by commas")
    parser.add_argument("--slowest", type=float, default=600, help="leave out tests that take longer than this many seconds (600)")
    parser.add_argument("--tree", type=pathlib.Path, help="a folder for the scratch copy, which then stays")
    parser.add_argument("--no-sanitizers", action="store_true", help="do not try survivors under sanitizers")
    parser.add_argument("--list", action="store_true", help="only list the mutants")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    count = next((int(word) for word in options.what if word.isdigit()), 50)
    if count > 60000:
        sys.exit("mutants: at most 60000 at once")
    patterns = [word for word in options.what if not word.isdigit()]

    folder = options.tree or pathlib.Path(tempfile.mkdtemp()) / "tree"
    revision = output(["git", "rev-parse", "HEAD"]).strip()
    tree = Tree(folder, revision)
    try:
        work(tree, options, patterns, count)
    finally:
        if not options.tree:
            tree.close()
            shutil.rmtree(folder.parent, ignore_errors=True)


def work(tree, options, patterns, count):
    if options.kinds:
        kinds = set(options.kinds.split(","))
        KIND_WEIGHT.update({kind: 1e-9 for kind in ("drop", "negate", "drop clause", "relation", "constant", "return", "and/or", "empty function", "sum", "no lock", "sign") if kind not in kinds})
    include = tree.build("plain", ["//protos/..."])
    chosen, bad = choose(tree, include, patterns, count, options.seed)
    mutants = [mutant for group in chosen.values() for mutant in group]
    if options.list:
        for mutant in mutants:
            print(f"{mutant.file}:{mutant.line} {mutant.kind}: {mutant.was} -> {mutant.now}")
        return
    results = Results(options.out)
    for mutant in bad:
        if not results.knows(mutant):
            results.put(mutant, "no build", "", 0)
    for file, group in chosen.items():
        path = tree.folder / file
        path.write_text(source.instrument(path.read_text(), group))

    tests = tree.tests()
    if options.tests:
        patterns = options.tests.split(",")
        tests = [test for test in tests if any(fnmatch.fnmatch(test.label, pattern) for pattern in patterns)]
    plain = Runner("plain", tree.build("plain", [test.label for test in tests]))
    tests, slow = measure(plain, tests, options.jobs, options.slowest, options.verbose)

    def try_all(runner, group):
        def one(mutant):
            started = time.monotonic()
            outcome, by = judge(runner, mutant, tests, slow, options.budget * SLOWER[runner.config] ** 0.5)
            results.put(mutant, outcome, by, time.monotonic() - started)
            return outcome

        with concurrent.futures.ThreadPoolExecutor(options.jobs) as executor:
            return [m for m, outcome in zip(group, executor.map(one, group)) if outcome in ("survived", "flaky")]

    left = try_all(plain, [m for m in mutants if not results.knows(m)])
    if not options.no_sanitizers:
        for config, group in (("tsan", [m for m in left if m.needs == "tsan"]), ("asan", [m for m in left if not m.needs])):
            labels = sorted({t.label for t in tests for m in group if m.id in t.reaches})
            if labels:
                try_all(Runner(config, tree.build(config, labels)), group)
    summary(results)


if __name__ == "__main__":
    main()
