/* See locale.h. */
#include "tests/lib/locale.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>

bool tether_test_use_decimal_comma(void)
{
    const char *dir = getenv("TEST_TMPDIR");
    char command[512];
    snprintf(command, sizeof command,
             "cd %s && printf 'LC_NUMERIC\\ndecimal_point \",\"\\nthousands_sep "
             "\"\"\\ngrouping -1\\nEND LC_NUMERIC\\n' >comma.src && "
             "localedef -c -i ./comma.src -f ANSI_X3.4-1968 ./comma >/dev/null 2>&1; "
             "test -e comma/LC_NUMERIC",
             dir ? dir : "/tmp");
    if (system(command) != 0)
        return false;
    setenv("LOCPATH", dir ? dir : "/tmp", 1);
    return setlocale(LC_NUMERIC, "comma") != NULL;
}
