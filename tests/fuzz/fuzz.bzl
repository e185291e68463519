"""tether_fuzz_test: one fuzz function, fuzzed by `./dev fuzz` and replayed by `./dev test`."""

def tether_fuzz_test(name, srcs, deps):
    """Makes two targets of a source that defines LLVMFuzzerTestOneInput() (fuzz.h).

    `name` is an ordinary test: it runs every file of corpus/`name`/ (and an empty input) through
    the function, so that what was found once stays fixed. `name`_fuzzer is the same with clang's
    libFuzzer in it; it builds with --config=fuzz only, and `./dev fuzz` finds it by its tag. The
    corpus folder sits next to the BUILD file: a few small inputs that are valid, and each one that
    ever broke something.

    Args:
      name: ends in _test, as all tests do.
      srcs: the file with LLVMFuzzerTestOneInput(), which must leave nothing behind.
      deps: as for cc_test.
    """
    corpus = "corpus/" + name
    native.cc_test(
        name = name,
        size = "small",
        srcs = srcs,
        args = [native.package_name() + "/" + corpus],
        data = native.glob([corpus + "/**"]),
        deps = deps + ["//tests/fuzz:replay"],
    )
    native.cc_binary(
        name = name + "_fuzzer",
        testonly = True,
        srcs = srcs,
        linkopts = ["-fsanitize=fuzzer"],
        tags = [
            "fuzz",
            "manual",
        ],
        deps = deps + ["//tests/fuzz"],
    )
