#!/bin/sh
# names_test.sh FILE...: the functions and macros of Tether that the documents among the files name
# are in the headers among them, so that no document tells of what is gone.
set -eu
documents='' headers=''
for file; do
    case $file in
    *.md) documents="$documents $file" ;;
    *.h) headers="$headers $file" ;;
    esac
done
# A name counts when it is called, or one of our macros; tether__ is for us only.
# shellcheck disable=SC2086 # lists of files
grep -ohE '\btether_[a-z0-9][a-z0-9_]*\(|\bTETHER_[A-Z_]*_(OPTS|SCOPE|INIT|MS)\b' $documents |
    tr -d '(' | sort -u >"$TEST_TMPDIR/named"
[ "$(wc -l <"$TEST_TMPDIR/named")" -gt 30 ]
bad=0
while read -r name; do
    # shellcheck disable=SC2086
    grep -qE "\b$name\b" $headers || {
        # shellcheck disable=SC2086
        echo "no header has $name: $(grep -l "\b$name\b" $documents | tr '\n' ' ')"
        bad=1
    }
done <"$TEST_TMPDIR/named"
exit "$bad"
