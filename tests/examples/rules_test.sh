#!/bin/sh
# Every example is one file of fewer than 200 lines that begins by saying what to look at and how to run
# it, and the README lists it.
set -eu
total=0 bad=0
wrong() {
    echo "$*"
    bad=1
}
for example in examples/*.c; do
    total=$((total + 1))
    name=$(basename "$example" .c)
    [ "$(wc -l <"$example")" -lt 200 ] || wrong "$example has 200 lines or more"
    sed '/\*\//q' "$example" | grep -q ' Look at ' || wrong "$example does not say what to look at"
    sed '/\*\//q' "$example" | grep -qE "^ \*     (tether-run |$name)" || wrong "$example does not say how to run it"
    # shellcheck disable=SC2016 # those are backquotes of Markdown
    grep -q '^| `'"$name"'` |' README.md || wrong "README.md does not list $name"
done
echo "$total examples"
[ "$total" -ge 9 ] && [ "$bad" = 0 ]
