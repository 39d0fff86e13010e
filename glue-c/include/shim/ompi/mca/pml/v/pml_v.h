/*
 * The one header that libopenmpi-dev leaves out though ompi/mca/vprotocol/vprotocol.h includes it.
 * Declares what libmpi exports of pml v; types are Open MPI's own.
 */
#ifndef PML_V_H_HAS_BEEN_INCLUDED
#define PML_V_H_HAS_BEEN_INCLUDED

#include "ompi_config.h"
#include "ompi/mca/pml/pml.h"
#include "ompi/request/request.h"
#include "ompi/mca/vprotocol/base/base.h"

BEGIN_C_DECLS

OMPI_DECLSPEC extern mca_pml_base_component_t mca_pml_v_component;

END_C_DECLS

#endif
