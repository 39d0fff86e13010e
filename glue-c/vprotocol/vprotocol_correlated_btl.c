/*
 * What mca_btl_rustbtl.so finds in this component at run time: the transports are here, once.
 */
#include "vprotocol_correlated.h"

__attribute__((visibility("default")))
const void *mca_vprotocol_correlated_btl(void)
{
    return rustbtl_btl_functions();
}
