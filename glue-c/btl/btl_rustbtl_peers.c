/*
 * Who is where, what processes tell each other, and what happens when one is lost.
 */
#include "btl_rustbtl.h"
#include "said_once.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "opal/mca/installdirs/installdirs.h"
#include "opal/util/argv.h"
#include "opal/util/output.h"
#include "opal/util/proc.h"
#include "opal/util/show_help.h"

/* Not the component's own key: that has Open MPI's version in it. */
#define CARD_KEY "rustbtl.btl"
#define HELP_FILE "help-mca-btl-rustbtl.txt"

static mca_btl_base_module_error_cb_fn_t report_error;
static bool help_file_found;
/* Threads that meet processes: Open MPI's, and one that makes progress. */
static pthread_mutex_t endpoints_lock = PTHREAD_MUTEX_INITIALIZER;
static mca_btl_base_endpoint_t *all_endpoints;
/* By the number of the process, for those of this job: numbers of spawned ones are far apart. */
static mca_btl_base_endpoint_t **numbered;
static uint32_t numbered_size;

/* ---- this process --------------------------------------------------------------------------- */

static int ascending(const void *one, const void *other)
{
    uint32_t a = *(const uint32_t *) one, b = *(const uint32_t *) other;
    return (a > b) - (a < b);
}

int mca_btl_rustbtl_place(rustbtl_btl_place_t *place)
{
    opal_process_name_t whole_job = { .jobid = OPAL_PROC_MY_NAME.jobid,
                                      .vpid = OPAL_VPID_WILDCARD };
    uint32_t size = 1, *size_here = &size;
    char *list = NULL;
    int rc;
    OPAL_MODEX_RECV_VALUE_OPTIONAL(rc, CORRELATED_PMIX(JOB_SIZE), &whole_job, &size_here,
                                   CORRELATED_PMIX_UINT32);
    OPAL_MODEX_RECV_VALUE_OPTIONAL(rc, CORRELATED_PMIX(LOCAL_PEERS), &whole_job, &list,
                                   CORRELATED_PMIX_STRING);
    char **peers = OPAL_SUCCESS == rc && NULL != list ? opal_argv_split(list, ',') : NULL;
    free(list);
    uint32_t count = (uint32_t) opal_argv_count(peers), n = 0;
    uint32_t *ranks = calloc((size_t) count + 1, sizeof(*ranks));
    numbered = calloc(size, sizeof(*numbered));
    if (NULL == ranks || NULL == numbered) {
        opal_argv_free(peers);
        free(ranks);
        return OPAL_ERR_OUT_OF_RESOURCE;
    }
    numbered_size = size;
    bool with_me = false;
    for (; n < count; n++) {
        ranks[n] = (uint32_t) strtoul(peers[n], NULL, 10);
        with_me = with_me || OPAL_PROC_MY_NAME.vpid == ranks[n];
    }
    opal_argv_free(peers);
    if (!with_me) { /* PMIx does not know: a singleton, or the list is another node's */
        ranks[0] = OPAL_PROC_MY_NAME.vpid;
        n = 1;
    }
    qsort(ranks, n, sizeof(*ranks), ascending);
    place->job = OPAL_PROC_MY_NAME.jobid;
    place->rank = OPAL_PROC_MY_NAME.vpid;
    place->size = size;
    place->local_size = n;
    place->local_ranks = ranks;
    place->node = opal_process_info.nodename;
    return OPAL_SUCCESS;
}

int mca_btl_rustbtl_publish(void)
{
    size_t bytes = mca_btl_rustbtl_core->card(mca_btl_rustbtl, NULL, 0);
    uint8_t *card = malloc(bytes);
    if (NULL == card) {
        return OPAL_ERR_OUT_OF_RESOURCE;
    }
    (void) mca_btl_rustbtl_core->card(mca_btl_rustbtl, card, bytes);
    int rc;
    OPAL_MODEX_SEND_STRING(rc, CORRELATED_PMIX(GLOBAL), CARD_KEY, card, bytes);
    free(card);
    return correlated_pmix_error(rc);
}

/* ---- others --------------------------------------------------------------------------------- */

/* What it has published; NULL: nothing, it does not use this BTL. */
static uint8_t *card_of(const opal_process_name_t *name, size_t *bytes)
{
    uint8_t *card = NULL;
    size_t length = 0;
    int rc;
    OPAL_MODEX_RECV_STRING(rc, CARD_KEY, name, &card, &length);
    *bytes = OPAL_SUCCESS == rc ? length : 0;
    return OPAL_SUCCESS == rc ? card : NULL;
}

/* The ranks of the node know each other now. */
static int attach(void)
{
    int64_t leader = mca_btl_rustbtl_core->leader(mca_btl_rustbtl);
    if (0 > leader) {
        return OPAL_SUCCESS;
    }
    opal_process_name_t name = { .jobid = OPAL_PROC_MY_NAME.jobid, .vpid = (uint32_t) leader };
    char why[1024] = "the first rank of this node has published nothing: all need the same "
                     "parameter btl";
    size_t bytes;
    uint8_t *card = card_of(&name, &bytes);
    int32_t done = RUSTBTL_BTL_DOWN;
    if (NULL != card) {
        done = mca_btl_rustbtl_core->attach(mca_btl_rustbtl, card, bytes,
                                            (rustbtl_btl_text_t) { why, sizeof(why) });
        free(card);
    }
    if (RUSTBTL_BTL_DONE != done) {
        mca_btl_rustbtl_help("open", why);
        return OPAL_ERR_FATAL;
    }
    return OPAL_SUCCESS;
}

static void number_endpoint(mca_btl_base_endpoint_t *endpoint)
{
    uint32_t number = mca_btl_rustbtl_core->number(endpoint->peer);
    if (number < numbered_size) {
        __atomic_store_n(&numbered[number], endpoint, __ATOMIC_RELEASE);
    }
}

mca_btl_base_endpoint_t *mca_btl_rustbtl_endpoint(uint32_t number)
{
    return number < numbered_size ? __atomic_load_n(&numbered[number], __ATOMIC_ACQUIRE) : NULL;
}

static mca_btl_base_endpoint_t *new_endpoint(rustbtl_btl_peer_t *peer,
                                             const opal_process_name_t *name)
{
    mca_btl_base_endpoint_t *endpoint = malloc(sizeof(*endpoint));
    if (NULL != endpoint) {
        endpoint->peer = peer;
        endpoint->name = *name;
        pthread_mutex_lock(&endpoints_lock);
        endpoint->next = all_endpoints;
        all_endpoints = endpoint;
        pthread_mutex_unlock(&endpoints_lock);
    }
    return endpoint;
}

static mca_btl_base_endpoint_t *meet(const mca_btl_rustbtl_module_t *module,
                                     const opal_process_name_t *name)
{
    char why[1024] = "";
    size_t bytes;
    uint8_t *card = card_of(name, &bytes);
    if (NULL == card) {
        return NULL;
    }
    rustbtl_btl_peer_t *peer
        = mca_btl_rustbtl_core->meet(mca_btl_rustbtl, name->jobid, name->vpid, card, bytes,
                                     (rustbtl_btl_text_t) { why, sizeof(why) });
    free(card);
    if ('\0' != why[0] && RUSTBTL_BTL_NETWORK == module->way) {
        mca_btl_rustbtl_help("peer", why);
    }
    if (NULL == peer) {
        return NULL;
    }
    bool one_sided = RUSTBTL_BTL_ONE_SIDED == module->way;
    mca_btl_base_endpoint_t *endpoint = NULL;
    if (one_sided || module->way == mca_btl_rustbtl_core->way(peer)) {
        endpoint = new_endpoint(peer, name);
    }
    if (NULL == endpoint) {
        mca_btl_rustbtl_core->forget(peer);
        return NULL;
    }
    if (!one_sided) {
        number_endpoint(endpoint);
    }
    return endpoint;
}

mca_btl_base_endpoint_t *mca_btl_rustbtl_meet_sender(int32_t way, uint32_t number)
{
    mca_btl_base_endpoint_t *endpoint = mca_btl_rustbtl_endpoint(number);
    if (NULL == endpoint && number < numbered_size) {
        const opal_process_name_t name = { .jobid = OPAL_PROC_MY_NAME.jobid, .vpid = number };
        endpoint = meet(&mca_btl_rustbtl_modules[way], &name);
        if (NULL != endpoint && number != mca_btl_rustbtl_core->number(endpoint->peer)) {
            return NULL; /* this job is not the first of its mpirun */
        }
    }
    return endpoint;
}

int mca_btl_rustbtl_add_procs(mca_btl_base_module_t *base, size_t count, opal_proc_t **procs,
                              mca_btl_base_endpoint_t **endpoints, opal_bitmap_t *reachable)
{
    mca_btl_rustbtl_module_t *module = (mca_btl_rustbtl_module_t *) base;
    const opal_proc_t *me = opal_proc_local_get();
    int rc = attach();
    if (OPAL_SUCCESS != rc) {
        return rc;
    }
    for (size_t i = 0; i < count; i++) {
        endpoints[i] = NULL;
        /* Messages are not converted: processes of another architecture are not reached. */
        if (procs[i]->proc_arch != me->proc_arch) {
            continue;
        }
        if (procs[i] != me) {
            endpoints[i] = meet(module, &procs[i]->proc_name);
        } else if (RUSTBTL_BTL_ONE_SIDED == module->way) {
            endpoints[i] = new_endpoint(NULL, &me->proc_name);
        }
        if (NULL != endpoints[i] && NULL != reachable) {
            rc = opal_bitmap_set_bit(reachable, (int) i);
            if (OPAL_SUCCESS != rc) {
                return rc;
            }
        }
    }
    return OPAL_SUCCESS;
}

/* bml/r2 gives an endpoint back once for each of its lists in which it is: it goes in the end. */
int mca_btl_rustbtl_del_procs(mca_btl_base_module_t *module, size_t count, opal_proc_t **procs,
                              mca_btl_base_endpoint_t **endpoints)
{
    (void) module;
    (void) count;
    (void) procs;
    (void) endpoints;
    return OPAL_SUCCESS;
}

void mca_btl_rustbtl_free_endpoints(void)
{
    while (NULL != all_endpoints) {
        mca_btl_base_endpoint_t *first = all_endpoints;
        all_endpoints = first->next;
        if (NULL != first->peer) {
            mca_btl_rustbtl_core->forget(first->peer);
        }
        free(first);
    }
    free(numbered);
    numbered = NULL;
    numbered_size = 0;
}

/* ---- to the user ---------------------------------------------------------------------------- */

int mca_btl_rustbtl_register_error(mca_btl_base_module_t *module,
                                   mca_btl_base_module_error_cb_fn_t callback)
{
    (void) module;
    report_error = callback;
    return OPAL_SUCCESS;
}

void mca_btl_rustbtl_lost(uint32_t job, uint32_t rank, const char *reason)
{
    /* If the process has died, mpirun says so better than we can, and ends the job. */
    uint32_t ms = mca_btl_rustbtl_params.peer_loss_timeout;
    struct timespec pause = { .tv_sec = ms / 1000, .tv_nsec = (ms % 1000) * 1000000L };
    (void) nanosleep(&pause, NULL);
    char text[2048];
    (void) job;
    snprintf(text, sizeof(text), "rank %u: %s", rank, reason);
    mca_btl_rustbtl_help("peer-lost", text);
    if (NULL != report_error) {
        report_error(&mca_btl_rustbtl_modules[RUSTBTL_BTL_NETWORK].super,
                     MCA_BTL_ERROR_FLAGS_FATAL, NULL, "btl rustbtl: a process is not reached");
    }
    _exit(1);
}

void mca_btl_rustbtl_notice(const char *text)
{
    mca_btl_rustbtl_help("notice", text);
}

void mca_btl_rustbtl_help_open(void)
{
    Dl_info self;
    char path[4096];
    snprintf(path, sizeof(path), "%s/" HELP_FILE, opal_install_dirs.opaldatadir);
    if (0 == access(path, R_OK)) {
        help_file_found = true; /* Open MPI searches there by itself */
    }
    if (0 == dladdr(&mca_btl_rustbtl_component, &self) || NULL == self.dli_fname) {
        return;
    }
    const char *slash = strrchr(self.dli_fname, '/');
    int length = NULL == slash ? 0 : (int) (slash - self.dli_fname);
    snprintf(path, sizeof(path), "%.*s/" HELP_FILE, length, self.dli_fname);
    if (0 == access(path, R_OK)) {
        path[length] = '\0';
        help_file_found |= OPAL_SUCCESS == opal_show_help_add_dir(path);
    }
}

void mca_btl_rustbtl_help(const char *topic, const char *text)
{
    const char *node = opal_process_info.nodename;
    node = NULL == node ? "?" : node;
    if (help_file_found && CORRELATED_OMPI_5) {
        opal_show_help(HELP_FILE, topic, true, node, OPAL_PROC_MY_NAME.vpid, text);
    } else if (help_file_found) {
        const char *const said[] = { HELP_FILE, topic, text };
        if (correlated_says_first(opal_process_info.job_session_dir, said, 3)) {
            char *whole =
                opal_show_help_string(HELP_FILE, topic, true, node, OPAL_PROC_MY_NAME.vpid, text);
            fputs(NULL == whole ? text : whole, stderr);
            fflush(stderr);
            free(whole);
        }
    } else {
        opal_output(0, "btl rustbtl: %s (node %s, rank %u): %s", topic, node,
                    OPAL_PROC_MY_NAME.vpid, text);
    }
}
