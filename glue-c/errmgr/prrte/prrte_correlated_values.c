/*
 * Values of Open MPI's MCA variables, in a runtime that has variables of its own. Open MPI's are
 * for the job's processes: they come as OMPI_MCA_NAME, in the environment of the job's programs
 * (mpirun's command line) or of mpirun, or from Open MPI's two files.
 */
#include "errmgr_correlated.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "src/mca/base/pmix_mca_base_vari.h"
#include "src/mca/prteinstalldirs/prteinstalldirs.h"

static const prte_job_t *current_job = NULL;
static pmix_list_t files;
static bool have_files = false;
static char *bad_value = NULL; /* what is wrong with the first that makes no sense */

static void read_file(const char *folder, const char *below, const char *name)
{
    char *path = NULL == folder ? NULL : pmix_os_path(false, folder, below, name, NULL);
    if (NULL != path) {
        (void) pmix_mca_base_parse_paramfile(path, &files);
        free(path);
    }
}

void prrte_correlated_values_of(const prte_job_t *job)
{
    current_job = job;
    if (!have_files) {
        have_files = true;
        PMIX_CONSTRUCT(&files, pmix_list_t);
        /* A later file does not change what an earlier one has set. */
        read_file(pmix_home_directory(geteuid()), ".openmpi", "mca-params.conf");
        read_file(prte_install_dirs.sysconfdir, ".", "openmpi-mca-params.conf");
    }
}

/* In the environment of a program. */
static const char *in_environment(char **environment, const char *name)
{
    size_t length = strlen(name);
    for (int i = 0; NULL != environment && NULL != environment[i]; i++) {
        if (0 == strncmp(environment[i], name, length) && '=' == environment[i][length]) {
            return environment[i] + length + 1;
        }
    }
    return NULL;
}

/* mpirun's own command line, as long as there is no job that has been made of it: the words behind
 * an option that sets an MCA variable. They are never freed. */
static const char *in_command_line(const char *name)
{
    static const char *const options[] = { "--mca", "-mca", "--omca", "-omca", "--gmca", "-gmca" };
    static char words[1 << 16];
    static size_t length = 0;
    FILE *file = 0 == length ? fopen("/proc/self/cmdline", "r") : NULL;
    if (NULL != file) {
        length = fread(words, 1, sizeof(words) - 1, file);
        fclose(file);
    }
    const char *last[2] = { "", "" }; /* the word before, and the one before that */
    for (const char *word = words; word < words + length; word += strlen(word) + 1) {
        for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
            if (0 == strcmp(options[i], last[1]) && 0 == strcmp(name, last[0])) {
                return word;
            }
        }
        last[1] = last[0];
        last[0] = word;
    }
    return NULL;
}

/* `variable`: OMPI_MCA_NAME. NULL: the user has not given it. */
static const char *value_of(const char *variable)
{
    const char *name = variable + sizeof("OMPI_MCA_") - 1;
    const char *found = NULL == current_job ? in_command_line(name) : NULL;
    for (int i = 0; NULL == found && NULL != current_job && i < current_job->apps->size; i++) {
        prte_app_context_t *app = pmix_pointer_array_get_item(current_job->apps, i);
        found = NULL == app ? NULL : in_environment(app->env, variable);
    }
    found = NULL == found ? getenv(variable) : found;
    pmix_mca_base_var_file_value_t *entry;
    if (NULL == found && have_files) {
        PMIX_LIST_FOREACH(entry, &files, pmix_mca_base_var_file_value_t) {
            if (0 == strcmp(entry->mbvfv_var, name)) {
                return entry->mbvfv_value;
            }
        }
    }
    return found;
}

/* False: the value is invalid, and nothing is set. */
static bool parse(const char *text, pmix_mca_base_var_type_t type, void *where)
{
    static const char *const truths[] = { "true", "yes", "t", "y", "enabled" };
    static const char *const lies[] = { "false", "no", "f", "n", "disabled" };
    char *rest = NULL;
    switch (type) {
    case PMIX_MCA_BASE_VAR_TYPE_STRING:
        /* Never freed: others hold it. */
        *(char **) where = strdup(text);
        return true;
    case PMIX_MCA_BASE_VAR_TYPE_DOUBLE: {
        double number = strtod(text, &rest);
        *(double *) where = rest == text || '\0' != *rest ? *(double *) where : number;
        return rest != text && '\0' == *rest;
    }
    case PMIX_MCA_BASE_VAR_TYPE_BOOL:
        for (size_t i = 0; i < sizeof(truths) / sizeof(truths[0]); i++) {
            if (0 == strcasecmp(text, truths[i]) || 0 == strcasecmp(text, lies[i])) {
                *(bool *) where = 0 == strcasecmp(text, truths[i]);
                return true;
            }
        }
        /* fall through */
    default: {
        long number = strtol(text, &rest, 10);
        if (rest == text || '\0' != *rest) {
            return false;
        }
        if (PMIX_MCA_BASE_VAR_TYPE_BOOL == type) {
            *(bool *) where = 0 != number;
        } else {
            *(int *) where = (int) number;
        }
        return true;
    }
    }
}

int prrte_correlated_value(const char *framework, const char *component, const char *name,
                           pmix_mca_base_var_type_t type, void *where)
{
    char variable[128];
    if (NULL != component && NULL != name) {
        snprintf(variable, sizeof(variable), "OMPI_MCA_%s_%s_%s", framework, component, name);
    } else {
        snprintf(variable, sizeof(variable), "OMPI_MCA_%s", framework);
    }
    const char *text = value_of(variable);
    if (NULL != text && !parse(text, type, where) && NULL == bad_value
        && 0 > asprintf(&bad_value, "%s has an invalid value: %s",
                        variable + sizeof("OMPI_MCA_") - 1, text)) {
        bad_value = NULL;
    }
    return PRTE_SUCCESS;
}

char *mca_errmgr_correlated_values_check(void)
{
    return NULL == bad_value ? NULL : strdup(bad_value);
}
