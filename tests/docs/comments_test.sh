#!/bin/sh
# comments_test.sh FILE...: every public function of the headers among the files says ownership,
# threads and errors (comments.awk), and comments.awk finds those of an example that do not.
set -eu
awk -f tests/docs/comments.awk tests/docs/comments_example.h >"$TEST_TMPDIR/found" && {
    echo 'the example passes'
    exit 1
}
# An example's function is called after what it lacks.
awk '
    /^TETHER_API.*tether_lacks_(ownership|threads|errors)/ {
        name = $0
        sub(/\(.*/, "", name)
        sub(/.*[ *]/, "", name)
        for (i = 1; i <= 3; i++) {
            topic = i == 1 ? "ownership" : i == 2 ? "threads" : "errors"
            if (name ~ topic)
                printf "%s:%d: %s: the comment does not say its %s\n", FILENAME, FNR, name, topic
        }
    }
' tests/docs/comments_example.h >"$TEST_TMPDIR/expected"
[ -s "$TEST_TMPDIR/expected" ]
diff "$TEST_TMPDIR/expected" "$TEST_TMPDIR/found"

awk -f tests/docs/comments.awk "$@"
