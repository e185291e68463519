#!/bin/sh
# install.sh PREFIX: puts libraries, headers, tools, manual pages, and what pkg-config and CMake want
# to know, below PREFIX, which can be moved afterwards.
set -eu
prefix=$1
root=$0.runfiles/tether
[ -d "$root" ] || root=. # as part of a test
version=$(sed -n 's/#define TETHER_VERSION "\(.*\)"/\1/p' "$root/base/macros.h")
major=${version%%.*}

put() { install -D -m "$1" "$2" "$3"; }

put 755 "$root/libtether.so" "$prefix/lib/libtether.so.$version"
ln -sf "libtether.so.$version" "$prefix/lib/libtether.so.$major"
ln -sf "libtether.so.$major" "$prefix/lib/libtether.so"
put 644 "$root/tools/install/libtether.a" "$prefix/lib/libtether.a"

# A header is public when it has something of the ABI in it.
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
