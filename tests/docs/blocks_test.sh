#!/bin/sh
# blocks_test.sh DOCUMENT...: the C blocks of each document compile, one after the other: those that
# define something (they begin with "static" or "struct") as they are, the others inside of a
# function. fragment.h has the variables that they may use. Whole programs (#include) are quotes of
# examples and have a test of their own.
set -eu
folder=${TEST_TMPDIR:-$(mktemp -d)}
total=0
for document; do
    awk -v document="$document" '
        function flush() {
            if (block ~ /#include/) return
            printf "#line %d \"%s\"\n", first, document
            if (block ~ /^(static|struct)/) printf "%s", block
            else printf "void block%d(void);\nvoid block%d(void)\n{\n#line %d \"%s\"\n%s}\n", first, first, first, document, block
        }
        BEGIN { print "#include \"tests/docs/fragment.h\"" }
        /^```c$/ { open = 1; block = ""; first = NR + 1; next }
        open && /^```$/ { open = 0; flush(); next }
        open { block = block $0 "\n" }
    ' "$document" >"$folder/blocks.c"
    blocks=$(grep -c '^#line' "$folder/blocks.c") || true
    total=$((total + blocks))
    cc -std=gnu11 -D_GNU_SOURCE -Wall -Wextra -Werror -Wno-unused-function -Wno-unused-variable \
        -Wno-unused-const-variable -I. -fsyntax-only "$folder/blocks.c" || {
        echo "FAILED: a block of $document does not compile"
        exit 1
    }
done
echo "$total blocks compile"
[ "$total" -gt 0 ]
