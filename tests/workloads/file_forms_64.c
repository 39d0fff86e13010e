/* file_forms.c by the functions whose names end with 64. */
#define _FILE_OFFSET_BITS 64
#define _FORTIFY_SOURCE 2
#include "file_forms.c"
