/*
 * What glue-c/api/ finds in this component at run time: programs are not linked with it.
 */
#include "vprotocol_correlated.h"

__attribute__((visibility("default")))
int mca_vprotocol_correlated_checkpoint(int all, int wait, int then_exit, uint64_t *checkpoint)
{
    return rustbtl_request_checkpoint(all, wait, then_exit, checkpoint);
}

__attribute__((visibility("default")))
unsigned mca_vprotocol_correlated_restarts(void)
{
    return rustbtl_restarts();
}
