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

# OMPI_CHECK_RUSTBTL(prefix, [action-if-found], [action-if-not-found])
# --------------------------------------------------------------------
# Is rustbtl wanted (--with-rustbtl), and can its Rust core be built? Sets and substitutes
# prefix_LIBS (what the core needs of the system), RUSTBTL_TARGET, CARGO, RUSTC, OBJCOPY and
# READELF. What was asked for and cannot be had ends configure.
AC_DEFUN([OMPI_CHECK_RUSTBTL],[
    OPAL_VAR_SCOPE_PUSH([ompi_check_rustbtl_happy ompi_check_rustbtl_why ompi_check_rustbtl_sources ompi_check_rustbtl_wants ompi_check_rustbtl_has])

    AC_ARG_WITH([rustbtl],
                [AS_HELP_STRING([--with-rustbtl],
                                [Build rustbtl: transparent fault tolerance of MPI jobs, as the vprotocol component "correlated". Needs cargo and rustc, but no network (default: no)])])
    AC_ARG_VAR([CARGO], [cargo, the build tool of Rust (for --with-rustbtl)])
    AC_ARG_VAR([RUSTC], [rustc, the compiler of Rust (for --with-rustbtl)])

    ompi_check_rustbtl_happy=yes
    ompi_check_rustbtl_why=
    ompi_check_rustbtl_sources=$srcdir/ompi/mca/vprotocol/correlated

    AS_CASE([$with_rustbtl],
            [''|no], [ompi_check_rustbtl_happy=no],
            [yes], [],
            [AC_MSG_ERROR([--with-rustbtl takes yes or no: rustbtl is in this source tree, there is no directory to look in])])

    AS_IF([test "$ompi_check_rustbtl_happy" = yes && test ! -f "$ompi_check_rustbtl_sources/rust/Cargo.lock"],
          [ompi_check_rustbtl_happy=no
           ompi_check_rustbtl_why="its sources are not complete: run cargo xtask ompi-tree prepare in rustbtl, then autogen.pl"])

    # The machine that is built for.
    RUSTBTL_TARGET=
    AS_IF([test "$ompi_check_rustbtl_happy" = yes],
          [AC_MSG_CHECKING([whether rustbtl supports $host])
           AS_CASE([$host],
                   [x86_64-*-linux-gnu|x86_64-*-linux-gnu?*|x86_64-*-linux],
                   [RUSTBTL_TARGET=x86_64-unknown-linux-gnu],
                   [aarch64-*],
                   [ompi_check_rustbtl_why="its images of processes exist for x86-64 only so far, not for $host"])
           AS_IF([test -z "$RUSTBTL_TARGET" || test "$ac_cv_sizeof_void_p" != 8],
                 [AC_MSG_RESULT([no])
                  ompi_check_rustbtl_happy=no
                  AS_IF([test -z "$ompi_check_rustbtl_why"],
                        [ompi_check_rustbtl_why="it needs 64-bit Linux with glibc on x86-64, not $host"])],
                 [AC_MSG_RESULT([yes ($RUSTBTL_TARGET)])])])

    # The tools.
    AS_IF([test "$ompi_check_rustbtl_happy" = yes],
          [AC_PATH_PROG([CARGO], [cargo])
           AC_PATH_PROG([RUSTC], [rustc])
           AC_PATH_TOOL([OBJCOPY], [objcopy])
           AC_PATH_TOOL([READELF], [readelf])
           AS_IF([test -z "$CARGO" || test -z "$RUSTC"],
                 [ompi_check_rustbtl_happy=no
                  ompi_check_rustbtl_why="cargo or rustc was not found: install Rust, or set CARGO and RUSTC"],
                 [test -z "$OBJCOPY" || test -z "$READELF"],
                 [ompi_check_rustbtl_happy=no
                  ompi_check_rustbtl_why="objcopy or readelf (GNU binutils) was not found"])])

    # Their version: as said in the sources of the core.
    AS_IF([test "$ompi_check_rustbtl_happy" = yes],
          [ompi_check_rustbtl_wants=`sed -n 's/^rust-version *= *"\(.*\)"/\1/p' "$ompi_check_rustbtl_sources/rust/Cargo.toml"`
           AC_MSG_CHECKING([whether rustc is $ompi_check_rustbtl_wants or newer])
           ompi_check_rustbtl_has=`"$RUSTC" --version 2>&AS_MESSAGE_LOG_FD | sed -n 's/^rustc \(@<:@0-9.@:>@*\).*/\1/p'`
           AS_VERSION_COMPARE(["$ompi_check_rustbtl_has"], ["$ompi_check_rustbtl_wants"],
                              [AC_MSG_RESULT([no ($ompi_check_rustbtl_has)])
                               ompi_check_rustbtl_happy=no
                               ompi_check_rustbtl_why="$RUSTC is of version $ompi_check_rustbtl_has, and $ompi_check_rustbtl_wants is needed"],
                              [AC_MSG_RESULT([yes ($ompi_check_rustbtl_has)])],
                              [AC_MSG_RESULT([yes ($ompi_check_rustbtl_has)])])])

    # Can they make code for that machine?
    AS_IF([test "$ompi_check_rustbtl_happy" = yes],
          [AC_MSG_CHECKING([whether rustc compiles for $RUSTBTL_TARGET])
           cat >conftest.rs <<_RUSTBTL_EOF
pub fn conftest(n: usize) -> String { format!("{n}") }
_RUSTBTL_EOF
           AS_IF(["$RUSTC" --edition 2024 --crate-type staticlib -C panic=abort --target $RUSTBTL_TARGET --print native-static-libs -o conftest.rust.a conftest.rs >conftest.rust.out 2>&1],
                 [AC_MSG_RESULT([yes])
                  $1_LIBS=`sed -n 's/^note: native-static-libs: *//p' conftest.rust.out | sed 's/-lc *$//'`],
                 [AC_MSG_RESULT([no])
                  cat conftest.rust.out >&AS_MESSAGE_LOG_FD
                  ompi_check_rustbtl_happy=no
                  ompi_check_rustbtl_why="$RUSTC does not compile for $RUSTBTL_TARGET (config.log says why; is the target's standard library installed?)"])
           rm -f conftest.rs conftest.rust.a conftest.rust.out])

    AC_SUBST([CARGO])
    AC_SUBST([RUSTC])
    AC_SUBST([OBJCOPY])
    AC_SUBST([READELF])
    AC_SUBST([RUSTBTL_TARGET])
    AC_SUBST([$1_LIBS])

    OPAL_SUMMARY_ADD([Miscellaneous], [Fault tolerance by rustbtl], [], [$ompi_check_rustbtl_happy])

    AS_IF([test "$ompi_check_rustbtl_happy" = yes],
          [$2],
          [AS_IF([test -n "$with_rustbtl" && test "$with_rustbtl" != no],
                 [AC_MSG_ERROR([--with-rustbtl was given, but rustbtl cannot be built: $ompi_check_rustbtl_why])])
           $3])

    OPAL_VAR_SCOPE_POP
])
