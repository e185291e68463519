#!/bin/sh
# layers_test.sh ORDER GRAPH: fails when an edge of the graph goes from a package to one that ORDER lists
# below it, or to or from one that ORDER does not list.
awk -F '"' '
    function package(label) { sub(/^\/\//, "", label); sub(/:.*/, "", label); return label }
    FNR == NR {
        if ($0 !~ /^#/)
            rank[$0] = ++packages
        next
    }
    / -> / {
        edges++
        from = package($2); to = package($4)
        if (from == "") # all of Tether
            next
        if (!(from in rank) || !(to in rank) || rank[from] < rank[to]) {
            print $2 " must not depend on " $4
            wrong++
        }
    }
    END {
        if (edges == 0) print "there are no edges: is this a graph of //:tether?"
        exit(wrong > 0 || edges == 0)
    }
' "$1" "$2"
