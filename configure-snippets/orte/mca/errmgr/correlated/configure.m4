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

# MCA_orte_errmgr_correlated_CONFIG([action-if-can-compile],
#                                   [action-if-cant-compile])
# ------------------------------------------------
# Built exactly if vprotocol correlated is, which comes later and has the checks.
AC_DEFUN([MCA_orte_errmgr_correlated_CONFIG],[
    AC_CONFIG_FILES([orte/mca/errmgr/correlated/Makefile])

    AS_IF([test "$with_rustbtl" = yes],
          [$1],
          [$2])
])
