#!/bin/sh
# The relative links in README.md, CONTRIBUTING.md and docs/ lead somewhere, also those to a heading
# of another document.
set -eu
total=0 bad=0

# headings FILE: prints its headings as links name them.
headings() {
    sed -n 's/^##* //p' "$1" | tr '[:upper:]' '[:lower:]' | sed 's/[^a-z0-9 _-]//g; s/ /-/g'
}

for document in README.md CONTRIBUTING.md docs/*.md; do
    links=$(grep -o '](\([^):]*\))' "$document" | tr -d '()]') || true
    for link in $links; do
        total=$((total + 1))
        file=${link%%#*}
        target=$(dirname "$document")/$file
        [ -n "$file" ] || target=$document
        case $link in
        *'#'*) headings "$target" | grep -qxF "${link#*#}" ;;
        *) [ -e "$target" ] ;;
        esac || {
            echo "$document links to $link, which is not there"
            bad=1
        }
    done
done
echo "$total links"
[ "$total" -gt 0 ] && [ "$bad" = 0 ]
