#!/usr/bin/env python3
"""Usage: source_test.py SOURCE.PY. Compiles a small file with all its mutants, and runs them one by one."""
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(sys.argv[1]).resolve().parent))
import source  # noqa: E402

TEXT = r"""
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>

static pthread_mutex_t mu;
static int n = 5;

static void add(int more) /* if (this) were code */
{
    pthread_mutex_lock(&mu);
    n += more;
    pthread_mutex_unlock(&mu);
}

static bool is_large(int i)
{
    return i > 6 && i != 9;
}

int main(void)
{
    if (n < 6)
        add(2);
    else
        add(3 + 4);
    printf("%d %d\n", n, is_large(n));
    return 0;
}
"""
# The output of the program with each mutant; "7 1" without any.
EXPECTED = {
    ("empty function", "add"): "5 0",
    ("drop", "n += more;"): "5 0",
    ("sign", "n += more;"): "3 0",
    ("no lock", "add: &mu"): "7 1",
    ("return", "return i > 6 && i != 9;"): "7 0",
    ("and/or", "i > 6 && i != 9"): "7 1",
    ("relation", "i > 6"): "7 1",
    ("relation", "i != 9"): "7 0",
    ("drop clause", "i > 6"): "7 1",
    ("drop clause", "i != 9"): "7 1",
    ("constant", "6"): ("7 0", "7 1"),  # in is_large(), in main()
    ("constant", "9"): "7 1",
    ("negate", "n < 6"): "12 1",
    ("relation", "n < 6"): "7 1",
    ("drop", "add(2);"): "5 0",
    ("constant", "2"): "8 1",
    ("drop", "add(3 + 4);"): "7 1",
    ("sum", "3 + 4"): "7 1",
    ("constant", "3"): "7 1",
    ("constant", "4"): "7 1",
    ("drop", 'printf("%d %d\\n", n, is_large(n));'): "",
    ("constant", "0"): "7 1",
}


def main():
    mutants = source.find("a.c", TEXT)
    for i, mutant in enumerate(mutants):
        mutant.id = i
        others = [edit for other in mutants[:i] for edit in other.edits]
        assert all(source.fits(edit, others) for edit in mutant.edits), mutant
    with tempfile.TemporaryDirectory() as folder:
        program = os.path.join(folder, "a.out")
        subprocess.run(
            ["gcc", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", "-o", program, "-x", "c", "-"],
            input=source.instrument(TEXT, mutants), text=True, check=True,
        )

        def prints(**env):
            return subprocess.run([program], env=env, text=True, stdout=subprocess.PIPE, check=False).stdout.strip()

        assert prints() == "7 1"
        seen = set()
        for mutant in mutants:
            key = (mutant.kind, mutant.was)
            seen.add(key)
            printed, expected = prints(TETHER_MUTANT=str(mutant.id)), EXPECTED[key]
            assert printed in expected if isinstance(expected, tuple) else printed == expected, (mutant, printed)
        assert seen == set(EXPECTED), set(EXPECTED) - seen

        reached = os.path.join(folder, "map")
        pathlib.Path(reached).write_bytes(bytes(65536))
        prints(TETHER_MUTANT_MAP=reached)
        marks = pathlib.Path(reached).read_bytes()
        names = {m.was for m in mutants if marks[m.id]}
        assert "add(2);" in names and "add(3 + 4);" not in names, names

    cut = source.Edit(5, 15, "", [(5, 15)])
    assert not source.fits(cut, [source.Edit(10, 20, "", [(10, 20)])])
    assert source.fits(cut, [source.Edit(0, 20, "", [(4, 20)])])
    print("all as expected")


main()
