"""What the units of a library are made of, as facts for units_test.sh."""

_Facts = provider(fields = ["files"])

def _is_ours(label):
    return not label.workspace_name and label.package != "third_party"

def _name(label):
    """The label as people write it: //a/b for //a/b:b."""
    text = "//%s:%s" % (label.package, label.name)
    return text[:-len(label.name) - 1] if label.package.split("/")[-1] == label.name else text

def _objects(target):
    """The object files of the target itself, without those of its dependencies."""
    objects = []
    for linker_input in target[CcInfo].linking_context.linker_inputs.to_list():
        if linker_input.owner == target.label:
            for library in linker_input.libraries:
                objects += library.pic_objects or library.objects or []
    return objects

def _facts_impl(target, ctx):
    below = [dep[_Facts].files for dep in getattr(ctx.rule.attr, "deps", []) if _Facts in dep]
    if ctx.rule.kind != "cc_library" or not _is_ours(target.label):
        return [_Facts(files = depset(transitive = below))]
    unit = _name(target.label)
    sources = ctx.rule.files.srcs + ctx.rule.files.hdrs
    lines = ["header %s %s" % (unit, header.short_path) for header in ctx.rule.files.hdrs]
    lines += ["own %s %s" % (unit, source.short_path) for source in sources]
    lines += ["dep %s %s" % (unit, _name(dep.label)) for dep in ctx.rule.attr.deps if _is_ours(dep.label)]

    declared = ctx.actions.declare_file("%s.declared" % target.label.name)
    ctx.actions.write(declared, "\n".join(lines) + "\n")
    used = ctx.actions.declare_file("%s.used" % target.label.name)
    objects = _objects(target)
    ctx.actions.run_shell(
        inputs = objects + sources,
        outputs = [used],
        arguments = [unit, used.path] + [object.path for object in objects] + ["--"] +
                    [source.path for source in sources],
        command = """set -e
            unit=$1; out=$2; shift 2
            {
                while [ "$1" != -- ]; do
                    nm "$1" | awk -v unit="$unit" '
                        $(NF - 1) == "U" { print "undefined", unit, $NF }
                        $(NF - 1) ~ /^[ABCDRTVW]$/ { print "defined", unit, $NF }'
                    shift
                done
                shift
                [ $# = 0 ] || awk -F '"' -v unit="$unit" '/^#include "/ { print "include", unit, $2 }' "$@"
            } | sort -u >"$out"
        """,
        mnemonic = "UnitFacts",
    )
    return [_Facts(files = depset([declared, used], transitive = below))]

_facts = aspect(implementation = _facts_impl, attr_aspects = ["deps"])

def _unit_facts_impl(ctx):
    files = ctx.attr.dep[_Facts].files
    out = ctx.actions.declare_file(ctx.label.name + ".txt")
    args = ctx.actions.args()
    args.add(out)
    args.add_all(files)
    ctx.actions.run_shell(
        inputs = files,
        outputs = [out],
        arguments = [args],
        command = 'out=$1; shift; cat "$@" >"$out"',
        mnemonic = "UnitFacts",
    )
    return [DefaultInfo(files = depset([out]), runfiles = ctx.runfiles(files = [out]))]

unit_facts = rule(
    implementation = _unit_facts_impl,
    doc = """Describes `dep` and all of our libraries below it, a fact a line:

    header UNIT FILE       others may include FILE
    own UNIT FILE          FILE is one of the unit's
    dep UNIT UNIT          the BUILD file says so
    include UNIT FILE      a file of the unit includes FILE
    defined UNIT SYMBOL    as nm says
    undefined UNIT SYMBOL
    """,
    attrs = {"dep": attr.label(providers = [CcInfo], aspects = [_facts], mandatory = True)},
)
