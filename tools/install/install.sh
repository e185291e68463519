#!/bin/sh
# install.sh PREFIX: installs libraries, headers, tools, manual pages, and the files for pkg-config, CMake,
# clients in other languages and the thread sanitizer below PREFIX, which can be moved afterwards.
# share/tether/installed lists all files, for uninstall.sh.
set -eu
prefix=$1
root=$0.runfiles/tether
[ -d "$root" ] || root=. # as part of a test
version=$(sed -n 's/#define TETHER_VERSION "\(.*\)"/\1/p' "$root/base/macros.h")
major=${version%%.*}

list=$prefix/share/tether/installed
mkdir -p "$prefix/share/tether"
: >"$list"

# note FILE: adds a file below the prefix to the list.
note() { printf '%s\n' "${1#"$prefix"/}" >>"$list"; }
put() {
    install -D -m "$1" "$2" "$3"
    note "$3"
}
link() {
    ln -sf "$1" "$2"
    note "$2"
}
note "$list"

put 755 "$root/libtether.so" "$prefix/lib/libtether.so.$version"
link "libtether.so.$version" "$prefix/lib/libtether.so.$major"
link "libtether.so.$major" "$prefix/lib/libtether.so"
put 644 "$root/tools/install/libtether.a" "$prefix/lib/libtether.a"

# A header is public if it declares a symbol of the ABI.
(cd "$root" && find base rendezvous rpc rref -name '*.h' -exec grep -l TETHER_API {} +) |
    while read -r header; do
        put 644 "$root/$header" "$prefix/include/tether/$header"
    done

for tool in tether-inspect tether-run tether-store; do
    put 755 "$root/tools/$tool" "$prefix/bin/$tool"
    put 644 "$root/tools/install/$tool.1" "$prefix/share/man/man1/$tool.1"
done

mkdir -p "$prefix/lib/pkgconfig"
sed "s/@VERSION@/$version/" "$root/tools/install/tether.pc.in" >"$prefix/lib/pkgconfig/tether.pc"
note "$prefix/lib/pkgconfig/tether.pc"
put 644 "$root/tools/install/tether-config.cmake" "$prefix/lib/cmake/tether/tether-config.cmake"
cat >"$prefix/lib/cmake/tether/tether-config-version.cmake" <<CMAKE
set(PACKAGE_VERSION $version)
if(PACKAGE_FIND_VERSION VERSION_LESS_EQUAL PACKAGE_VERSION AND
   PACKAGE_FIND_VERSION_MAJOR EQUAL $major)
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
endif()
if(PACKAGE_FIND_VERSION VERSION_EQUAL PACKAGE_VERSION)
  set(PACKAGE_VERSION_EXACT TRUE)
endif()
CMAKE
note "$prefix/lib/cmake/tether/tether-config-version.cmake"

# For clients in other languages. protobuf-c does not support services, so the service is a comment in the tree.
sed '/^\/\/ service Worker {/,/^\/\/ }/s|^// \{0,1\}||' "$root/protos/rpc.proto" \
    >"$prefix/share/tether/tether.proto"
note "$prefix/share/tether/tether.proto"

# For programs that are built with the thread sanitizer: suppressions for libraries that are not. Tether is not
# among them as a whole: its locks order the program's data, and its functions call those of the program. Its
# own memory is, which atomics order.
{
    echo '# TSAN_OPTIONS=suppressions=FILE: calls from libraries that are built without the sanitizer'
    sed -n 's/.*"\(\(called_from_lib\|thread\):[^\\]*\).*/\1/p' "$root/third_party/grpc_sanitizers.c"
    # The function that calls malloc() and so on has one of these names, depending on the optimisation.
    for function in malloc calloc realloc free; do
        printf 'race:^tether__%s$\nrace:^libc_%s$\n' "$function" "$function"
    done
    printf 'race:^%s$\n' value_alloc tether__future_fini
} >"$prefix/share/tether/tsan.supp"
note "$prefix/share/tether/tsan.supp"

put 755 "$root/tools/install/uninstall.sh" "$prefix/share/tether/uninstall.sh"
