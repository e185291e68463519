# comments.awk FILE...: reads C headers and tells of every public function (TETHER_API) for which
# nobody says what a caller must know:
#
#   ownership  where something may change hands: it returns a pointer, or has `ret_`, `void *` or
#              a callback among its arguments
#   threads    always: from which threads it may be called, or that it blocks
#   errors     where it can fail: it returns a status or a pointer
#
# It is said by the comment before the function, or before the group of declarations that it stands
# in (a blank line ends a group), or behind it on its line; or for many functions at once by a
# paragraph "Ownership:", "Threads:" or "Errors:" in the comment that opens the file or the section
# (a comment that begins with "----"). Exit code 1 when something is missing, or nothing was found.

function topics_of_paragraphs(text, into) {
    into["ownership"] = text ~ /\n \* Ownership:/
    into["threads"] = text ~ /\n \* Threads:/
    into["errors"] = text ~ /\n \* Errors[a-z ]*:/
}

function says(topic, text) {
    gsub(/\n \* ?/, " ", text)
    if (topic == "ownership")
        return text ~ /LENDS|LENT|TAKES|[Yy]ours|[Rr]etain|[Rr]eleas|[Cc]op(y|ied)|[Bb]orrow|[Ff]rees?|[Ss]tatic string|[Cc]aller's/
    if (topic == "threads")
        return text ~ /[Tt]hread|[Bb]lock/
    return text ~ /TETHER_E[A-Z]|[Ee]rrors|[Nn]ever fails?|[Nn]ever NULL|of memory|no memory|NULL (when|beyond|for|where|outside|:)|returns? NULL|(else|or|gives) NULL/
}

function needs(topic, declaration) {
    returns_pointer = declaration ~ /^TETHER_API [a-z_ ]*\*/
    if (topic == "ownership")
        return returns_pointer || declaration ~ /ret_|void \*|_fn \*|_cb \*/
    if (topic == "errors")
        return returns_pointer || declaration ~ /^TETHER_API tether_status /
    return 1
}

function check(declaration, line,    i, topic, name, said) {
    total++
    said = comment " " (match(declaration, /\/\*/) ? substr(declaration, RSTART) : "")
    name = declaration
    sub(/\(.*/, "", name)
    sub(/.*[ *]/, "", name)
    for (i = 1; i <= 3; i++) {
        topic = i == 1 ? "ownership" : i == 2 ? "threads" : "errors"
        if (needs(topic, declaration) && !by_file[topic] && !by_section[topic] && !says(topic, said)) {
            printf "%s:%d: %s: the comment does not say its %s\n", FILENAME, line, name, topic
            bad++
        }
    }
}

FNR == 1 { comment = ""; is_first = 1; declaration = ""; in_comment = 0; topics_of_paragraphs("", by_section) }

# A comment of its own lines: opens the file, a section or a group.
!declaration && (in_comment || /^\/\*/) {
    if (!in_comment)
        comment = ""
    comment = comment "\n" $0
    in_comment = $0 !~ /\*\//
    if (in_comment)
        next
    if (is_first) {
        topics_of_paragraphs(comment, by_file)
        comment = ""
        is_first = 0
    } else if (comment ~ /^\n\/\* ----/) {
        topics_of_paragraphs(comment, by_section)
        comment = ""
    }
    next
}

/^$/ { comment = ""; next }

/^TETHER_API/ { declaration = $0; first_line = FNR }
declaration && !/^TETHER_API/ { declaration = declaration " " $0 }
declaration && /;/ { check(declaration, first_line); declaration = "" }

END {
    if (!total) {
        print "there are no public functions: are these the headers?"
        bad++
    }
    exit(bad > 0)
}
