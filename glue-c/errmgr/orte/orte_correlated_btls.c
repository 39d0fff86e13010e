/*
 * Which BTLs the ranks of a protected job open. Open MPI starts them in MPI_Init whatever carries
 * its messages, and ours are carried by none of them. What they open is in the way: tcp listens
 * for connections from anywhere, and waits without end for an unauthenticated peer who says
 * nothing; uct, which `--mca btl ^openib` brings back where Debian's settings leave it out, has
 * sockets that no image can hold. So ranks have the one that needs nothing, unless windows are
 * Open MPI's, which use BTLs.
 */
#include "errmgr_correlated.h"

#include <string.h>

#define BTL "OMPI_MCA_btl"
/* Needs nothing. */
#define NONE "self"
/* What Open MPI's one-sided components use, and images can hold. */
#define FOR_WINDOWS "self,vader,tcp"

/* As of the ranks: above all of Open MPI's PMLs. */
#define PRIORITY 100

static bool one_sided = true;
static int priority = PRIORITY;
static char *pml = NULL;

/* Whoever registers first says how they are shown: with the words of the vprotocol component. */
void mca_errmgr_correlated_btls_register(void)
{
    (void) mca_base_var_register("ompi", "vprotocol", "correlated", "one_sided",
                                 "One-sided communication (MPI_Win_*) goes over a component of our "
                                 "own, which is logged and replayed like messages. Off: over a "
                                 "component of Open MPI, and sets with windows are not rolled back "
                                 "alone.",
                                 MCA_BASE_VAR_TYPE_BOOL, NULL, 0, 0, OPAL_INFO_LVL_4,
                                 MCA_BASE_VAR_SCOPE_READONLY, &one_sided);
    (void) mca_base_var_register("ompi", "vprotocol", "correlated", "priority",
                                 "Priority of this PML, where mpirun's --mca pml leaves the "
                                 "choice.",
                                 MCA_BASE_VAR_TYPE_INT, NULL, 0, 0, OPAL_INFO_LVL_9,
                                 MCA_BASE_VAR_SCOPE_READONLY, &priority);
    (void) mca_base_var_register("ompi", "pml", NULL, NULL, "", MCA_BASE_VAR_TYPE_STRING, NULL, 0,
                                 0, OPAL_INFO_LVL_9, MCA_BASE_VAR_SCOPE_READONLY, &pml);
}

/* Does the user's list of pml components leave room for ours, and has ours its priority? */
static bool is_pml_ours(void)
{
    if (PRIORITY > priority) {
        return false; /* another PML may be selected, which needs BTLs */
    }
    if (NULL == pml || '\0' == pml[0]) {
        return true;
    }
    const bool leaves_out = '^' == pml[0];
    char **names = opal_argv_split(pml + leaves_out, ',');
    bool named = false;
    for (int i = 0; NULL != names && NULL != names[i]; i++) {
        named = named || 0 == strcmp("v", names[i]);
    }
    opal_argv_free(names);
    return named != leaves_out;
}

/* The value that the user has given for these programs; NULL: none but in files. */
static const char *given(const orte_app_context_t *app)
{
    const size_t length = strlen(BTL "=");
    for (int i = 0; NULL != app->env && NULL != app->env[i]; i++) {
        if (0 == strncmp(BTL "=", app->env[i], length)) {
            return app->env[i] + length;
        }
    }
    return NULL;
}

void mca_errmgr_correlated_choose_btls(orte_job_t *job)
{
    if (!is_pml_ours()) {
        return;
    }
    for (int i = 0; i < job->apps->size; i++) {
        orte_app_context_t *app = opal_pointer_array_get_item(job->apps, i);
        if (NULL == app) {
            continue;
        }
        const char *value = given(app);
        if (one_sided) {
            opal_setenv(BTL, NONE, true, &app->env);
        } else if (NULL != value && '^' == value[0]) {
            opal_setenv(BTL, FOR_WINDOWS, true, &app->env);
        }
    }
}
