/* Prints groups: as tables, as a tree of objects and their holders, as JSON, or for Graphviz. */
#ifndef TETHER_TOOLS_INSPECT_PRINT_H
#define TETHER_TOOLS_INSPECT_PRINT_H

#include <stdio.h>

#include "base/text.h"
#include "tools/inspect/group.h"

/* Prints `n` groups to `out`. */
typedef void inspect_printer(FILE *out, const struct inspect_group *groups, size_t n);

inspect_printer inspect_print_table;
inspect_printer inspect_print_tree;
inspect_printer inspect_print_json;
inspect_printer inspect_print_dot;

/* Prints text of a worker or the store, escaped for `style`. */
void inspect_put(FILE *out, const char *text, enum tether__text_style style);

#endif
