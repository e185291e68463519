#!/bin/sh
# Every example is one file of fewer than 200 lines that begins by saying what to look at, and the
# README lists it.
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
    sed '/\*\//q' "$example" | grep -q 'What to look at: ' || wrong "$example does not say what to look at"
    # shellcheck disable=SC2016 # those are backquotes of Markdown
    grep -q '^| `'"$name"'` |' README.md || wrong "README.md does not list $name"
done
echo "$total examples"
[ "$total" -ge 9 ] && [ "$bad" = 0 ]
