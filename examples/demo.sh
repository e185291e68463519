#!/bin/sh
# What `./dev demo` shows: a group of workers on this machine that hold references to each other's objects.
here=$(dirname "$0")
exec "$here/../tools/tether-run" --nproc-per-node=2 -- "$here/hello_rref"
