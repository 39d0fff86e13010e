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

# MCA_prte_errmgr_correlated_CONFIG([action-if-can-compile],
#                                   [action-if-cant-compile])
# ------------------------------------------------
# Built exactly if Open MPI, whose configure calls this one with its own arguments, has vprotocol
# correlated: that has the checks.
AC_DEFUN([MCA_prte_errmgr_correlated_CONFIG],[
    AC_CONFIG_FILES([src/mca/errmgr/correlated/Makefile])

    AS_IF([test "$with_rustbtl" = yes],
          [$1],
          [$2])
])dnl
