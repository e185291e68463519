"""What a library looks like from outside: one archive of all that it is made of, and its headers."""

OURS = ("base/", "net/", "rendezvous/", "rpc/", "rref/", "protos/")

def _is_ours(file):
    return file.short_path.startswith(OURS)

def _archives(dep):
    """The archives of `dep` and all below it: position-independent, so that they fit any program."""
    archives = []
    for linker_input in dep[CcInfo].linking_context.linker_inputs.to_list():
        for library in linker_input.libraries:
            archive = library.pic_static_library or library.static_library
            if archive and _is_ours(archive):
                archives.append(archive)
    return archives

def _full_archive_impl(ctx):
    archives = _archives(ctx.attr.dep)
    object = ctx.actions.declare_file(ctx.label.name + ".o")

    # One object, in which all names except the public ones are local, so that a program may use the
    # same names.
    ctx.actions.run_shell(
        inputs = archives,
        outputs = [ctx.outputs.out, object],
        command = """set -e
            ld -r -o {object} --whole-archive {archives}
            objcopy --wildcard --keep-global-symbol='tether_[a-z]*' {object}
            rm -f {archive}
            ar rcs {archive} {object}
        """.format(
            archive = ctx.outputs.out.path,
            archives = " ".join([archive.path for archive in archives]),
            object = object.path,
        ),
        mnemonic = "FullArchive",
    )

full_archive = rule(
    implementation = _full_archive_impl,
    doc = "One static archive of a cc_library and all of ours that it depends on. It shows tether_* only.",
    attrs = {
        "dep": attr.label(providers = [CcInfo], mandatory = True),
        "out": attr.output(mandatory = True),
    },
)

def _all_headers_impl(ctx):
    headers = [
        header
        for header in ctx.attr.dep[CcInfo].compilation_context.headers.to_list()
        if _is_ours(header) and header.is_source
    ]
    return [DefaultInfo(
        files = depset(headers),
        runfiles = ctx.runfiles(files = headers),
    )]

all_headers = rule(
    implementation = _all_headers_impl,
    doc = "The headers of a cc_library and of all of ours that it depends on.",
    attrs = {"dep": attr.label(providers = [CcInfo], mandatory = True)},
)
