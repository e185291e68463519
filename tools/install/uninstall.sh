#!/bin/sh
# uninstall.sh PREFIX: removes the files that install.sh has listed below PREFIX, and the folders that are
# empty then.
set -eu
prefix=$1
list=$prefix/share/tether/installed
[ -f "$list" ] || {
    echo "uninstall.sh: nothing of Tether is installed in $prefix: $list is missing" >&2
    exit 1
}
files=$(cat "$list")
for file in $files; do
    rm -f "$prefix/$file"
done
for file in $files; do
    folder=$(dirname "$file")
    while [ "$folder" != . ] && rmdir "$prefix/$folder" 2>/dev/null; do
        folder=$(dirname "$folder")
    done
done
