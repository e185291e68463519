#!/bin/sh
# insides_test.sh DOCUMENT FILE...: checks that names of ours which the document puts in backquotes
# (functions, fields, types, statuses, messages) are in one of the files, and that a path is one of the
# files. So no document describes removed code.
set -eu
document=$1
shift
# A name has an underscore, or begins with a capital as messages do, or is called.
# shellcheck disable=SC2016 # those are backquotes of Markdown
grep -o '`[^`]*`' "$document" | tr -d '`' >"$TEST_TMPDIR/quoted"
grep -oE '[A-Za-z0-9]+_[A-Za-z0-9_]+|^[A-Z][A-Za-z]+|[A-Za-z0-9_]+\(\)' \
    "$TEST_TMPDIR/quoted" | tr -d '()' | grep -vE '_test$' | sort -u >"$TEST_TMPDIR/names"
grep -xE '[a-z]+/[a-z_/]+\.[ch]' "$TEST_TMPDIR/quoted" | sort -u >"$TEST_TMPDIR/paths"
[ "$(wc -l <"$TEST_TMPDIR/names")" -gt 30 ]
[ "$(wc -l <"$TEST_TMPDIR/paths")" -gt 2 ]
cat "$@" >"$TEST_TMPDIR/tree"
bad=0
while read -r name; do
    grep -qw -e "$name" "$TEST_TMPDIR/tree" || {
        echo "$document names $name, which is nowhere"
        bad=1
    }
done <"$TEST_TMPDIR/names"
while read -r path; do
    [ -e "$path" ] || {
        echo "$document names $path, which is not there"
        bad=1
    }
done <"$TEST_TMPDIR/paths"
exit "$bad"
