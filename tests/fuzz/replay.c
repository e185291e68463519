/* main() of a fuzz test without a fuzzer: runs each file of the given folders, and an empty input,
 * through LLVMFuzzerTestOneInput(). Ends with 1 when a folder can't be read or is empty.
 */
#include "tests/fuzz/fuzz.h"

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int complain(const char *path)
{
    fprintf(stderr, "can't read %s: %s\n", path, strerror(errno));
    return -1;
}

/* The memory that the function sees is exactly as long as the input, so that a sanitizer notices
 * the first byte read behind it. */
static int replay_file(const char *path)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return complain(path);
    long size = fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
    uint8_t *data = size < 0 ? NULL : malloc((size_t)size + (size == 0));
    rewind(file);
    bool read = data && fread(data, 1, (size_t)size, file) == (size_t)size;
    fclose(file);
    if (!read) {
        free(data);
        return complain(path);
    }
    printf("%s\n", path); /* so that the log of a crash names the input */
    fflush(stdout);
    LLVMFuzzerTestOneInput(data, (size_t)size);
    free(data);
    return 0;
}

static int replay_folder(const char *path)
{
    struct dirent **entries;
    int n = scandir(path, &entries, NULL, alphasort);
    if (n < 0)
        return complain(path);
    int files = 0, rc = 0;
    for (int i = 0; i < n; i++) {
        if (entries[i]->d_name[0] != '.') {
            char file[4096];
            snprintf(file, sizeof file, "%s/%s", path, entries[i]->d_name);
            rc |= replay_file(file);
            files++;
        }
        free(entries[i]);
    }
    free(entries);
    if (files == 0) {
        fprintf(stderr, "%s is empty: put a few inputs there\n", path);
        return -1;
    }
    return rc;
}

int main(int argc, char **argv)
{
    int rc = 0;
    LLVMFuzzerTestOneInput((const uint8_t *)"", 0);
    for (int i = 1; i < argc; i++)
        rc |= replay_folder(argv[i]);
    return rc == 0 ? 0 : 1;
}
