/* Formats the summary that is printed at the end. */
#include "tools/run/workers/summary.h"

#include <stdio.h>

static tether_status add_row(const struct run_crew *crew,
                             const struct run_worker *worker,
                             tether_buf *text)
{
    char result[48], note[32] = "";
    run_worker_result(worker, result, sizeof result);
    if (worker == crew->first_failed)
        snprintf(note, sizeof note, "  failed first");
    else if (worker->stopped && worker->exit_signal)
        snprintf(note, sizeof note, "  stopped");
    double seconds = (double)(worker->exited_ms - worker->started_ms) / 1000;
    int restarts = worker->starts > 0 ? worker->starts - 1 : 0;
    return tether_buf_printf(text, "%5d  %8ld  %-16s %9.1f s  %8d%s\n", worker->rank,
                             (long)worker->pid, result, seconds, restarts, note);
}

/* Appends the last lines of a worker, each indented. */
static tether_status add_tail(const struct run_worker *worker, int lines, tether_buf *text)
{
    tether_buf tail = TETHER_BUF_INIT;
    tether_status st = run_tail_lines(&worker->tail, lines, &tail);
    if (st == TETHER_OK && tail.len > 0)
        st = tether_buf_printf(text, "last lines of rank %d:\n", worker->rank);
    for (char *rest = tail.data, *line; st == TETHER_OK && rest && *rest;) {
        line = strsep(&rest, "\n");
        st = tether_buf_printf(text, "    %s\n", line);
    }
    tether_buf_fini(&tail);
    return st;
}

tether_status run_summary(const struct run_crew *crew, int tail_lines, tether_buf *ret_text)
{
    tether_status st = TETHER_OK;
    bool any = false;
    for (int i = 0; i < crew->n; i++)
        any |= crew->workers[i].starts > 0;
    if (!any)
        return TETHER_OK;
    st = tether_buf_printf(ret_text, "%5s  %8s  %-16s %11s  %8s\n", "rank", "pid", "exit", "time",
                           "restarts");
    for (int i = 0; st == TETHER_OK && i < crew->n; i++)
        st = add_row(crew, &crew->workers[i], ret_text);
    if (st == TETHER_OK && crew->first_failed)
        st = add_tail(crew->first_failed, tail_lines, ret_text);
    return st;
}
