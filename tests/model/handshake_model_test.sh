#!/bin/sh
# Checks the model of the handshake (handshake.pml) with spin: the real one must hold against the
# attacker, each mutant must be broken by it. Prints a table, then "N passed, N failed".
#
#     handshake_model_test.sh DIRECTORY
set -eu
model=$(cd "$1" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM
cd "$scratch"
passed=0 failed=0

# NAME EXPECTED DEFINE...
check() {
    name=$1 expected=$2
    shift 2
    spin "$@" -a "$model/handshake.pml" >spin.log
    cc -O1 -DSAFETY -DVECTORSZ=4096 -o pan pan.c >cc.log 2>&1
    ./pan -m100000 >pan.log
    errors=$(sed -n 's/.*errors: \([0-9]*\).*/\1/p' pan.log)
    states=$(sed -n 's/ *\([0-9.e+]*\) states, stored.*/\1/p' pan.log)
    found=holds
    [ "$errors" = 0 ] || found=broken
    complete=yes
    grep -q "max search depth too small" pan.log && complete=no
    verdict=ok
    if [ "$found" != "$expected" ] || { [ "$expected" = holds ] && [ "$complete" = no ]; }; then
        verdict=FAILED
        failed=$((failed + 1))
        cat pan.log
    else
        passed=$((passed + 1))
    fi
    printf '%-14s %-8s %10s states  %s\n' "$name" "$found" "$states" "$verdict"
}

check handshake holds
check no-role broken -DROLE=0
check no-nonce-l broken -DNONCE_L=0
check no-nonce-d broken -DNONCE_D=0
check no-names broken -DNAMES=0
check no-starts broken -DSTARTS=0
check unproved-start broken -DPROOF=0
check two-runs holds -DTWO_RUNS=1
check no-run broken -DTWO_RUNS=1 -DRUN=0
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
