#!/bin/sh
# demo.sh [--dot=FILE]: what `./dev demo` shows. Four workers on this machine, told by worker 0;
# demo_worker.c is the story. With --dot the picture in it is also written to FILE, for Graphviz, and
# to FILE.svg where Graphviz is installed.
#
# Worker 3 is killed on purpose. tether-run would end the job for that, so it runs below a shell that
# takes being killed for a good end.
set -eu
here=$(dirname "$0")
dot=
case ${1:-} in
--dot=?*) dot=${1#--dot=} ;;
'') ;;
*)
    echo "usage: demo [--dot=FILE]" >&2
    exit 2
    ;;
esac
# shellcheck disable=SC2016 # that is for the inner shell
"$here/../tools/tether-run" --standalone --nproc-per-node=4 --no-prefix --quiet -- \
    sh -c '[ "$RANK" = 3 ] || exec "$@"; "$@" & wait "$!" 2>/dev/null || [ "$?" = 137 ]' \
    sh "$here/demo_worker" "$here/../tools/tether-inspect" ${dot:+"$dot"}
if [ -n "$dot" ] && command -v dot >/dev/null; then
    dot -Tsvg -o "$dot.svg" "$dot"
    echo "the graph is in $dot and $dot.svg"
fi
