#!/bin/sh
# demo.sh [--dot[=FILE]]: runs `./dev demo`: four workers on this machine, of which worker 0 runs the
# story (story.c). With --dot the picture in it is also written to FILE (demo.dot), for Graphviz, and
# to FILE.svg if Graphviz is installed.
#
# Worker 3 is killed on purpose. tether-run would end the job then, so the worker runs below a shell
# that counts this as success.
set -eu
here=$(dirname "$0")
tools=$here/../../tools
dot=
case ${1:-} in
--dot) dot=demo.dot ;;
--dot=?*) dot=${1#--dot=} ;;
'') ;;
*)
    echo "demo: usage: demo [--dot[=FILE]], not '$1'" >&2
    exit 2
    ;;
esac
if [ -n "$dot" ] && ! (: >"$dot") 2>/dev/null; then
    echo "demo: can't write to $dot; give another file with --dot=FILE" >&2
    exit 2
fi
# shellcheck disable=SC2016 # that is for the inner shell
"$tools/tether-run" --standalone --nproc-per-node=4 --no-prefix --quiet -- \
    sh -c '[ "$RANK" = 3 ] || exec "$@"; "$@" & wait "$!" 2>/dev/null || [ "$?" = 137 ]' \
    sh "$here/worker" "$tools/tether-inspect" ${dot:+"$dot"}
[ -n "$dot" ] || exit 0
if command -v dot >/dev/null; then
    dot -Tsvg -o "$dot.svg" "$dot"
    echo "the graph is in $dot and $dot.svg"
else
    echo "the graph is in $dot; with Graphviz installed: dot -Tsvg $dot > graph.svg"
fi
