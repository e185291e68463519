#!/bin/sh
# commands_test.sh DOCUMENT: every command in the ```sh blocks of a document works, in the order in
# which a reader types them, in one shell, in a folder that has what the root of the tree has.
#
# `./dev` is a stand-in there, since a test can't start another build: `demo` and `install` run what
# this build has made, other commands need only be ones that `./dev` knows. Port 29400 becomes a free
# one, and tether-inspect has a minute, since a busy machine may take longer than its default of 3 s.
# Marks before a block:
#
#   <!-- file NAME -->                           what follows is saved as NAME
#   <!-- in the background -->                   goes on while the next block runs
#   <!-- the screen after kill -9 of rank 2 -->  what the launcher says then, but for the numbers
set -eu
root=$PWD
document=$PWD/$1
home=${TEST_TMPDIR:-$(mktemp -d)}/reader
rm -rf "$home"
mkdir -p "$home/tree/examples"
cp "$root"/examples/*.* "$home/tree/examples"
cd "$home/tree"
HOME=$home TETHER_TREE=$root
export HOME TETHER_TREE

die() {
    printf 'FAILED: %s\n' "$*"
    exit 1
}
background=
end_background() {
    [ -n "$background" ] || return 0
    kill "$background" 2>/dev/null || true
    wait "$background" || true
    background=
}
trap end_background EXIT

cat >dev <<'DEV'
#!/bin/sh
cd "$TETHER_TREE" || exit 1
grep -q "^cmd_$1()" dev || { echo "./dev does not know '$1'"; exit 1; }
case $1 in
demo) exec examples/demo/demo ;;
install) exec tools/install/install "${2#--prefix=}" ;;
esac
DEV
chmod +x dev

# Takes the document apart: the files, block_1, block_2 ... with kind_1 ... beside them, and screen.
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
blocks=$(sed "s/29400/$port/g; s/^tether-inspect /&--timeout=60000 /" "$document" | awk '
    /^<!-- file / { name = $3 }
    /^<!-- in the background/ { kind = "background" }
    /^<!-- the screen after/ { name = "screen" }
    /^```/ && out { close(out); out = ""; kind = ""; name = ""; next }
    /^```sh$/ { out = "block_" ++n; printf "%s\n", kind > ("kind_" n); next }
    /^```/ && name { out = name; next }
    /^```/ { out = "/dev/null"; next }
    out { print > out }
    END { print n + 0 }
')
[ "$blocks" -gt 0 ] || die "$document has no commands"

# until COMMAND...: waits for it to succeed, a minute at the most.
until_true() {
    tries=0
    while ! "$@" >/dev/null 2>&1; do
        tries=$((tries + 1))
        [ "$tries" -lt 600 ] || die "waited in vain for: $*"
        sleep 0.1
    done
}
four_have_met() { tether-inspect --store=127.0.0.1:"$port" | grep -q ': 4 workers'; }

block=0
while [ "$block" -lt "$blocks" ]; do
    block=$((block + 1))
    cat "block_$block"
    if [ "$(cat "kind_$block")" = background ]; then
        sed -i '1s/^/exec /' "block_$block" # one command: it is what is ended in the end
        sh "./block_$block" >/dev/null 2>&1 &
        background=$!
        until_true four_have_met
    else
        # shellcheck disable=SC1090 # that is what is tested; here, so that its exports last
        . "./block_$block"
        end_background
    fi
done

# numbers_aside FILE: without what differs from run to run.
numbers_aside() { sed 's/[0-9][0-9.]*/N/g; s/  */ /g' "$1"; }

if [ -f screen ]; then
    tether-run --nproc-per-node=4 -- ./worker 1000 >said 2>shown &
    launcher=$!
    until_true grep -q '^\[2\] .*10 squared' said
    kill -9 "$(sed -n 's/^\[2\] worker2 is process \([0-9]*\) .*/\1/p' said)"
    ! wait "$launcher" || die 'the job ended well although a worker was killed'
    lines=$(wc -l <screen)
    head -n "$lines" shown >top
    numbers_aside screen >expected
    numbers_aside top >got
    diff expected got || die 'the screen shows something else'
fi
echo "$blocks blocks of commands work"
