#!/bin/sh
# uninstall.sh PREFIX: removes what install.sh has put below PREFIX, by the list that it left there,
# and the folders that are empty then.
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
