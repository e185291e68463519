#!/bin/sh
# Every test that the threat table of docs/security.md and the obligations of docs/wire.md name is
# defined in a source of the tests, and every row of the threat table names one that has a hostile
# program, in its body or in a function that it calls.
set -eu
total=0 bad=0
# shellcheck disable=SC2016 # backquotes are meant
quoted='`[a-z_0-9]*`'

check() {
    total=$((total + 1))
    # shellcheck disable=SC2046 # no path has a space
    grep -qE "(static void |TETHER_PROC_TEST\(|ATTACK\()$2\>" $(find -L tests -name '*.c') || {
        echo "$1 names $2, and there is no such test"
        bad=1
    }
}

# threats: the rows below the heading, without the two of the head.
threats() { sed -n '/^## Who can try what/,/^## What is left/p' docs/security.md | grep '^|' | tail -n +3; }

for name in $(threats | cut -d'|' -f5 | grep -o "$quoted" | tr -d '`'); do
    check docs/security.md "$name"
done
for name in $(sed -n '/^| Obligation/,/^$/p' docs/wire.md | cut -d'|' -f4 | grep -o "$quoted" | tr -d '`'); do
    check docs/wire.md "$name"
done
check docs/security.md worker_keeps_to_documented_amounts_when_flooded
rows=$(threats | wc -l)
named=$(threats | cut -d'|' -f5 | grep -c "$quoted")
[ "$rows" = "$named" ] || {
    echo "docs/security.md: $((rows - named)) rows of the threat table name no test"
    bad=1
}

# Each row has a test with a program that attacks: a process, or a plain socket. A client or a transport
# of Tether in the process of the worker does not count. The program is in the body of the test, or in
# a function of the same source that the test calls.
program='ATTACK\(|raw_connect|member_join|TETHER_PROC_|tether_test_procs_start|tether_test_child_start|socket\('
threats | cut -d'|' -f3,5 >"${TEST_TMPDIR:-/tmp}/rows"
while IFS= read -r row; do
    found=
    for name in $(echo "$row" | cut -d'|' -f2 | grep -o "$quoted" | tr -d '`'); do
        # shellcheck disable=SC2046 # no path has a space
        files=$(grep -lE "(static void |TETHER_PROC_TEST\(|ATTACK\()$name\>" $(find -L tests -name '*.c') || true)
        for file in $files; do
            awk -v name="$name" -f tests/docs/test_body.awk "$file" | grep -qE "$program" && found=yes
        done
    done
    [ -n "$found" ] || {
        echo "docs/security.md: no test of this row has a hostile program: ${row%%|*}"
        bad=1
    }
done <"${TEST_TMPDIR:-/tmp}/rows"
echo "$total tests are named, $rows threats"
[ "$rows" -ge 20 ] && [ "$bad" = 0 ]
