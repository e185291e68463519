#!/bin/sh
# promises_test.sh PROMISES NO_PROMISES: promises.py demands a decision for each sentence of the documents that
# users read. Here it is tried first on a document with each mistake that it must notice.
set -eu
promises=$1 no_promises=$2
check() { python3 tests/docs/promises.py "$@"; }

scratch=${TEST_TMPDIR:-/tmp}
target=//tests/rpc/call:errors_test
case=timeout_tells_that_function_runs
cat >"$scratch/document" <<'END'
# A heading promises nothing

This sentence promises
something. This one does not.

- An item, 1. not an item.

| head | of a table |
| --- | --- |
| a row | of it |

    code is not looked at
END
row() { printf '%s\t%s\t%s\t%s\n' "$scratch/document" "$@" >>"$scratch/rows"; }
line() { printf '%s\t%s\n' "$scratch/document" "$1" >>"$scratch/lines"; }
begin() {
    echo 'document	quote	test	case' >"$scratch/rows"
    echo 'document	sentence' >"$scratch/lines"
    row 'promises something' $target $case
    line 'This one does not.'
    line 'An item, 1. not an item.'
}
# tells WORDS: the document fails with these words, and with no others.
tells() {
    if check "$scratch/rows" "$scratch/lines" "$scratch/document" >/dev/null 2>"$scratch/said"; then
        echo "did not notice: $1"
        exit 1
    fi
    if ! grep -qF -- "$1" "$scratch/said" || [ "$(wc -l <"$scratch/said")" != 1 ]; then
        echo "said not just '$1' but:"
        cat "$scratch/said"
        exit 1
    fi
}
begin
tells 'no decision'
line '| a row | of it |'
check "$scratch/rows" "$scratch/lines" "$scratch/document"
row 'one does' $target $case
tells 'has a test and is in'
begin
row 'a row' $target there_is_no_such_case
tells 'does not both define and register'
begin
row 'a row' $target second_start_is_refused_when_first_is_alive # it is another test's
tells 'does not both define and register'
begin
row 'a row' //tests/rpc:no_such_test $case
tells 'there is no test'
begin
line '| a row | of it |'
line 'It said this before.'
tells "does not say 'It said this before.'"
begin
line '| a row | of it |'
row 'nowhere' $target $case
tells "does not say 'nowhere'"

check "$promises" "$no_promises" README.md docs/guide.md docs/operations.md docs/security.md
