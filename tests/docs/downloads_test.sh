#!/bin/sh
# downloads_test.sh WORKSPACE DEV: neither the build nor ./dev downloads anything but Debian packages.
set -eu
bad=0
sed 's/#.*//' "$1" | grep -nE 'https?:|http_archive|http_file|git_repository' && bad=1
sed 's/#.*//' "$2" | grep -nE '\<(curl|wget|pip3? install|git clone|npm)\>' && bad=1
if ! grep -q 'local_repository' "$1" || ! grep -q 'apt-get install' "$2"; then
    echo "$1 and $2 are not the files that this test knows"
    bad=1
fi
[ "$bad" = 0 ]
