/* Every example does what its header comment says, started as it says, and leaves nothing behind.
 * (custom_store and elastic have tests in tests/rendezvous/store and tests/tools.) */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/lib/cmocka.h"
#include "tests/lib/wait.h"
#include "tests/tools/launch.h"

/* Runs an example on `n` workers to its good end. */
static char *run(const char *n, const char *example, const char *arg)
{
    char nproc[32];
    snprintf(nproc, sizeof nproc, "--nproc-per-node=%s", n);
    struct tether_test_child *child = launch("--standalone", nproc, "--", example, arg);
    char *output = await_exit(child, 0);
    has_not(output, "TETHER_E");
    tether_test_child_free(child);
    return output;
}

static void hello_rref_example_prints_its_greeting(void **state)
{
    (void)state;
    char *output = run("2", "examples/hello_rref", NULL);
    has(output, "[0] hello, worker0, from process ");
    free(output);
}

static void parameter_server_example_converges(void **state)
{
    (void)state;
    char *output = run("4", "examples/parameter_server", NULL);
    has(output, "[0] round 16  loss  0.0");
    has(output, "[0] slope ");
    assert_int_equal(count_text(output, "the model is gone\n"), 1);
    free(output);
}

static void pipeline_example_reverses_texts(void **state)
{
    (void)state;
    char *output = run("4", "examples/pipeline", NULL);
    has(output, "[0] stressed  -> \"DESSERTS\"\n");
    has(output, "[0] flow      -> \"WOLF\"\n");
    has(output, "[1] stage reverse is gone\n");
    has(output, "[2] stage upper is gone\n");
    has(output, "[3] stage quote is gone\n");
    free(output);
}

static void scatter_gather_example_computes_pi(void **state)
{
    (void)state;
    char *output = run("4", "examples/scatter_gather", NULL);
    has(output, "[0] [##########..........]  50 %\n");
    has(output, "[0] [####################] 100 %\n");
    has(output, "pi is about 3.14");
    free(output);
}

static void actor_learner_example_converges(void **state)
{
    (void)state;
    char *output = run("4", "examples/actor_learner", NULL);
    has(output, "[0] 360 episodes; the best machine pays 0.90, the actors got 0.");
    free(output);
}

/* Started alone, an example that needs others says so. */
static void examples_refuse_to_run_with_too_few_workers(void **state)
{
    (void)state;
    static const struct {
        const char *example, *says;
    } lonely[] = {
        {"examples/hello_rref",
         "TETHER_ENOTFOUND: no worker named 'worker1' is in the group at tcp"},
        {"examples/parameter_server", "TETHER_EINVAL: there is no trainer: start two"},
        {"examples/actor_learner", "TETHER_EINVAL: there is no actor: start two"},
        {"examples/pipeline", "TETHER_EINVAL: the stages need other workers: start two"},
    };
    for (size_t i = 0; i < sizeof lonely / sizeof *lonely; i++) {
        struct tether_test_child *child = launch("--standalone", "--", lonely[i].example);
        char *output = await_exit(child, 1);
        has(output, lonely[i].says);
        free(output);
        tether_test_child_free(child);
    }
}

static void mtls_example_refuses_client_without_certificate(void **state)
{
    (void)state;
    char folder[] = "/tmp/tether-mtls-XXXXXX", command[64];
    assert_non_null(mkdtemp(folder));
    struct tether_test_child *certs =
        tether_test_child_start((const char *const[]){"examples/mtls_certs.sh", folder, NULL});
    assert_true(tether_test_child_wait(certs, TETHER_TEST_LIMIT_MS));
    assert_true(tether_test_child_ok(certs));
    tether_test_child_free(certs);

    char *output = run("2", "examples/mtls", folder);
    has(output, "[0] worker1: the answer is 42, worker0\n");
    has(output, "[0] the visitor: ");
    has_not(output, "got in");
    free(output);
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

static void python_client_example_calls_a_function(void **state)
{
    (void)state;
    struct tether_test_child *server =
        tether_test_child_start((const char *const[]){"examples/python_client", NULL});
    await_text(server, "\n", 1);
    char *server_output = tether_test_child_output(server), address[64];
    assert_int_equal(sscanf(server_output, "serving on %63s", address), 1);
    free(server_output);
    struct tether_test_child *client = tether_test_child_start((const char *const[]){
        "/usr/bin/python3", "examples/python_client.py", address, "one two three", NULL});
    char *output = await_exit(client, 0);
    has(output, "'one two three' has 3 words\n");
    has(output, "'  ': INVALID_ARGUMENT: ");
    has(output, "send a text with words in it\n");
    free(output);
    tether_test_child_free(client);

    tether_test_signal_pid(server->pid, SIGTERM);
    free(await_exit(server, 0));
    tether_test_child_free(server);
}

int main(int argc, char **argv)
{
    tether_test_main(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hello_rref_example_prints_its_greeting),
        cmocka_unit_test(parameter_server_example_converges),
        cmocka_unit_test(pipeline_example_reverses_texts),
        cmocka_unit_test(scatter_gather_example_computes_pi),
        cmocka_unit_test(actor_learner_example_converges),
        cmocka_unit_test(mtls_example_refuses_client_without_certificate),
        cmocka_unit_test(python_client_example_calls_a_function),
        cmocka_unit_test(examples_refuse_to_run_with_too_few_workers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
