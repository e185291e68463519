#!/bin/sh
# Checks tests/conformance.tsv: each row names a cmocka test that is defined and registered in its
# file, the file belongs to a test that Bazel runs, and a test that stands for several rows says in
# each of them which of its runs counts. Its data are the sources and the tests.
set -eu
table=$1
failed=0
wrong() {
    printf '%s: %s\n' "$table" "$*" >&2
    failed=1
}

unit=$(printf '\037') # a separator that `read` does not merge, as it does with tabs
scratch=${TEST_TMPDIR:-/tmp}
rows=$scratch/rows odd=$scratch/odd twice=$scratch/twice shared=$scratch/shared
sed 1d "$table" >"$rows"
tr '\t' "$unit" <"$rows" >"$rows.units"
n=$(wc -l <"$rows")
[ "$n" -ge 186 ] || wrong "has $n rows; the seeds state 186 behaviours"
awk -F'\t' 'NF != 6' "$rows" >"$odd"
while IFS= read -r row; do wrong "not six columns: $row"; done <"$odd"
cut -f1-3 "$rows" | sort | uniq -d >"$twice"
while IFS= read -r row; do wrong "listed twice: $row"; done <"$twice"

# A test function that is in several rows needs a note of its own in each.
awk -F'\t' '{ key = $4 FS $5; if (count[key]++) many[key] = 1; note[key, $6]++; row[NR] = key; what[NR] = $3 FS $6; text[NR] = $6 }
    END { for (i = 1; i <= NR; i++) if (many[row[i]] && (text[i] == "" || note[row[i], text[i]] > 1)) print what[i] }' "$rows" | tr '\t' "$unit" >"$shared"
while IFS="$unit" read -r test note; do
    wrong "$test is one of several rows of its C test, and its note ('$note') does not say which run counts"
done <"$shared"

while IFS="$unit" read -r _ class test function file note; do
    name="$class.$test"
    if [ -z "$function" ] || [ "$function" = n/a ]; then
        [ "${#note}" -ge 20 ] || wrong "$name has no C test and no reason"
        continue
    fi
    if [ ! -f "$file" ]; then
        wrong "$name: there is no file $file"
        continue
    fi
    grep -qE "^(static void )?$function\(" "$file" || wrong "$name: $file does not define $function"
    grep -E "\b$function\b" "$file" | grep -vqE "^(static void )?$function\(" ||
        wrong "$name: $file does not register $function"

    # The file's own test, or the one that the note names ("run by file/store_test", a path from the
    # file's folder). Bazel has built it: it is among the data of this test.
    runner=$(printf '%s\n' "$note" | sed -n 's/.*run by \([a-z_0-9/]*\).*/\1/p')
    target=$(dirname "$file")/${runner:-$(basename "$file" .c)}
    [ -x "$target" ] || wrong "$name: there is no test $target; does the note say which test runs $file?"
done <"$rows.units"
exit $failed
