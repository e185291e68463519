#!/bin/sh
# Checks the model of a group and its store (group.pml) with spin: the group must keep its promises,
# and each mutant must break the property named here. Prints a table, then "N passed, N failed".
#
#     group_model_test.sh DIRECTORY
set -eu
model=$(cd "$1" && pwd)/group.pml
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM
cd "$scratch"
passed=0 failed=0

# NAME EXPECTED DEFINE...: EXPECTED is "holds", or the property that breaks.
check() {
    name=$1 expected=$2
    shift 2
    rm -f ./*.trail
    spin "$@" -a "$model" >spin.log
    cc -O1 -DSAFETY -o pan pan.c >cc.log 2>&1
    ./pan -m100000 >pan.log
    states=$(sed -n 's/ *\([0-9.e+]*\) states, stored.*/\1/p' pan.log)
    found=holds
    [ ! -f group.pml.trail ] || found=$(spin -t -k group.pml.trail "$@" "$model" | sed -n 's/^ *breaks //p')
    ! grep -q 'max search depth too small\|out of memory' pan.log || found=incomplete
    verdict=ok
    if [ "$found" = "$expected" ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        verdict="FAILED: expected $expected"
        cat pan.log
    fi
    printf '%-16s %-8s %8s states  %s\n' "$name" "$found" "$states" "$verdict"
}

check group holds
check RUN_IN_HELLO T -DRUN_IN_HELLO=0
check KNOWN_ADDRESS Q -DKNOWN_ADDRESS=0
check LIVE_SESSION R -DLIVE_SESSION=0
check REGISTERS_AGAIN Q -DREGISTERS_AGAIN=0
check CHECKS_RUN Q -DCHECKS_RUN=0
check STARTS_FIRST D -DSTARTS_FIRST=0
check FROM_CLOCK D -DFROM_CLOCK=0
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
