# Prints the body of the test `name` in a source, and the bodies of the functions of that source
# that it calls or starts as processes.
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

END {
    print text[name]
    for (other in text)
        if (other != name && text[name] ~ "(^|[^A-Za-z_0-9])" other "[(,)]")
            print text[other]
}
