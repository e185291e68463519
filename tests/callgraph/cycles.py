#!/usr/bin/env python3
"""cycles.py BIN: fails when functions of the library can call themselves in a new way.

A peer must not choose how deep the stack gets. So every cycle of the call graph is listed in
cycles.tsv with the reason why it is bounded. gcc writes the direct calls (-fcallgraph-info). A call
through a field of a struct leads to all functions that are assigned to a field of that name, a call
through a table to all functions in it; calls of user code lead nowhere, and the functions that make
them are listed, too. Callbacks that are given to libuv are called by uv_run(), or by uv_walk(). Edges
that the work list (base/threads/work_list.h) or another queue takes over are cut, as cycles.tsv says.

BIN is where Bazel puts the headers that protoc-c writes. `./dev lint` calls this.
"""
import collections
import concurrent.futures
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDERS = ("base", "net", "rendezvous", "rpc", "rref")


def sources():
    return subprocess.run(["git", "ls-files", *(f + "/*.[ch]" for f in FOLDERS)], check=True,
                          capture_output=True, text=True).stdout.split()


def compile_one(bin_dir, tmp, name):
    """The lines of the call graph of one file."""
    out = os.path.join(tmp, name.replace("/", "+")[:-2])
    subprocess.run(["gcc", "-std=gnu11", "-D_GNU_SOURCE", "-I.", "-I" + bin_dir, "-O0", "-S", "-w",
                    "-fcallgraph-info", "-o", out + ".s", name], check=True)
    with open(out + ".ci", encoding="utf-8") as file:
        return file.readlines()


def short(title):
    """A static function is "rpc/wire/value.c:free_bytes", others just have their name."""
    path, _, name = title.rpartition(":")
    return os.path.normpath(path) + ":" + name if path else name


EDGE = re.compile(r'edge: \{ sourcename: "([^"]*)" targetname: "([^"]*)"(?: label: "([^"]*)")?')
NODE = re.compile(r'node: \{ title: "([^"]*)"')
CALL = re.compile(r'((?:\w+(?:\[\w+\])?(?:->|\.))*\w+(?:\[[^\]]*\])?)\)?\s*\(')
TABLE = re.compile(r'(\w+)\[\w*\]\)?\s*(?:\([^={};]*\))?\s*=\s*\{([^{}]*)\};')
UV_CALL = re.compile(r'\b(uv_\w+)\(([^;{}]*?)\)\s*(?:;|\)|!=|\|\|)')


def read_table():
    rows = collections.defaultdict(list)
    with open(os.path.join(HERE, "cycles.tsv"), encoding="utf-8") as file:
        for line in file:
            if line.strip() and not line.startswith("#"):
                kind, what, why = line.rstrip("\n").split("\t")
                rows[kind].append((what.split(), why))
    return rows


def cycles_of(edges):
    """The strongly connected components that have a cycle (Tarjan, without recursion)."""
    index, low, stack, on_stack, found = {}, {}, [], set(), []
    for root in sorted(edges):
        if root in index:
            continue
        work = [(root, iter(sorted(edges[root])))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, rest = work[-1]
            for to in rest:
                if to not in index:
                    index[to] = low[to] = len(index)
                    stack.append(to)
                    on_stack.add(to)
                    work.append((to, iter(sorted(edges.get(to, ())))))
                    break
                if to in on_stack:
                    low[node] = min(low[node], index[to])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    group = set()
                    while node not in group:
                        group.add(stack.pop())
                    on_stack -= group
                    if len(group) > 1 or node in edges.get(node, ()):
                        found.append(group)
    return found


def main():
    bin_dir = sys.argv[1]
    names = sources()
    text = {name: open(name, encoding="utf-8").read() for name in names}
    with tempfile.TemporaryDirectory() as tmp, \
            concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = [pool.submit(compile_one, bin_dir, tmp, n) for n in names if n.endswith(".c")]
        lines = [line for job in jobs for line in job.result()]

    functions = set()
    for line in lines:
        match = NODE.match(line)
        if match:
            functions.add(short(match.group(1)))
    by_name = collections.defaultdict(set)
    for function in functions:
        by_name[function.rpartition(":")[2]].add(function)

    # Which functions a field may hold: ".field = function", "->field = function", and the tables.
    table = read_table()
    targets = collections.defaultdict(set)
    def named(name, path=""):
        """Functions of that name; of this file if there is one there."""
        here = {f"{path}:{name}"} & functions
        return here or ({name} if ":" in name or name == "-" else by_name.get(name, set()))

    for path, body in text.items():
        for field, function in re.findall(r'(?:->|\.)(\w+)\s*=\s*&?(\w+)\s*[,;}]', body):
            targets[field] |= named(function, path)
    tables = {}
    for path, body in text.items():
        for name, functions_in_it in TABLE.findall(body):
            found = [named(function, path) for function in re.findall(r'=\s*(\w+)', functions_in_it)]
            tables[path, name] = set().union(*found)
    from_libuv = collections.defaultdict(set)
    for path, body in text.items():
        for called_uv, arguments in UV_CALL.findall(body):
            for word in re.findall(r'\w+', arguments):
                if f"{path}:{word}" in functions:
                    from_libuv["uv_walk" if called_uv == "uv_walk" else "uv_run"].add(f"{path}:{word}")
    functions |= set(from_libuv)
    rows = [(re.compile(what[0]), {f for name in what[1:] for f in named(name) or {name}})
            for what, _ in table["field"]]
    users = [(re.compile(what[0]), set(what[1:])) for what, _ in table["user"]]

    def called(path, near):
        """What the first call through a pointer in `near` may reach; None: nobody knows."""
        for expression in CALL.findall(near):
            for pattern, functions_that_call in users:
                if pattern.fullmatch(expression):
                    return functions_that_call
            for pattern, row_targets in rows:
                if pattern.fullmatch(expression):
                    return row_targets - {"-"}
            array = tables.get((path, expression.partition("[")[0]))
            if "[" in expression and array:
                return array
            field = re.split(r"->|\.", expression)[-1]
            if expression != field and targets.get(field):
                return targets[field]
        return None

    problems = [f"there is no function {name}: correct the `field` row of {what[0]}"
                for what, _ in table["field"] for name in what[1:]
                if name != "-" and not named(name) & functions]
    edges = collections.defaultdict(set, from_libuv)
    calls_user = set()
    for line in lines:
        match = EDGE.match(line)
        if not match:
            continue
        source, target, where = short(match.group(1)), match.group(2), match.group(3)
        if target != "__indirect_call":
            edges[source].add(short(target))
            continue
        path, number = where.split(":")[:2]
        path = os.path.normpath(path)
        if path not in text:
            continue  # an inline function of a system header
        near = " ".join(text[path].splitlines()[int(number) - 1:int(number) + 2])
        reached = called(path, near)
        if reached is None:
            problems.append(f"{path}:{number}: cannot tell what {source} calls: {near.strip()}\n"
                            "    add a `field` or a `user` row")
        elif any(reached is functions_that_call for _, functions_that_call in users):
            calls_user.add(source)
            if source not in reached:
                problems.append(f"{path}:{number}: {source} calls user code: add it to a `user` row "
                                "if that cannot lead back to it without end")
        else:
            edges[source] |= reached

    for _, listed_users in users:
        for function in sorted(listed_users - calls_user):
            problems.append(f"{function} no longer calls user code: remove it from its `user` row")

    for what, _ in table["cut"]:
        source, cut = what[0], set(what[1:])
        if source not in edges or not (cut & edges[source] or cut == {"*"}):
            problems.append(f"there is no edge to cut from {source}: remove the `cut` row")
        edges[source] = set() if cut == {"*"} else edges[source] - cut

    found = cycles_of({s: {t for t in to if t in functions} for s, to in edges.items()})
    listed = [set(what) for what, _ in table["cycle"]]
    for cycle in found:
        if cycle not in listed:
            calls = [f"    {source} -> {' '.join(sorted(edges[source] & cycle))}"
                     for source in sorted(cycle)]
            problems.append("new cycle: add a `cycle` row with the reason why it is bounded, or "
                            "break it:\n    " + " ".join(sorted(cycle)) + "\n" +
                            "\n".join(calls))
    for cycle in listed:
        if cycle not in found:
            problems.append("this cycle is gone: remove its row\n    " + " ".join(sorted(cycle)))
    for problem in problems:
        print(problem)
    if not problems:
        print(f"{len(functions)} functions, {len(found)} cycles, all of them bounded")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
