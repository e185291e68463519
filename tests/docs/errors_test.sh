#!/bin/sh
# errors_test.sh STATUS.H OPERATIONS.MD: the table of errors has every status, and none that is not.
set -eu
sed -n 's/^    X(\(E[A-Z]*\), .*/TETHER_\1/p' "$1" | sort >"$TEST_TMPDIR/have"
# shellcheck disable=SC2016 # those are backquotes of Markdown
sed -n 's/^| `\(TETHER_E[A-Z]*\)` |.*/\1/p' "$2" | sort >"$TEST_TMPDIR/tell"
[ -s "$TEST_TMPDIR/have" ]
diff "$TEST_TMPDIR/have" "$TEST_TMPDIR/tell"
