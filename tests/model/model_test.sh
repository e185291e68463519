#!/bin/sh
# Checks the model of the reference protocol (rref.pml): each world must be free of errors, each
# mutant must break the property named here. Prints a table, then "N passed, N failed".
#
#     model_test.sh DIRECTORY          the small worlds and all mutants
#     model_test.sh DIRECTORY large    larger worlds: an hour, and some gigabytes
#     model_test.sh DIRECTORY story NAME   how the mutant NAME goes wrong, step by step
#
# DIRECTORY is where rref.pml is. The verifier is compiled once; worlds and mutants are chosen by
# environment variables when it runs.
set -eu
model=$(cd "$1" && pwd)
mode=${2:-small}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM
cd "$scratch"

# NAME BOUNDS...
worlds_small() {
    cat <<'END'
pass-on          OBJECTS=1 FORKS=3 USES=1
time-out         OBJECTS=1 FORKS=2 USES=1 GIVEUPS=1 FENCES=1
restart          OBJECTS=1 FORKS=2 USES=1 CRASHES=1 RESTARTS=1
large-call       LARGE=1 FORKS=2 USES=1 GIVEUPS=1 FENCES=1
two-objects      OBJECTS=2 FORKS=2 USES=1 FENCES=1
owners-object    OWN=1 FORKS=2 USES=1 FENCES=1
owners-restart   OWN=1 FORKS=2 CRASHES=1 RESTARTS=1
two-fences       OBJECTS=1 FORKS=2 FENCES=2
threads          OBJECTS=1 FORKS=2 FENCES=1 THREADS=1
threads-crash    OBJECTS=1 FORKS=2 CRASHES=1 THREADS=1
threads-owner    OWN=1 FORKS=2 FENCES=1 THREADS=1
threads-fences   OBJECTS=1 FORKS=1 FENCES=2 THREADS=1
threads-restart  OBJECTS=1 FORKS=1 CRASHES=1 RESTARTS=1 THREADS=1
withdrawn        OBJECTS=2 FORKS=3 WITHDRAWS=1
withdrawn-fence  OBJECTS=2 FORKS=3 WITHDRAWS=1 FENCES=1
same-rank        OBJECTS=2 FORKS=3 CRASHES=1 RESTARTS=1 LATE=1
END
}

worlds_large() {
    cat <<'END'
all-faults       OBJECTS=1 FORKS=2 USES=1 GIVEUPS=1 FENCES=1 CRASHES=1 RESTARTS=1
pass-on-fence    OBJECTS=1 FORKS=3 USES=1 GIVEUPS=1 FENCES=1
pass-on-restart  OBJECTS=1 FORKS=3 USES=1 CRASHES=1 RESTARTS=1
owner-faults     OWN=1 FORKS=2 USES=1 FENCES=1 CRASHES=1 RESTARTS=1
both-kinds       OBJECTS=1 OWN=1 FORKS=3 FENCES=1
large-call       LARGE=1 OBJECTS=1 FORKS=3 FENCES=1
large-restart    LARGE=1 FORKS=3 USES=1 GIVEUPS=1 CRASHES=1 RESTARTS=1
two-objects      OBJECTS=2 FORKS=3 FENCES=1 GIVEUPS=1
two-restart      OBJECTS=2 FORKS=3 CRASHES=1 RESTARTS=1
crash-and-fence  OBJECTS=1 FORKS=3 USES=1 FENCES=1 CRASHES=1
three-and-all    OBJECTS=1 FORKS=3 FENCES=1 CRASHES=1 RESTARTS=1
two-fences       OBJECTS=1 FORKS=3 FENCES=2
threads          OBJECTS=1 FORKS=3 FENCES=1 THREADS=1
threads-fences   OBJECTS=1 FORKS=2 FENCES=2 THREADS=1
threads-restart  OBJECTS=1 FORKS=2 FENCES=1 CRASHES=1 RESTARTS=1 THREADS=1
END
}

# NAME PROPERTY BOUNDS...: the property that the mutant breaks.
mutants() {
    cat <<'END'
NO_LANE                 S4 OBJECTS=1 FORKS=2 DUPLICATES=1
LARGE_NOT_ANNOUNCED     Q  LARGE=1 FORKS=1 GIVEUPS=1
ANNOUNCED_IS_MADE       S4 LARGE=1 FORKS=1 GIVEUPS=1
OLD_FRAMES              Q  OBJECTS=1 FORKS=1 FENCES=1
NO_PIN                  S2 OBJECTS=1 FORKS=2
PIN_TIMES_OUT           S2 OBJECTS=1 FORKS=2
REPLY_WITHOUT_PIN       S2 OBJECTS=1 FORKS=2
ACCEPT_BEFORE_ANSWER    S2 OBJECTS=1 FORKS=2
RUN_BEFORE_ANSWER       U  OBJECTS=1 FORKS=2 USES=1 CRASHES=1
WAITING_OUTLIVE_DELETE  Q  OBJECTS=1 FORKS=2 GIVEUPS=1
NO_BREAK                S1 OBJECTS=1 FORKS=1 FENCES=1
FORKS_OUTLIVE_FENCE     Q  OBJECTS=1 FORKS=1 FENCES=1
PINS_OUTLIVE_FENCE      Q  OBJECTS=1 FORKS=2 FENCES=1
WAITING_OUTLIVE_FENCE   Q  OBJECTS=1 FORKS=2 FENCES=1
MINTER_HOLDS            S1 OBJECTS=1 FORKS=2 CRASHES=1
REGISTER_WHEN_MADE      Q  OBJECTS=1 FORKS=1 GIVEUPS=1
NO_WATERMARK            P  OBJECTS=1 FORKS=2 CRASHES=1
WATERMARK_OF_ALL_STARTS S2 OBJECTS=2 FORKS=3 CRASHES=1 RESTARTS=1
WAITING_FOREVER         Q  OBJECTS=1 FORKS=2 CRASHES=1
ID_WITHOUT_START        S3 OBJECTS=2 FORKS=3 CRASHES=1 RESTARTS=1
ANY_OWNER_START         P  OBJECTS=1 FORKS=2 CRASHES=1 RESTARTS=1
OWN_NOT_EXPECTED        S2 OBJECTS=1 FORKS=2
REFUSED_CALL_LEFT       Q  OBJECTS=1 FORKS=2
EPOCH_READ_LATE         S1 OWN=1 FORKS=1 FENCES=1 THREADS=1
ASK_THOUGH_BROKEN       Q  OBJECTS=1 FORKS=2 FENCES=1 THREADS=1
WAITING_ENDED_LATE      Q  OBJECTS=1 FORKS=2 FENCES=1 THREADS=1
PASSED_NOT_EXAMINED     P  OBJECTS=2 FORKS=3 WITHDRAWS=1
STARTS_OF_NAME          S3 OBJECTS=2 FORKS=3 CRASHES=1 RESTARTS=1 LATE=1
END
}

# build PROGRAM GCC-FLAGS...
build() {
    program=$1
    shift
    mkdir "$program.d"
    cp "$model"/*.pml "$program.d"
    # shellcheck disable=SC2086 # SPIN_FLAGS is a list
    (cd "$program.d" && spin ${SPIN_FLAGS:-} -a rref.pml >spin.out &&
        gcc -w -DNOREDUCE "$@" -o "../$program" pan.c) || {
        cat "$program.d/spin.out"
        echo 'the model cannot be compiled'
        exit 1
    }
}

number() { sed -n "s/^#define M_$1 \([0-9]*\) .*/\1/p" "$model/rref.pml"; }

# story BOUNDS...: of the run that was just found, one step a line.
story() {
    env "$@" ./pan -r 2>&1 | sed -n '/^ *[0-9]*:\tproc/d; s/^ *\(breaks \)/\1/p
        s/^ *\(those behind\|the [a-z]\|remote()\|[0-9] [a-z]\)/\1/p'
}

# run PROGRAM BOUNDS...: sets states, depth, errors.
run() {
    program=$1
    shift
    rm -f ./*.trail
    env "$@" "./$program" "-m$stack" "-w$table" -n >run.out 2>&1 || true
    states=$(sed -n 's/^ *\([0-9]*\) states, stored.*/\1/p' run.out | head -n 1)
    depth=$(sed -n 's/.*depth reached \([0-9]*\),.*/\1/p' run.out)
    errors=$(sed -n 's/.*errors: \([0-9]*\)$/\1/p' run.out)
    grep -q 'max search depth too small\|out of memory' run.out && errors=incomplete
    : "${states:=?}" "${depth:=?}" "${errors:=?}"
}

passed=0 failed=0
# row NAME OK VERDICT
row() {
    if [ "$2" = yes ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
    printf '%-26s %10s %6s  %s\n' "$1" "$states" "$depth" "$3"
}

# shellcheck disable=SC2086 # bounds are lists
check_world() {
    name=$1
    shift
    run pan "$@"
    if [ "$errors" = 0 ]; then
        row "$name" yes 'no error'
    else
        row "$name" no "ERRORS: $errors ($*)"
        [ "$errors" = incomplete ] || story "$@"
    fi
}

check_mutant() {
    name=$1 property=$2
    shift 2
    set -- "$@" "MUTANT=$(number "$name")"
    run pan "$@"
    broken=$(story "$@" | sed -n 's/^breaks //p')
    if [ "$broken" = "$property" ]; then
        row "$name" yes "caught: breaks $property"
    else
        row "$name" no "NOT CAUGHT as breaking $property: breaks '$broken' ($*)"
    fi
}

# A table of bounds, one row a line, through check_…
each() {
    while read -r name rest; do
        # shellcheck disable=SC2086
        "$1" "$name" $rest
    done
}

case $mode in
small)
    table=18 stack=10000
    build no_cycle -O0 -DNP &
    build pan -O0 -DSAFETY
    wait $!
    printf '%-26s %10s %6s  %s\n' 'world or mutant' states depth verdict
    worlds_small >worlds
    each check_world <worlds
    mutants >worlds
    each check_mutant <worlds
    # Without a cycle every run ends, and ends in quiescence().
    run no_cycle OBJECTS=1 FORKS=2 FENCES=1
    if [ "$errors" = 0 ]; then row 'every run ends' yes 'no cycle'; else row 'every run ends' no CYCLE; fi
    ;;
large)
    table=26 stack=100000
    SPIN_FLAGS='-DNFORK=3 -DNOBJECT=2' build pan -O2 -DSAFETY -DCOLLAPSE
    printf '%-26s %10s %6s  %s\n' world states depth verdict
    worlds_large >worlds
    each check_world <worlds
    ;;
story)
    table=18 stack=10000
    build pan -O0 -DSAFETY
    bounds=$(mutants | sed -n "s/^$3  *[A-Z0-9]*  *//p")
    # shellcheck disable=SC2086
    set -- $bounds "MUTANT=$(number "$3")"
    run pan "$@"
    story "$@"
    exit
    ;;
esac
printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" = 0 ]
