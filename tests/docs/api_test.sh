#!/bin/sh
# api_test.sh API.MD HEADER...: docs/api.md was made from the public headers as they are now, which
# the checksum above each of its chapters tells, and has every public function. (Whether it is what
# Doxygen makes of them, .ci/run looks.)
set -eu
api=$1
shift
bad=0 headers=0
for header; do
    grep -q '^TETHER_API' "$header" || continue
    headers=$((headers + 1))
    checksum=$(sha256sum "$header" | cut -c 1-16)
    grep -qxF "<!-- $header $checksum -->" "$api" || {
        echo "docs/api.md is older than $header, or lacks it: run ./dev docs"
        bad=1
    }
    # shellcheck disable=SC2013 # names have no spaces
    for function in $(sed -n '/^TETHER_API/s/.*\(tether_[a-z0-9_]*\)(.*/\1/p' "$header"); do
        grep -q "\b$function(" "$api" || {
            echo "docs/api.md lacks $function() of $header"
            bad=1
        }
    done
done
[ "$(grep -c '^<!-- .*\.h ' "$api")" = "$headers" ] || {
    echo 'docs/api.md has a chapter on a header that is gone: run ./dev docs'
    bad=1
}
[ "$headers" -gt 10 ] && [ "$bad" = 0 ]
