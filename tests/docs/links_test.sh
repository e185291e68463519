#!/bin/sh
# The relative links in docs/ lead somewhere.
set -eu
total=0 bad=0
for document in docs/*.md; do
    links=$(grep -o '](\([^)#:]*\))' "$document" | tr -d '()]') || true
    for link in $links; do
        total=$((total + 1))
        [ -e "docs/$link" ] || {
            echo "$document links to $link, which is not there"
            bad=1
        }
    done
done
echo "$total links"
[ "$total" -gt 0 ] && [ "$bad" = 0 ]
