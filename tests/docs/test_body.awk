# Prints the body of the test `name` in a source, and the bodies of the functions of that source
# that it calls or starts as processes, and of those that these call. (Several tests that differ in
# a parameter share a function, which starts the processes.)
#
#     awk -v name=the_test -f test_body.awk file.c

# The name that a line at the margin defines; "" for any other line.
function defined(line,    parts) {
    if (line ~ /^(TETHER_PROC_TEST|TETHER_PROC_ROLE|ATTACK)\(/) {
        split(line, parts, /[(),]/)
        return parts[2]
    }
    if (line !~ /^[a-z][A-Za-z_0-9 *]*[ *][a-z_0-9]+\(/)
        return ""
    sub(/\(.*/, "", line)
    sub(/.*[ *]/, "", line)
    return line
}

/^[A-Za-z]/ {
    at = defined($0)
}
at != "" {
    text[at] = text[at] $0 "\n"
}
/^}/ || /;$/ && /^[A-Za-z]/ {
    at = "" # also the end of a declaration
}

# Adds the functions that `body` names to `found`.
function add(body,    other) {
    for (other in text)
        if (body ~ "(^|[^A-Za-z_0-9])" other "[(,)]")
            found[other] = 1
}

END {
    add(text[name])
    for (other in found)
        called[other] = 1
    for (other in called)
        add(text[other])
    print text[name]
    for (other in found)
        print text[other]
}
