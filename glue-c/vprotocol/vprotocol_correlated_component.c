/*
 * The MCA component: how it makes pml v a native PML.
 *
 * Open MPI's pml v wraps another PML. We replace it instead: its component's init and finalize are
 * replaced before the pml framework selects, and so is its close, which would run the wrapping
 * code. So all point-to-point traffic goes through our engine.
 */
#include "vprotocol_correlated.h"

#include <string.h>

#include "ompi/mca/pml/base/base.h"
#include "opal/mca/base/base.h"

static int component_open(void);
static int component_close(void);
static mca_vprotocol_base_module_t *parasite_init(int *priority, bool progress, bool threads);
static int parasite_finalize(void);

__attribute__((visibility("default")))
mca_vprotocol_base_component_2_0_0_t mca_vprotocol_correlated_component = {
    .pmlm_version = {
        MCA_VPROTOCOL_BASE_VERSION_2_0_0,
        .mca_component_name = "correlated",
        MCA_BASE_MAKE_VERSION(component, CORRELATED_VERSION_MAJOR, CORRELATED_VERSION_MINOR,
                              CORRELATED_VERSION_RELEASE),
        .mca_open_component = component_open,
        .mca_close_component = component_close,
        .mca_register_component_params = mca_vprotocol_correlated_register,
    },
    .pmlm_data = { MCA_BASE_METADATA_PARAM_NONE },
    .pmlm_init = parasite_init,
    .pmlm_finalize = parasite_finalize,
};

const char *mca_vprotocol_correlated_selection(const char *framework)
{
    const char **value = NULL;
    int id = mca_base_var_find("ompi", framework, NULL, NULL);
    if (0 > id || OPAL_SUCCESS != mca_base_var_get_value(id, &value, NULL, NULL)
        || NULL == value) {
        return NULL;
    }
    return value[0];
}

static int close_native(void)
{
    return mca_base_framework_close(&ompi_vprotocol_base_framework);
}

/* Make the pml framework consider "v" though the user did not name it. */
static void consider_v(void)
{
    for (int i = 0; i < opal_pointer_array_get_size(&mca_pml_base_pml); i++) {
        const char *name = opal_pointer_array_get_item(&mca_pml_base_pml, i);
        if (NULL != name && 0 == strcmp(name, "v")) {
            return;
        }
    }
    opal_pointer_array_add(&mca_pml_base_pml, strdup("v"));
}

static int component_open(void)
{
    const char *pml = mca_vprotocol_correlated_selection("pml");
    bool named = NULL != pml && '\0' != pml[0] && '^' != pml[0];

    mca_vprotocol_correlated_help_open();
    if (!named) {
        consider_v();
    }
    mca_pml_v_component.pmlm_init = mca_vprotocol_correlated_init;
    mca_pml_v_component.pmlm_finalize = mca_vprotocol_correlated_finalize;
    mca_pml_v_component.pmlm_version.mca_close_component = close_native;
    mca_vprotocol_correlated_osc_open();
    return OMPI_SUCCESS;
}

static int component_close(void)
{
    return OMPI_SUCCESS;
}

/* Only called if something else than our own hooks runs pml v: refuse. */
static mca_vprotocol_base_module_t *parasite_init(int *priority, bool progress, bool threads)
{
    (void) progress;
    (void) threads;
    *priority = -1;
    return NULL;
}

static int parasite_finalize(void)
{
    return OMPI_SUCCESS;
}
