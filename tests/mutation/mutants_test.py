#!/usr/bin/env python3
"""Usage: mutants_test.py MUTANTS.PY. Runs the parts of the tool that need no Bazel: the folders of its tests,
--help, and the choice of mutants in a file."""
import pathlib
import subprocess
import sys
import tempfile
import types

tool = sys.argv[1]
sys.path.insert(0, str(pathlib.Path(tool).resolve().parent))
sys.dont_write_bytecode = True
import mutants  # noqa: E402

TEXT = """
int f(int a, int b)
{
    if (a > 1 && b)
        return a + b;
    return 0;
}
"""


def every_folder_of_tests_exists():
    # Bazel shows this test the files of //tests/docs:mutation_tests.
    empty = [folder for folder in mutants.TEST_PACKAGES if not list(pathlib.Path("tests", folder).rglob("*_test.c"))]
    assert not empty, f"no tests in {empty}"


def help_is_printed():
    text = subprocess.run([sys.executable, tool, "--help"], check=True, text=True, stdout=subprocess.PIPE).stdout
    assert "./dev mutants" in text and "--seed" in text and "--list" in text, text


def mutants_of_one_file_are_chosen():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "rpc").mkdir()
        for file in "a.c", "b.c":
            (folder / "rpc" / file).write_text(TEXT)
        subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
        subprocess.run(["git", "add", "rpc"], cwd=folder, check=True)
        tree = types.SimpleNamespace(folder=folder)
        plan, again = (mutants.choose(tree, folder, ["rpc/a.c"], 5, seed=1)[0] for _ in range(2))
        assert list(plan) == ["rpc/a.c"] and len(plan["rpc/a.c"]) == 5, plan
        assert [str(m) for m in again["rpc/a.c"]] == [str(m) for m in plan["rpc/a.c"]]
        assert sorted(m.id for m in plan["rpc/a.c"]) == list(range(5))


def mutant_that_the_build_refuses_is_left_out():
    text = "int f(int a)\n{\n    switch (a) {\n        case 1:\n            a++;\n%s        default:\n            return a;\n    }\n}\n"
    tree = types.SimpleNamespace(folder=pathlib.Path("."))
    assert mutants.compiles(tree, ".", "a.c", text % "            return 5;\n")
    assert not mutants.compiles(tree, ".", "a.c", text % "")  # it falls through


every_folder_of_tests_exists()
help_is_printed()
mutant_that_the_build_refuses_is_left_out()
mutants_of_one_file_are_chosen()
print("all as expected")
