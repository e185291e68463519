# find_package(tether) gives the target tether::tether, and tether::static, which puts the library
# into your program.
get_filename_component(_tether_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

if(NOT TARGET tether::tether)
  add_library(tether::tether SHARED IMPORTED)
  set_target_properties(tether::tether PROPERTIES
    IMPORTED_LOCATION "${_tether_prefix}/lib/libtether.so"
    INTERFACE_INCLUDE_DIRECTORIES "${_tether_prefix}/include/tether"
    INTERFACE_LINK_LIBRARIES "protobuf-c")

  add_library(tether::static STATIC IMPORTED)
  set_target_properties(tether::static PROPERTIES
    IMPORTED_LOCATION "${_tether_prefix}/lib/libtether.a"
    INTERFACE_INCLUDE_DIRECTORIES "${_tether_prefix}/include/tether"
    INTERFACE_LINK_LIBRARIES "protobuf-c;grpc;gpr;crypto;uv;pthread;m")
endif()
unset(_tether_prefix)
