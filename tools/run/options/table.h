/* One table of all options of tether-run, for the parser and for --help. */
#ifndef TETHER_TOOLS_RUN_OPTIONS_TABLE_H
#define TETHER_TOOLS_RUN_OPTIONS_TABLE_H

#include <stddef.h>

#include "tools/run/options/options.h"

#define RUN_MAX_NODES 100000
#define RUN_MAX_NPROC 4096
#define RUN_DAY_MS (24 * 3600 * 1000)

enum run_option_kind {
    RUN_FLAG,     /* the field is a bool; "--no-..." clears it */
    RUN_NUMBER,   /* the field is an int */
    RUN_DURATION, /* the field is an int, in ms */
    RUN_TEXT,     /* the field is a const char *; the text must not be empty */
    RUN_CHOICE,   /* the field is an enum, whose value is the index of the word */
    RUN_NODES,    /* the fields are min_nodes and max_nodes */
    RUN_NPROC,    /* the field is nproc; 0 for "auto" */
};

struct run_option {
    const char *name; /* name of the option; NULL ends a section */
    enum run_option_kind kind;
    size_t offset;     /* offset of the field in struct run_options */
    int min, max;      /* limits of a number, or of a duration in ms */
    const char *words; /* the words of a choice, separated by '|', in the order of the enum */
    const char *metavar;
    const char *help; /* text in --help; '\n' starts a new line */
};

struct run_option_section {
    const char *title; /* title of the section; NULL ends the table */
    const struct run_option *options;
};

extern const struct run_option_section run_option_table[];
extern const struct run_options run_option_defaults;

#endif
