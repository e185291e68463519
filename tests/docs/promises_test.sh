#!/bin/sh
# promises_test.sh PROMISES: each row of the table names a sentence of a document that promises something, and
# the test case that holds Tether to it, or words of a shell test. Fails when the document no longer says it, or the
# case is gone.
set -eu
table=$1
failed=0
wrong() {
    printf '%s: %s\n' "$table" "$*" >&2
    failed=1
}
scratch=${TEST_TMPDIR:-/tmp}
tab=$(printf '\t')
sed 1d "$table" >"$scratch/rows"
n=0
while IFS="$tab" read -r document quote target case; do
    n=$((n + 1))
    [ -n "$case" ] || wrong "not four columns: $document $quote"
    # A sentence may go over the end of a line.
    tr -s '\n ' '  ' <"$document" | grep -qF -- "$quote" || wrong "$document does not say '$quote'"
    folder=${target#//}
    folder=${folder%%:*}
    if [ -f "$folder/${target##*:}.sh" ]; then
        grep -qF -- "$case" "$folder/${target##*:}.sh" || wrong "$target does not say '$case'"
        continue
    fi
    [ -f "$folder/${target##*:}.c" ] || wrong "there is no test $target"
    uses=$(cat "$folder"/*.c | grep -cE "\b$case\b") || true
    [ "$uses" -ge 2 ] || wrong "$target does not both define and register $case"
done <"$scratch/rows"
[ "$n" -ge 220 ] || wrong "has $n rows"
echo "$n promises"
exit $failed
