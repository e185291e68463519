#!/bin/sh
# units_test.sh FACTS UNIT-PREFIX...: checks that the units whose label begins with one of the prefixes
# declare the dependencies that they have, and no others. A unit depends on another if it uses a symbol
# that the other defines, or includes one of its headers. The symbols of a unit in a folder below another
# may be had through the upper one, if that declares it. FACTS is the output of symbols.bzl.
facts=$1
shift
awk -v prefixes="$*" '
    function is_checked(unit,    i) {
        for (i = 1; i <= n_prefixes; i++)
            if (index(unit, prefix[i]) == 1)
                return 1
        return 0
    }
    # The declared dependency of `unit` that brings `definer`: itself, or a unit in a folder above it.
    function declared_way(unit, definer,    upper) {
        for (upper = definer; upper != "/"; sub(/[\/:][^\/:]*$/, "", upper))
            if ((unit, upper) in declared && (upper == definer || (upper, definer) in declared))
                return upper
        return ""
    }
    # A header that several units export belongs to any of them that is declared.
    function include_is_declared(unit, header,    i, owners, n, found) {
        n = split(exporters[header], owners, " ")
        for (i = 1; i <= n; i++)
            if ((unit, owners[i]) in declared) {
                used[unit, owners[i]] = 1
                found = 1
            }
        return found
    }
    BEGIN { n_prefixes = split(prefixes, prefix, " ") }
    $1 == "header" { exporters[$3] = exporters[$3] " " $2 }
    $1 == "own" { owns[$2, $3] = 1; has_files[$2] = 1 }
    $1 == "dep" { declared[$2, $3] = 1 }
    $1 == "defined" { definer[$3] = $2 }
    $1 == "include" { includes[++n_includes] = $2 " " $3 }
    $1 == "undefined" { undefineds[++n_undefineds] = $2 " " $3 }
    END {
        for (i = 1; i <= n_undefineds; i++) {
            split(undefineds[i], fact, " ")
            unit = fact[1]; symbol = fact[2]
            if (!is_checked(unit) || !(symbol in definer) || definer[symbol] == unit)
                continue
            edges++
            way = declared_way(unit, definer[symbol])
            used[unit, way] = 1
            if (way == "") {
                print unit " uses " symbol " of " definer[symbol] ": add it to its deps, or do without"
                wrong++
            }
        }
        for (i = 1; i <= n_includes; i++) {
            split(includes[i], fact, " ")
            unit = fact[1]; header = fact[2]
            if (!is_checked(unit) || !(header in exporters) || (unit, header) in owns)
                continue
            if (!include_is_declared(unit, header)) {
                print unit " includes " header " of" exporters[header] ": add it to its deps, or do without"
                wrong++
            }
        }
        for (edge in declared) {
            split(edge, fact, SUBSEP)
            # A unit without files only gathers others.
            if (is_checked(fact[1]) && fact[1] in has_files && !(edge in used)) {
                print fact[1] " declares " fact[2] " and uses nothing of it: remove it from its deps"
                wrong++
            }
        }
        if (edges == 0) print "no symbol is used across units: are these facts of //:tether?"
        exit(wrong > 0 || edges == 0)
    }
' "$facts"
