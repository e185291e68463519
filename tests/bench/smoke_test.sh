#!/bin/sh
# smoke_test.sh REPORT.PY BENCHMARKS...: each benchmark runs, for a moment and without any peer, says
# what is not installed, and writes results that make a page.
set -eu
report=$1
shift
for bench; do
    name=$(basename "$bench" _bench)
    out=$TEST_TMPDIR/$name
    mkdir "$out"
    case $name in
    rref) only='create, fetch' ;; # without a million of them
    *) only='64 B' ;;
    esac
    "$bench" --rounds=1 --seconds=0.01 --only="$only" --tsv="$out/results.tsv" >"$out/log"
    grep -q '^result' "$out/results.tsv" || { echo "$name: no results" && exit 1; }
    python3 "$report" "$out/results.tsv" "$out/index.html"
    grep -q '</html>' "$out/index.html"
    case $name in
    rpc) grep -q 'not installed: gRPC C++' "$out/results.tsv" ;;
    esac
done
