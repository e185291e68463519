#!/bin/sh
# comments_test.sh FILE...: every public function (TETHER_API) of the headers among the files has a
# comment: before it, before the group of declarations that it stands in, or behind it on its line.
# A blank line ends a group.
awk '
    FNR == 1 { covered = 0 }
    /^$/ { covered = 0; next }
    /\*\// { covered = 1 }
    /^TETHER_API/ {
        total++
        if (!covered) { printf "%s:%d has no comment: %s\n", FILENAME, FNR, $0; bad++ }
    }
    END {
        if (!total) { print "there are no public functions: are these the headers?"; bad++ }
        exit(bad > 0)
    }
' "$@"
