/*
 * One-sided communication over our point-to-point: osc/pt2pt for all windows but shared ones.
 *
 * Stock Open MPI prefers osc/rdma and osc/sm, which bypass the PML, and Debian's
 * openmpi-mca-params.conf even excludes osc/pt2pt. Unless the user chose components himself (on the
 * command line or in the environment), we choose. Shared windows stay with osc/sm: their processes
 * share memory anyway. osc/pt2pt does not support MPI_THREAD_MULTIPLE; there the stock choice
 * stays. So it does in Open MPI 5.0, which has no osc/pt2pt. Each window that is made is reported,
 * since a set that is rolled back may be unable to replay it (vprotocol_correlated_windows.c).
 */
#include "vprotocol_correlated.h"

#include <stdlib.h>
#include <string.h>

#include "ompi/mca/bml/bml.h"
#include "ompi/mca/bml/base/base.h"
#include "ompi/mca/osc/base/base.h"
#include "ompi/mca/osc/osc.h"
#include "ompi/runtime/mpiruntime.h"
#include "opal/class/opal_bitmap.h"
#include "opal/mca/base/base.h"

#define CHOICE "OMPI_MCA_osc"
#define CHOSEN "pt2pt,sm"

static ompi_osc_base_component_query_fn_t query_sm = NULL;
static ompi_osc_base_component_select_fn_t select_pt2pt = NULL, select_sm = NULL;

bool mca_vprotocol_correlated_makes_window = false;

/* Did we choose, or somebody else? */
static bool chosen_by_us(void)
{
    const char *value = getenv(CHOICE);
    return NULL != value && 0 == strcmp(value, CHOSEN);
}

/* Another thread may be in getenv (one of Open MPI's own): setenv frees the array that it reads.
 * This leaves the old array as it is. */
static void add_to_environment(const char *entry)
{
    extern char **environ;
    size_t count = 0;
    while (NULL != environ && NULL != environ[count]) {
        count++;
    }
    char **more = calloc(count + 2, sizeof(*more));
    char *copy = strdup(entry);
    if (NULL == more || NULL == copy) {
        free(more);
        free(copy);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        more[i] = environ[i];
    }
    more[count] = copy;
    __atomic_store_n(&environ, more, __ATOMIC_RELEASE);
}

void mca_vprotocol_correlated_osc_open(void)
{
    if (!mca_vprotocol_correlated_one_sided && CORRELATED_HAS_OSC_PT2PT
        && !ompi_mpi_thread_multiple && NULL == getenv(CHOICE)) {
        add_to_environment(CHOICE "=" CHOSEN);
    }
}

/* Before the modex: BTLs publish their addresses. */
int mca_vprotocol_correlated_osc_start_btls(void)
{
    return CORRELATED_STARTS_BTLS && !mca_vprotocol_correlated_one_sided
               ? mca_bml_base_init(1, ompi_mpi_thread_multiple) : OMPI_SUCCESS;
}

static int only_shared(struct ompi_win_t *window, void **base, size_t size, int unit,
                       struct ompi_communicator_t *comm, struct opal_info_t *info, int flavor)
{
    return MPI_WIN_FLAVOR_SHARED == flavor ? query_sm(window, base, size, unit, comm, info, flavor)
                                           : -1;
}

/* Mark the communicator that it duplicates for the window. */
static int mark(struct ompi_win_t *window, void **base, size_t size, int unit,
                struct ompi_communicator_t *comm, struct opal_info_t *info, int flavor, int *model)
{
    mca_vprotocol_correlated_makes_window = true;
    int rc = select_pt2pt(window, base, size, unit, comm, info, flavor, model);
    mca_vprotocol_correlated_makes_window = false;
    mca_vprotocol_correlated_window_made(RUSTBTL_WINDOW_OVER_PML, window, comm);
    return rc;
}

static int select_shared_memory(struct ompi_win_t *window, void **base, size_t size, int unit,
                                struct ompi_communicator_t *comm, struct opal_info_t *info,
                                int flavor, int *model)
{
    int rc = select_sm(window, base, size, unit, comm, info, flavor, model);
    if (OMPI_SUCCESS == rc) {
        mca_vprotocol_correlated_window_made(RUSTBTL_WINDOW_SHARED_MEMORY, window, comm);
    }
    return rc;
}

/* Components that bypass the PML, and a function of ours for each of them: a function does not
 * learn to which component it belongs. */
static ompi_osc_base_component_select_fn_t select_bypassing[3];

#define BYPASSING(number)                                                                         \
    static int bypassing_##number(struct ompi_win_t *window, void **base, size_t size, int unit,  \
                                struct ompi_communicator_t *comm, struct opal_info_t *info,       \
                                int flavor, int *model)                                           \
    {                                                                                             \
        mca_vprotocol_correlated_window_made(RUSTBTL_WINDOW_BYPASSES, window, comm);              \
        return select_bypassing[number](window, base, size, unit, comm, info, flavor, model);     \
    }
BYPASSING(0)
BYPASSING(1)
BYPASSING(2)

static const struct {
    const char *name;
    ompi_osc_base_component_select_fn_t select;
} bypassing[] = { { "rdma", bypassing_0 }, { "ucx", bypassing_1 }, { "portals4", bypassing_2 } };

/* From now on its windows are reported, if they bypass the PML. */
static void report_windows(ompi_osc_base_component_t *component)
{
    const char *name = component->osc_version.mca_component_name;
    for (size_t i = 0; i < sizeof(bypassing) / sizeof(bypassing[0]); i++) {
        if (0 == strcmp(name, bypassing[i].name) && bypassing[i].select != component->osc_select) {
            select_bypassing[i] = component->osc_select;
            component->osc_select = bypassing[i].select;
        }
    }
}

void mca_vprotocol_correlated_osc_enable(void)
{
    mca_base_component_list_item_t *item;
    OPAL_LIST_FOREACH(item, &ompi_osc_base_framework.framework_components,
                      mca_base_component_list_item_t) {
        ompi_osc_base_component_t *component = (ompi_osc_base_component_t *) item->cli_component;
        const char *name = component->osc_version.mca_component_name;
        if (0 == strcmp(name, "sm") && only_shared != component->osc_query && chosen_by_us()) {
            query_sm = component->osc_query;
            component->osc_query = only_shared;
        }
        if (0 == strcmp(name, "sm") && select_shared_memory != component->osc_select) {
            select_sm = component->osc_select;
            component->osc_select = select_shared_memory;
        }
        if (0 == strcmp(name, "pt2pt") && mark != component->osc_select) {
            select_pt2pt = component->osc_select;
            component->osc_select = mark;
        }
        report_windows(component);
    }
}

/* osc/rdma uses BTLs, which must know the processes: what ob1 would do. */
int mca_vprotocol_correlated_osc_add_procs(struct ompi_proc_t **procs, size_t count)
{
    opal_bitmap_t reachable;
    if (mca_vprotocol_correlated_one_sided || chosen_by_us() || 0 == count
        || NULL == mca_bml.bml_add_procs) {
        return OMPI_SUCCESS;
    }
    OBJ_CONSTRUCT(&reachable, opal_bitmap_t);
    int rc = opal_bitmap_init(&reachable, (int) count);
    if (OMPI_SUCCESS == rc) {
        rc = mca_bml.bml_add_procs(count, procs, &reachable);
    }
    OBJ_DESTRUCT(&reachable);
    return rc;
}

int mca_vprotocol_correlated_osc_del_procs(struct ompi_proc_t **procs, size_t count)
{
    if (mca_vprotocol_correlated_one_sided || chosen_by_us() || 0 == count
        || NULL == mca_bml.bml_del_procs) {
        return OMPI_SUCCESS;
    }
    return mca_bml.bml_del_procs(count, procs);
}
