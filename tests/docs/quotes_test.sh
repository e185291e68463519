#!/bin/sh
# quotes_test.sh DOCUMENT: every fenced block under a line `<!-- quotes PATH -->` is PATH, word for
# word, so that what a reader copies compiles. Fails when one differs or when there is none.
awk -v document="$1" '
    /^<!-- quotes / { path = $3; next }
    path && /^```/ {
        if (!open) { open = 1; next }
        if ((getline line < path) > 0) { print document " lacks the end of " path; bad++ }
        close(path); path = ""; open = 0; quotes++
        next
    }
    open {
        if ((getline line < path) <= 0 || line != $0) {
            printf "%s:%d is not what %s says: %s\n", document, NR, path, line
            exit(bad = 1)
        }
    }
    END {
        if (!quotes && !bad) { print document " quotes nothing"; bad++ }
        exit(bad > 0)
    }
' "$1"
