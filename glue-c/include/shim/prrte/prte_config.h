/*
 * In place of the header of this name, which PRRTE's configure makes and Debian's libopenmpi-dev
 * leaves out: what PRRTE's other headers ask of it, for Linux on 64 bit with gcc or clang.
 *
 * Structs are laid out by PRTE_ENABLE_DEBUG alone (0 unless PRRTE was configured otherwise).
 */
#ifndef PRTE_CONFIG_H
#define PRTE_CONFIG_H

#if !defined(__linux__) || !defined(__LP64__) || !defined(__GNUC__)
#error "not a system for which this header was written"
#endif

#include "prte_version.h"

#if PRTE_VERSION_MAJOR != 3
#error "rustbtl is written for PRRTE 3.0, as in Open MPI 5.0"
#endif

#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif

#include "src/include/prte_config_top.h"

/* Written into components; PRRTE loads one with its own first number. */
#define PRTE_MAJOR_VERSION PRTE_VERSION_MAJOR
#define PRTE_MINOR_VERSION PRTE_VERSION_MINOR
#define PRTE_RELEASE_VERSION PRTE_VERSION_RELEASE

#define PRTE_ENABLE_DEBUG 0
#define PRTE_ENABLE_IPV6 1
#define PRTE_HAVE_LIBEV 0
#define PRTE_PICKY_COMPILERS 0

/* ---- the system ----------------------------------------------------------------------------- */

#define HAVE_ARPA_INET_H 1
#define HAVE_INTTYPES_H 1
#define HAVE_NETINET_IN_H 1
#define HAVE_STDINT_H 1
#define HAVE_STDLIB_H 1
#define HAVE_STRINGS_H 1
#define HAVE_SYS_PARAM_H 1
#define HAVE_SYS_SELECT_H 1
#define HAVE_SYS_SOCKET_H 1
#define HAVE_SYS_TIME_H 1
#define HAVE_SYS_TYPES_H 1
#define HAVE_SYS_UIO_H 1
#define HAVE_SYS_UN_H 1
#define HAVE_UNISTD_H 1

#define HAVE_DECL_AF_INET6 1
#define HAVE_DECL_AF_UNSPEC 1
#define HAVE_DECL_PF_INET6 1
#define HAVE_DECL_PF_UNSPEC 1
#define HAVE_DECL___FUNC__ 1
#define HAVE_SOCKLEN_T 1
#define HAVE_STRUCT_SOCKADDR_IN 1
#define HAVE_STRUCT_SOCKADDR_IN6 1
#define HAVE_STRUCT_SOCKADDR_STORAGE 1

#define HAVE_ASPRINTF 1
#define HAVE_SNPRINTF 1
#define HAVE_UNIX_BYTESWAP 1
#define HAVE_VASPRINTF 1
#define HAVE_VSNPRINTF 1

#define SIZEOF_INT 4
#define SIZEOF_LONG 8
#define SIZEOF_SIZE_T 8
#define SIZEOF_VOID_P 8

/* ---- the compiler --------------------------------------------------------------------------- */

#define PRTE_C_HAVE_VISIBILITY 1
#define PRTE_HAVE_ATTRIBUTE_ALIGNED 1
#define PRTE_HAVE_ATTRIBUTE_ALWAYS_INLINE 1
#define PRTE_HAVE_ATTRIBUTE_COLD 1
#define PRTE_HAVE_ATTRIBUTE_CONST 1
#define PRTE_HAVE_ATTRIBUTE_DEPRECATED 1
#define PRTE_HAVE_ATTRIBUTE_DESTRUCTOR 1
#define PRTE_HAVE_ATTRIBUTE_EXTENSION 1
#define PRTE_HAVE_ATTRIBUTE_FORMAT 1
#define PRTE_HAVE_ATTRIBUTE_FORMAT_FUNCPTR 1
#define PRTE_HAVE_ATTRIBUTE_HOT 1
#define PRTE_HAVE_ATTRIBUTE_MALLOC 1
#define PRTE_HAVE_ATTRIBUTE_MAY_ALIAS 1
#define PRTE_HAVE_ATTRIBUTE_NOINLINE 1
#define PRTE_HAVE_ATTRIBUTE_NONNULL 1
#define PRTE_HAVE_ATTRIBUTE_NORETURN 1
#define PRTE_HAVE_ATTRIBUTE_NORETURN_FUNCPTR 1
#define PRTE_HAVE_ATTRIBUTE_NO_INSTRUMENT_FUNCTION 1
#define PRTE_HAVE_ATTRIBUTE_PACKED 1
#define PRTE_HAVE_ATTRIBUTE_PURE 1
#define PRTE_HAVE_ATTRIBUTE_SENTINEL 1
#define PRTE_HAVE_ATTRIBUTE_UNUSED 1
#define PRTE_HAVE_ATTRIBUTE_VISIBILITY 1
#define PRTE_HAVE_ATTRIBUTE_WARN_UNUSED_RESULT 1
#define PRTE_HAVE_ATTRIBUTE_WEAK_ALIAS 1

#include "src/include/prte_config_bottom.h"

#endif
