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

# MCA_opal_btl_rustbtl_CONFIG([action-if-can-compile],
#                             [action-if-cant-compile])
# ------------------------------------------------
# Built exactly if vprotocol correlated is, which comes later and has the checks. The transports are
# there: this one finds them when it is used.
AC_DEFUN([MCA_opal_btl_rustbtl_CONFIG],[
    AC_CONFIG_FILES([opal/mca/btl/rustbtl/Makefile])

    AS_IF([test "$with_rustbtl" = yes],
          [$1],
          [$2])
])
