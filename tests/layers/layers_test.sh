#!/bin/sh
# layers_test.sh GRAPH: fails when an edge of the graph goes from a lower layer to a higher one.
awk -F '"' '
    function layer(label) { split(substr(label, 3), part, /[\/:]/); return part[1] }
    BEGIN {
        rank["third_party"] = 0; rank["protos"] = 1; rank["base"] = 2
        rank["rendezvous"] = 3; rank["rpc"] = 4; rank["rref"] = 5; rank[""] = 6
    }
    / -> / {
        edges++
        from = layer($2); to = layer($4)
        if (!(from in rank) || !(to in rank) || rank[from] < rank[to]) {
            print $2 " must not depend on " $4
            wrong++
        }
    }
    END {
        if (edges == 0) print "there are no edges: is this a graph of //:tether?"
        exit(wrong > 0 || edges == 0)
    }
' "$1"
