# -*- shell-script -*-
#
# Part of rustbtl. Put here by `cargo xtask ompi-tree prepare`.
#
# $COPYRIGHT$
#
# Additional copyrights may follow
#
# $HEADER$
#

# MCA_ompi_vprotocol_correlated_CONFIG([action-if-can-compile],
#                                      [action-if-cant-compile])
# ------------------------------------------------
AC_DEFUN([MCA_ompi_vprotocol_correlated_CONFIG],[
    AC_CONFIG_FILES([ompi/mca/vprotocol/correlated/Makefile])

    OMPI_CHECK_RUSTBTL([vprotocol_correlated],
                       [vprotocol_correlated_happy=yes],
                       [vprotocol_correlated_happy=no])

    AS_IF([test "$vprotocol_correlated_happy" = yes],
          [$1],
          [$2])
])
