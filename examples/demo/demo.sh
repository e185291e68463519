#!/bin/sh
# demo.sh [--dot[=FILE]]: what `./dev demo` shows. Four workers on this machine, told by worker 0;
# story.c is the story. With --dot the picture in it is also written to FILE (demo.dot), for
# Graphviz, and to FILE.svg where Graphviz is installed.
#
# Worker 3 is killed on purpose. tether-run would end the job for that, so it runs below a shell that
# takes being killed for a good end.
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
