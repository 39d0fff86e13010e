/*
 * The MCA component. It is small: the transports are in mca_vprotocol_correlated.so, which is
 * loaded only in jobs that name this BTL.
 */
#include "btl_rustbtl.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "opal/mca/base/base.h"
#include "opal/util/argv.h"
#include "opal/util/output.h"

#define NAME "rustbtl"
#define CORE_FILE "mca_vprotocol_correlated.so"
#define CORE_FUNCTION "mca_vprotocol_correlated_btl"

static int component_open(void);
static int component_close(void);
static mca_btl_base_module_t **component_init(int *count, bool progress_threads, bool threads);
static int component_progress(void);

__attribute__((visibility("default")))
mca_btl_base_component_t mca_btl_rustbtl_component = {
    .btl_version = {
        MCA_BTL_DEFAULT_VERSION(NAME),
        .mca_open_component = component_open,
        .mca_close_component = component_close,
        .mca_register_component_params = mca_btl_rustbtl_register,
    },
    .btl_data = { MCA_BASE_METADATA_PARAM_NONE },
    .btl_init = component_init,
    .btl_progress = component_progress,
};

rustbtl_btl_t *mca_btl_rustbtl;
const rustbtl_btl_functions_t *mca_btl_rustbtl_core;

static int component_open(void)
{
    return OPAL_SUCCESS;
}

static int component_close(void)
{
    return OPAL_SUCCESS;
}

static int component_progress(void)
{
    return NULL == mca_btl_rustbtl ? 0 : mca_btl_rustbtl_core->progress(mca_btl_rustbtl);
}

/* Did the user name it? Without that Open MPI's own BTLs are to be used, and no socket and no
 * memory is opened that nobody needs. */
static bool is_named(void)
{
    const char *selection = opal_btl_base_framework.framework_selection;
    if (NULL == selection || '^' == selection[0]) {
        return false;
    }
    char **names = opal_argv_split(selection, ',');
    bool found = false;
    for (int i = 0; NULL != names && NULL != names[i]; i++) {
        found = found || 0 == strcmp(NAME, names[i]);
    }
    opal_argv_free(names);
    return found;
}

/* The transports: linked with us or loaded already, else in the file beside ours. */
static const rustbtl_btl_functions_t *find_core(void)
{
    Dl_info self;
    char path[4096];
    void *function = dlsym(RTLD_DEFAULT, CORE_FUNCTION);
    if (NULL == function && 0 != dladdr(&mca_btl_rustbtl_component, &self)
        && NULL != self.dli_fname) {
        const char *slash = strrchr(self.dli_fname, '/');
        int length = NULL == slash ? 0 : (int) (slash - self.dli_fname) + 1;
        snprintf(path, sizeof(path), "%.*s" CORE_FILE, length, self.dli_fname);
        void *core = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
        function = NULL == core ? NULL : dlsym(core, CORE_FUNCTION);
    }
    if (NULL == function) {
        const char *why = dlerror();
        mca_btl_rustbtl_help("no-core", NULL == why ? "it has no such function" : why);
        return NULL;
    }
    const rustbtl_btl_functions_t *functions = ((const void *(*)(void)) function)();
    if (RUSTBTL_BTL_VERSION != functions->version) {
        mca_btl_rustbtl_help("no-core", "it is of another version than " NAME);
        return NULL;
    }
    return functions;
}

static int open_core(bool threads)
{
    static const rustbtl_btl_calls_t calls = {
        .arrived = mca_btl_rustbtl_arrived,
        .over = mca_btl_rustbtl_over,
        .lost = mca_btl_rustbtl_lost,
        .notice = mca_btl_rustbtl_notice,
    };
    char why[1024] = "", file[4096];
    rustbtl_btl_settings_t *settings = &mca_btl_rustbtl_params.settings;
    rustbtl_btl_place_t place;
    mca_btl_rustbtl_core = find_core();
    if (NULL == mca_btl_rustbtl_core) {
        return OPAL_ERROR;
    }
    int rc = mca_btl_rustbtl_place(&place);
    if (OPAL_SUCCESS != rc) {
        return rc;
    }
    settings->threads = threads ? 1 : 0;
    mca_btl_rustbtl_fill_modules(place.local_size);
    mca_btl_rustbtl = mca_btl_rustbtl_core->open(settings, &place, &calls,
                                                 (rustbtl_btl_text_t) { why, sizeof(why) });
    free((void *) place.local_ranks);
    if (NULL == mca_btl_rustbtl) {
        mca_btl_rustbtl_help("open", why);
        return OPAL_ERROR;
    }
    if (mca_btl_rustbtl_core->file(mca_btl_rustbtl, (rustbtl_btl_text_t) { file, sizeof(file) })) {
        correlated_pmix_cleanup(file);
    }
    return mca_btl_rustbtl_publish();
}

static mca_btl_base_module_t **component_init(int *count, bool progress_threads, bool threads)
{
    (void) progress_threads;
    *count = 0;
    if (!is_named() || NULL != mca_btl_rustbtl) {
        return NULL;
    }
    mca_btl_rustbtl_help_open();
    if (OPAL_SUCCESS != open_core(threads)) {
        return NULL;
    }
    mca_btl_base_module_t **modules = calloc(RUSTBTL_BTL_MODULES, sizeof(*modules));
    int wanted = mca_btl_rustbtl_params.one_sided ? RUSTBTL_BTL_MODULES : RUSTBTL_BTL_ONE_SIDED;
    for (int i = 0; NULL != modules && i < wanted; i++) {
        if (OPAL_SUCCESS == mca_btl_rustbtl_open_lists(&mca_btl_rustbtl_modules[i])) {
            modules[(*count)++] = &mca_btl_rustbtl_modules[i].super;
        }
    }
    return modules;
}
