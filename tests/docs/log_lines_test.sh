#!/bin/sh
# log_lines_test.sh DOCUMENT...: the log lines that the documents show look as base/log.c writes them: the
# time, "tether", the level, the area and the message. Log lines are those with "tether LEVEL AREA: " in a
# code block, and those below "$ TETHER_LOG=...".
set -eu
awk '
    FNR == 1 { shows_log = 0 }
    !/^    / { shows_log = 0; next }
    /^    [$] / { shows_log = /TETHER_LOG=/; next }
    shows_log || /(^| )tether (error|warn|info|debug|trace) [a-z]+: / {
        n++
        if ($0 !~ /^    [0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]T[0-9][0-9]:[0-9][0-9]:[0-9][0-9][.][0-9][0-9][0-9]Z tether (error|warn|info|debug|trace) [a-z]+: /) {
            printf "%s:%d: no log line looks like this: %s\n", FILENAME, FNR, $0
            bad = 1
        }
    }
    END {
        print n + 0, "log lines"
        exit bad || n < 2
    }' "$@"
