/*
 * In place of Open MPI's header of this name, which libopenmpi-dev leaves out and ompi/op/op.h
 * includes: a Fortran INTEGER is an int here.
 */
#ifndef CORRELATED_SHIM_FINT_2_INT_H
#define CORRELATED_SHIM_FINT_2_INT_H

#define OMPI_INT_2_FINT(a) (a)
#define OMPI_FINT_2_INT(a) (a)

#endif
