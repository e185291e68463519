#!/bin/sh
# man.sh PROGRAM: prints a manual page made from `PROGRAM --help`.
set -eu
name=$(basename "$1")
"$1" --help | awk -v name="$name" '
    NR == 1 {
        sub(/^usage: /, "")
        printf ".TH %s 1 \"\" Tether \"User Commands\"\n.SH NAME\n%s \\- part of Tether, remote references and RPC between workers\n", toupper(name), name
        printf ".SH SYNOPSIS\n.B %s\n.SH DESCRIPTION\n.nf\n", $0
        next
    }
    {
        gsub(/\\/, "\\e")
        gsub(/-/, "\\-")
        sub(/^[.'"'"']/, "\\\\\\&&")
        print
    }
    END { print ".fi\n.SH SEE ALSO\n.BR tether\\-run (1),\n.BR tether\\-store (1),\n.BR tether\\-inspect (1)" }
'
