/*
 * Help texts for the user, and the end of the job. help-mca-vprotocol-correlated.txt is beside this
 * DSO or, where we were built with Open MPI, among its own help texts.
 */
#include "vprotocol_correlated.h"
#include "compat.h"
#include "said_once.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ompi/runtime/mpiruntime.h"
#include "opal/mca/installdirs/installdirs.h"
#include "opal/util/output.h"
#include "opal/util/proc.h"
#include "opal/util/show_help.h"

#define HELP_FILE "help-mca-vprotocol-correlated.txt"

static bool help_file_found = false;

void mca_vprotocol_correlated_help_open(void)
{
    Dl_info self;
    char path[4096];
    snprintf(path, sizeof(path), "%s/" HELP_FILE, opal_install_dirs.opaldatadir);
    if (0 == access(path, R_OK)) {
        help_file_found = true; /* Open MPI searches there by itself */
    }
    if (0 == dladdr(&mca_vprotocol_correlated_component, &self) || NULL == self.dli_fname) {
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

void mca_vprotocol_correlated_verbose_open(void)
{
    uint32_t level = mca_vprotocol_correlated_config.verbose;
    if (0 < level) {
        mca_vprotocol_correlated_stream = opal_output_open(NULL);
        opal_output_set_verbosity(mca_vprotocol_correlated_stream, (int) level);
    }
}

void rustbtl_glue_verbose(int32_t level, const char *line)
{
    const char *node = ompi_process_info.nodename;
    opal_output_verbose(level, mca_vprotocol_correlated_stream,
                        "vprotocol:correlated: rank %u on %s: %s", OMPI_PROC_MY_NAME->vpid,
                        NULL == node ? "?" : node, line);
}

void rustbtl_glue_help(const char *topic, const char *a, const char *b, const char *c,
                       const char *d)
{
    const char *node = ompi_process_info.nodename;
    unsigned rank = OMPI_PROC_MY_NAME->vpid;
    a = NULL == a ? "" : a;
    b = NULL == b ? "" : b;
    c = NULL == c ? "" : c;
    d = NULL == d ? "" : d;
    /* Open MPI would send it to a PMIx server: there is no connection to one any more, or srun has
     * started this process, and its server prints nothing. mpirun tells processes their number. */
    bool is_alone =
        mca_vprotocol_correlated_is_restored() || NULL == getenv("OMPI_COMM_WORLD_SIZE");
    if (help_file_found && (is_alone || !CORRELATED_OMPI_5)) {
        const char *const said[] = { HELP_FILE, topic, a, b, c, d };
        if (!is_alone && !correlated_says_first(opal_process_info.job_session_dir, said, 6)) {
            return;
        }
        char *text = opal_show_help_string(HELP_FILE, topic, true, NULL == node ? "?" : node, rank,
                                           a, b, c, d);
        if (NULL != text) {
            fputs(text, stderr);
            fflush(stderr);
        }
        free(text);
    } else if (help_file_found) {
        opal_show_help(HELP_FILE, topic, true, NULL == node ? "?" : node, rank, a, b, c, d);
    } else {
        opal_output(0, "vprotocol correlated: %s (node %s, rank %u): %s %s %s %s", topic,
                    NULL == node ? "?" : node, rank, a, b, c, d);
    }
}

void rustbtl_glue_abort(void)
{
    if (OMPI_MPI_STATE_INIT_COMPLETED <= ompi_mpi_state) {
        ompi_mpi_abort(&ompi_mpi_comm_world.comm, 1);
    }
    ompi_rte_abort(1, NULL);
    _exit(1);
}
