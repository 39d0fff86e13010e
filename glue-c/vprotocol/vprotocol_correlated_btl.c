/*
 * What mca_btl_rustbtl.so finds in this component at run time: the transports are here, once.
 */
#include "vprotocol_correlated.h"

/* Rust's: a table of functions (glue-c/btl/btl_rustbtl_core.h). */
const void *rustbtl_btl_functions(void) __attribute__((visibility("hidden")));

__attribute__((visibility("default")))
const void *mca_vprotocol_correlated_btl(void)
{
    return rustbtl_btl_functions();
}
