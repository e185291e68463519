#!/bin/sh
# Installs into an empty folder, moves it, and builds programs against it as a user would: with
# pkg-config, with CMake, with the archive, as C++; then runs them with the installed launcher.
set -eu
hello=$PWD/examples/hello_rref.c
races=$PWD/tests/install/races.c
home=${TEST_TMPDIR:-$(mktemp -d)}/install
mkdir -p "$home"

say() { printf -- '-- %s\n' "$*"; }
die() {
    printf 'FAILED: %s\n' "$*"
    exit 1
}

tools/install/install "$home/first"
mv "$home/first" "$home/prefix" # nothing in it may know where it was put
prefix=$home/prefix
cd "$home"

say 'only tether_* is exported'
nm -D --defined-only "$prefix/lib/libtether.so" | awk '{ print $3 }' >exported
others=$(grep -v '^tether_[a-z0-9]' exported) || true
[ -z "$others" ] || die "libtether.so shows $others"
for symbol in tether_agent_start tether_remote_at tether_store_tcp_new tether_rendezvous; do
    grep -q "^$symbol@" exported || die "libtether.so lacks $symbol"
done
objdump -p "$prefix/lib/libtether.so" | grep -q 'SONAME *libtether\.so\.[0-9]*$' || die 'no soname'

export PKG_CONFIG_PATH="$prefix/lib/pkgconfig" LD_LIBRARY_PATH="$prefix/lib"
greets() { # program
    "$prefix/bin/tether-run" --standalone --nproc-per-node=2 --quiet -- "$1" >output ||
        die "$1 ended badly: $(cat output)"
    grep -q '^\[0\] hello, worker0, from process [0-9]' output || die "$1 said: $(cat output)"
}

say 'a program, with pkg-config alone'
# shellcheck disable=SC2046 # flags are meant to be split
cc -Wall -Wextra -Werror -o by_pkg_config "$hello" $(pkg-config --cflags --libs tether)
greets ./by_pkg_config

say 'a program that has the library in it'
# shellcheck disable=SC2046
cc -o by_archive "$hello" $(pkg-config --cflags tether) "$prefix/lib/libtether.a" \
    $(pkg-config --static --libs-only-l tether | sed 's/-ltether//')
! ldd ./by_archive | grep -q libtether || die 'by_archive still wants libtether.so'
greets ./by_archive

say 'the archive shows only tether_*'
others=$(nm --defined-only --extern-only "$prefix/lib/libtether.a" | awk 'NF == 3 { print $3 }' |
    grep -v '^tether_[a-z0-9]' | head -n 5) || true
[ -z "$others" ] || die "libtether.a shows $others"

say 'shared linking needs no development package but that of protobuf-c'
mkdir only
cp "$(pkg-config --variable=pcfiledir libprotobuf-c)/libprotobuf-c.pc" only
flags=$(PKG_CONFIG_LIBDIR=$PWD/only:$prefix/lib/pkgconfig PKG_CONFIG_PATH='' pkg-config --cflags --libs tether) ||
    die 'pkg-config wants more packages than libprotobuf-c'
case $flags in *-lgrpc* | *-luv* | *-lgpr*) die "the flags name libraries of others: $flags" ;; esac
# shellcheck disable=SC2086 # flags are meant to be split
cc -M $flags "$hello" >used
! grep -E '/(grpc|uv)[/.]' used || die 'the public headers include those of gRPC or libuv'
# shellcheck disable=SC2086
cc -o by_few_flags "$hello" $flags
greets ./by_few_flags

say 'the interface for other languages'
(cd "$prefix/share/tether" && protoc-c --c_out="$home" tether.proto) || die 'tether.proto is no proto'
grep -q 'tether__worker__call' tether.pb-c.h || die 'tether.proto has no service Worker'

say 'a program with the thread sanitizer'
# shellcheck disable=SC2046
cc -fsanitize=thread -o by_tsan "$hello" $(pkg-config --cflags --libs tether)
cat >tsan.sh <<TSAN
#!/bin/sh
TSAN_OPTIONS=suppressions=$prefix/share/tether/tsan.supp exec setarch -R "$home/by_tsan"
TSAN
chmod +x tsan.sh
greets ./tsan.sh
! grep -q 'WARNING: ThreadSanitizer' output || die "$(cat output)"

say 'its own races are reported, and no others'
# shellcheck disable=SC2046
cc -Wall -Wextra -Werror -fsanitize=thread -o races "$races" $(pkg-config --cflags --libs tether)
export TSAN_OPTIONS="suppressions=$prefix/share/tether/tsan.supp"
setarch -R ./races pass >output 2>&1 || die "a race where there is none: $(cat output)"
! setarch -R ./races race >output 2>&1 || die 'a race of a function with main() is not reported'
grep -q 'WARNING: ThreadSanitizer: data race' output || die "no report, but: $(cat output)"
unset TSAN_OPTIONS

say 'a program, with CMake'
mkdir project
cp "$hello" project/hello.c
cat >project/CMakeLists.txt <<'CMAKE'
cmake_minimum_required(VERSION 3.13)
project(hello C)
find_package(tether 0.1 REQUIRED)
add_executable(by_cmake hello.c)
target_link_libraries(by_cmake tether::tether)
add_executable(by_cmake_static hello.c)
target_link_libraries(by_cmake_static tether::static)
CMAKE
cmake -S project -B build -DCMAKE_PREFIX_PATH="$prefix" >cmake.log || die "$(cat cmake.log)"
cmake --build build >cmake.log || die "$(cat cmake.log)"
greets build/by_cmake
greets build/by_cmake_static

say 'a program in C++'
cat >hello.cc <<'CC'
#include <cstdio>

#include "rref/rref.h"

static tether_status greet(void *, const tether_value *, tether_value **ret, tether_error *err)
{
    return tether_value_printf(ret, err, "hello, %s, from process %d", tether_caller_name(), 1);
}

int main()
{
    tether_error err = {};
    tether_agent *agent = nullptr;
    tether_value *text = nullptr;
    if (tether_agent_new(TETHER_AGENT_OPTS(.rendezvous = "env://", .timeout_ms = 30000), &agent, &err) ||
        tether_agent_register(agent, "greet", greet, nullptr, &err) || tether_agent_start(agent, &err))
        return 1;
    if (tether_agent_rank(agent) == 0) {
        tether_rref *greeting = tether_remote(agent, "worker1", "greet", nullptr, TETHER_DEFAULT_MS);
        if (tether_rref_to_here(greeting, TETHER_DEFAULT_MS, &text, &err) == TETHER_OK)
            std::puts(tether_value_str(text));
        tether_value_release(text);
        tether_rref_release(greeting);
    }
    tether_agent_shutdown(agent, true, &err);
    tether_agent_release(agent);
    return err.code;
}
CC
for standard in c++11 c++20; do
    # shellcheck disable=SC2046
    c++ -std=$standard -Wall -Werror -o by_cpp hello.cc $(pkg-config --cflags --libs tether)
done
greets ./by_cpp

say 'every header alone, as C11 and as C++'
(cd "$prefix/include/tether" && find . -name '*.h') | sed 's|^\./||' >headers
[ "$(wc -l <headers)" -gt 10 ] || die 'few headers'
while read -r header; do
    printf '#include "%s"\n' "$header" >one.c
    cp one.c one.cc
    # shellcheck disable=SC2046
    cc -std=gnu11 -Wall -Wextra -Werror -fsyntax-only $(pkg-config --cflags tether) one.c ||
        die "$header is no C"
    # shellcheck disable=SC2046
    c++ -std=c++17 -Wall -Wextra -Werror -fsyntax-only $(pkg-config --cflags tether) one.cc ||
        die "$header is no C++"
done <headers

say 'tools and their manual pages'
for tool in tether-run tether-store tether-inspect; do
    "$prefix/bin/$tool" --version | grep -q "^$tool $(pkg-config --modversion tether)" ||
        die "$tool has another version"
    grep -q "^\.B $tool" "$prefix/share/man/man1/$tool.1" || die "no manual page of $tool"
done

say 'uninstall removes all of it, and nothing else'
echo mine >"$prefix/lib/mine"
"$prefix/share/tether/uninstall.sh" "$prefix"
[ "$(find "$prefix" -type f -o -type l)" = "$prefix/lib/mine" ] || die "left: $(find "$prefix" -type f)"
[ ! -e "$prefix/include" ] || die 'an empty folder is left'
echo 'all good'
