"""protobuf_c_library: a .proto file as a C library, made by Debian's protoc-c."""

def protobuf_c_library(name, src, imports = [], deps = [], visibility = ["//:__subpackages__"]):
    """Compiles `src` (a .proto in this package) into a cc_library called `name`.

    The header is included by its path in the tree: "protos/rpc.pb-c.h".

    Args:
      name: of the cc_library.
      src: the .proto file.
      imports: the .proto files that `src` imports.
      deps: other protobuf_c_library targets whose messages `src` imports.
      visibility: as for any rule.
    """
    stem = src[:-len(".proto")]
    native.genrule(
        name = name + "_gen",
        srcs = [src] + imports,
        outs = [stem + ".pb-c.c", stem + ".pb-c.h"],
        # The output paths follow the path under --proto_path, so that the generated
        # #include names the header from the root of the tree.
        cmd = "protoc-c --proto_path=. --c_out=$(GENDIR) $(location %s)" % src,
        message = "Generating C from",
    )
    native.cc_library(
        name = name,
        srcs = [stem + ".pb-c.c"],
        hdrs = [stem + ".pb-c.h"],
        visibility = visibility,
        deps = deps + ["//third_party:protobuf_c"],
    )
