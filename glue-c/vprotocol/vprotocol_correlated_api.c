/*
 * What glue-c/api/ finds in this component at run time: programs are not linked with it.
 */
#include "vprotocol_correlated.h"

__attribute__((visibility("default")))
int mca_vprotocol_correlated_checkpoint(int all, int wait, int then_exit, uint64_t *line)
{
    return rustbtl_ask(all, wait, then_exit, line);
}

__attribute__((visibility("default")))
unsigned mca_vprotocol_correlated_restarts(void)
{
    return rustbtl_restarts();
}
