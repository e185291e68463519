/* One table of all options of tether-run, for the parser and for --help. */
#ifndef TETHER_TOOLS_RUN_OPTIONS_TABLE_H
#define TETHER_TOOLS_RUN_OPTIONS_TABLE_H

#include <stddef.h>

#include "tools/run/options/options.h"

#define RUN_MAX_NODES 100000
#define RUN_MAX_NPROC 4096
#define RUN_DAY_MS (24 * 3600 * 1000)

enum run_option_kind {
    RUN_FLAG,     /* a bool; "no-..." clears it */
    RUN_NUMBER,   /* an int */
    RUN_DURATION, /* an int, in ms */
    RUN_TEXT,     /* a const char *, not empty */
    RUN_CHOICE,   /* an enum: the index of the word */
    RUN_NODES,    /* min_nodes and max_nodes */
    RUN_NPROC,    /* nproc; 0 for "auto" */
};

struct run_option {
    const char *name; /* NULL ends a section */
    enum run_option_kind kind;
    size_t offset;     /* in struct run_options */
    int min, max;      /* of a number; of a duration in ms */
    const char *words; /* of a choice, separated by '|', in the order of the enum */
    const char *metavar;
    const char *help; /* '\n' starts a new line */
};

struct run_option_section {
    const char *title; /* NULL ends the table */
    const struct run_option *options;
};

extern const struct run_option_section run_option_table[];
extern const struct run_options run_option_defaults;

#endif
