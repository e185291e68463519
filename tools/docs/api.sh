#!/bin/sh
# api.sh FILE: writes FILE (docs/api.md) from the comments of the public headers. Started by `./dev
# docs`, at the root of the tree.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
headers=$(for layer in rref rpc rendezvous base; do git grep -l '^TETHER_API' -- "$layer/*.h"; done)
{
    cat tools/docs/Doxyfile
    # shellcheck disable=SC2086 # a list, on one line
    echo INPUT = $headers
    echo "OUTPUT_DIRECTORY = $folder"
} >"$folder/Doxyfile"
doxygen "$folder/Doxyfile"
# shellcheck disable=SC2086
python3 tools/docs/api.py "$folder/xml" $headers >"$folder/api.md"
cp "$folder/api.md" "$1"
