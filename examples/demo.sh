#!/bin/sh
# What `./dev demo` shows: a group of workers on this machine that call each other.
here=$(dirname "$0")
exec "$here/../tools/tether-run" --nproc-per-node=2 -- "$here/hello"
