/*
 * What several files of mpirun's component read: the protected job, and the daemons that are lost.
 */
#include "errmgr_correlated.h"

static orte_job_t *protected_job = NULL;
/* Daemons that are lost, by vpid. */
static opal_bitmap_t lost;
static bool have_lost = false;

orte_job_t *mca_errmgr_correlated_protected_job(void)
{
    return protected_job;
}

void mca_errmgr_correlated_set_protected_job(orte_job_t *job)
{
    protected_job = job;
}

bool mca_errmgr_correlated_is_lost(const orte_process_name_t *daemon)
{
    return have_lost && opal_bitmap_is_set_bit(&lost, correlated_rank(daemon));
}

bool mca_errmgr_correlated_has_lost(void)
{
    return have_lost;
}

void mca_errmgr_correlated_set_lost(const orte_process_name_t *daemon, int daemons)
{
    if (!have_lost) {
        OBJ_CONSTRUCT(&lost, opal_bitmap_t);
        opal_bitmap_init(&lost, daemons);
        have_lost = true;
    }
    opal_bitmap_set_bit(&lost, correlated_rank(daemon));
}

void mca_errmgr_correlated_state_close(void)
{
    if (have_lost) {
        OBJ_DESTRUCT(&lost);
        have_lost = false;
    }
}
